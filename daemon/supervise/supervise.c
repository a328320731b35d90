/* Runs a job: starts its workers, waits for signals, messages and deadlines, acts on each, and ends the job.
 * Supervisor process; its only thread; no lock. */
#include "daemon/supervise/supervise.h"

#include "daemon/process/service.h"
#include "daemon/process/socket_folder.h"
#include "daemon/supervise/growth.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* A turn of the loop handles at most so many messages of one worker: a flood must not keep the others, the
 * signals, the deadlines and the service manager's watchdog waiting. */
enum {
    MESSAGES_PER_TURN = 64,
    HOST_MESSAGES_PER_TURN = 256,
    LINE_MESSAGES_MAX = 4096, /* more than a socket's buffer holds */
};

/* ---- generations ---- */

static enum status start_all(struct supervisor *s, struct error *error)
{
    const enum status status = generation_start_all(&s->generation, error);
    if (status != STATUS_OK)
        return status;
    s->records = 0;
    supervise_tell_place(s);
    supervise_order_save(s);
    return STATUS_OK;
}

static enum status go_back(struct supervisor *s, const struct line_restart *cause, struct error *error)
{
    struct resume_point point = {0};
    const enum status status =
        resume_go_back(&point, rundir_path(s->config->dir), s->config->log, cause, error);
    generation_resume_at(&s->generation, &point);
    return status;
}

/* Goes back to the newest checkpoint, and says why. */
static enum status begin_next_generation(struct supervisor *s, struct error *error)
{
    struct generation *g = &s->generation;
    const bool is_resize = g->next.is_resize;
    const struct control_start cause = g->children[g->next.worker].start;
    generation_begin_next(g);
    runlog_clear_progress(s->config->log);
    run_watch_mark(&s->watch, g->next.reason);
    if (is_resize)
        log_info("the job goes on with %u %s", g->roster.clients, growth_unit(g, g->roster.clients));
    else
        log_warning("%s; all workers start again", g->next.reason);
    const struct line_restart line = {.role = is_resize ? NULL : role_by_wire(cause.role)->name,
                                      .worker = cause.worker,
                                      .incarnation = cause.incarnation,
                                      .generation = g->number,
                                      .reason = g->next.reason};
    return go_back(s, &line, error);
}

/* A fork that fails counts as another death of the worker that is the cause: it is tried again. */
struct monotime supervise_advance_generation(struct supervisor *s, struct monotime now)
{
    struct error error = {0};
    const struct monotime due = generation_next_due(&s->generation);
    if (monotime_before(now, due))
        return due;
    if (begin_next_generation(s, &error) != STATUS_OK)
        job_end_fail(&s->end, &s->generation, error.status, error.text);
    else if (start_all(s, &error) != STATUS_OK)
        supervise_lose(s, &s->generation.children[s->generation.next.worker], STATUS_INTERNAL, "%s",
                       error.text);
    return MONOTIME_NEVER;
}

/* ---- messages and exits of workers ---- */

/* Handles the worker's next message. False: none is waiting. */
static bool read_message(struct supervisor *s, struct child *child)
{
    static struct control_message message; /* too large for a stack; one thread */
    if (!child_is_heard(child))
        return false;
    enum status status = control_receive(child->fd, false, &message);
    if (status == STATUS_PEER_DIED)
        child->hung_up = true; /* reap_children handles its exit */
    if (status == STATUS_AGAIN || status == STATUS_PEER_DIED)
        return false;
    if (status == STATUS_OK)
        supervise_react(s, child, message.kind, &message);
    else
        supervise_expel(s, child, message.kind);
    return true;
}

static void read_messages(struct supervisor *s, struct child *child)
{
    while (child->heard < MESSAGES_PER_TURN && read_message(s, child))
        child->heard++;
}

/* Handles each worker's exit, after the messages that its line still holds. */
static void reap_children(struct supervisor *s, bool wait)
{
    for (unsigned i = 0; i < s->generation.count; i++) {
        struct child *child = &s->generation.children[i];
        if (!child_reap(child, wait))
            continue;
        for (unsigned last = 0; last < LINE_MESSAGES_MAX && read_message(s, child); last++)
            ;
        supervise_react(s, child, EVENT_EXITED, NULL);
    }
}

/* ---- events of other hosts ---- */

/* A worker is gone with its host, or was reaped there. */
static void end_worker(struct supervisor *s, struct child *child, const char *end)
{
    if (!child_lives(child))
        return;
    snprintf(child->end, sizeof child->end, "%s", end);
    supervise_react(s, child, EVENT_EXITED, NULL);
}

/* The host's workers are handled like workers that were killed: they start elsewhere. */
static void lose_host(struct supervisor *s, uint16_t host, const char *why)
{
    struct generation *g = &s->generation;
    runlog_clear_progress(s->config->log);
    log_warning("host %u (%s) is lost: %s", host, hosts_name(&s->hosts, host), why);
    for (unsigned i = 0; i < g->count; i++) {
        struct child *child = &g->children[i];
        char end[sizeof child->end];
        if (child->relay == NULL || child->host != host)
            continue;
        snprintf(end, sizeof end, "%s is lost: %.120s", child->name, why);
        child->deaths = 0; /* the host's fault, not the worker's */
        end_worker(s, child, end);
    }
    growth_take_away(g, host, "is lost", job_end_has_begun(&s->end));
}

/* A host departs: its workers start elsewhere. When the job is ending anyway, they leave with all others. */
static void clear_host(struct supervisor *s, uint16_t host)
{
    struct generation *g = &s->generation;
    if (s->end.stops > 0 || s->end.closing)
        return;
    log_info("host %u (%s) departs: its workers start elsewhere", host, hosts_name(&s->hosts, host));
    for (unsigned i = 0; i < g->count; i++) {
        struct child *child = &g->children[i];
        if (child->relay == NULL || child->host != host || !child_is_heard(child))
            continue;
        child->deaths = 0;
        supervise_lose(s, child, STATUS_INTERNAL, "%s ends: its host departs", child->name);
    }
    growth_take_away(g, host, "departs", job_end_has_begun(&s->end));
}

/* Kills clients elsewhere, whose successors start on this host: its share of the workers. */
static void move_share_to(struct supervisor *s, uint16_t host)
{
    struct child *child;
    uint32_t count = generation_fair_share(&s->generation, host);
    while (count-- > 0 && (child = generation_choose_mover(&s->generation, host)) != NULL) {
        child->moves_to = host;
        child->deaths = 0;
        supervise_lose(s, child, STATUS_INTERNAL, "%s moves to host %u (%.40s)", child->name, host,
                       hosts_name(&s->hosts, host));
    }
}

/* A host has come. A job that runs already grows by what the host brings; to one of the hosts with which the
 * job began its share of the workers moves. */
static void fill_host(struct supervisor *s, uint16_t host, uint32_t brings)
{
    char why[160];
    snprintf(why, sizeof why, "host %u (%.60s) brings %u %s", host, hosts_name(&s->hosts, host), brings,
             growth_unit(&s->generation, brings));
    if (brings > 0)
        growth_follow(&s->generation, why);
    else if (!s->hosts.awaited && s->config->job->supervise.restart)
        move_share_to(s, host);
}

static void answer_join(struct supervisor *s, uint16_t host, const struct control_join *join)
{
    struct error error = {0};
    if (job_end_has_begun(&s->end))
        error_set(&error, STATUS_SHUTDOWN, "the job is ending");
    else if (join->brings > 0)
        growth_check(&s->generation, join->role, join->brings, &error);
    if (error.status != STATUS_OK) {
        hosts_refuse(&s->hosts, host, error.status, error.text);
        return;
    }
    runlog_clear_progress(s->config->log);
    hosts_admit(&s->hosts, host, join);
    fill_host(s, host, join->brings);
}

/* Takes a message of a worker, under the incarnation that runs there now. A late one of a predecessor is
 * dropped. */
static void hear_worker(struct supervisor *s, const struct control_relay *head,
                        const struct control_message *message)
{
    struct child *child = head->worker < s->generation.count ? &s->generation.children[head->worker] : NULL;
    const struct control_exited *exited = &message->body.exited;
    char end[sizeof child->end];
    if (child == NULL || child->relay == NULL || child->host != head->host ||
        child->start.incarnation != head->incarnation || child->start.generation != head->generation)
        return;
    if (message->kind == CONTROL_EXITED) {
        snprintf(end, sizeof end, "%.*s, on host %u (%.40s)", (int)sizeof exited->end - 80, exited->end,
                 child->host, hosts_name(&s->hosts, child->host));
        end_worker(s, child, end);
    } else if (child_is_heard(child)) {
        supervise_react(s, child, message->kind, message);
    }
}

/* The first generation waits for the hosts, and has what they bring. */
static void start_with_hosts(struct supervisor *s)
{
    struct error error = {0};
    generation_adopt_size(&s->generation);
    if (start_all(s, &error) != STATUS_OK)
        job_end_fail(&s->end, &s->generation, error.status, error.text);
}

static void obey_host_event(struct supervisor *s, const struct host_event *event)
{
    switch (event->kind) {
    case HOST_NOTHING:
        break;
    case HOSTS_READY:
        start_with_hosts(s);
        break;
    case HOST_ASKS:
        answer_join(s, event->host, &event->message->body.join);
        break;
    case HOST_SPEAKS:
        hear_worker(s, &event->head, event->message);
        break;
    case HOST_CLEARS:
        clear_host(s, event->host);
        break;
    case HOST_LOST:
        lose_host(s, event->host, event->why);
        break;
    }
}

static void read_hosts(struct supervisor *s)
{
    struct host_event event;
    for (unsigned i = 0; i < HOST_MESSAGES_PER_TURN && hosts_read(&s->hosts, &event); i++)
        obey_host_event(s, &event);
}

static struct monotime check_hosts(struct supervisor *s, struct monotime now)
{
    struct host_event event;
    while (hosts_check(&s->hosts, now, &event))
        obey_host_event(s, &event);
    for (uint16_t i = 1; i < hosts_count(&s->hosts); i++)
        if (hosts_is_clearing(&s->hosts, i) && generation_load_of(&s->generation, i) == 0)
            hosts_release(&s->hosts, i, 0, "this host has left the job");
    return hosts_due(&s->hosts);
}

/* ---- signals ---- */

static enum status take_signals(struct supervisor *s, struct error *error)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&set, taken[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    /* An ignored SIGCHLD, which a process inherits, would never come, and waitpid would find no child. */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd >= 0 ? STATUS_OK
                             : error_set_errno(error, errno, "cannot make a descriptor for signals");
}

/* The first signal asks for an orderly end, the second for a quick one, the third kills. */
static void stop_job(struct supervisor *s)
{
    s->end.stops++;
    runlog_clear_progress(s->config->log);
    if (s->end.stops == 1) {
        log_info("stopping: the running round is finished first; a second signal hurries");
        service_notify("STOPPING=1\nSTATUS=finishing the round");
        if (s->generation.next.is_planned) /* no round is running */
            job_end_close(&s->end, &s->generation);
        child_order(generation_lead(&s->generation), CONTROL_DRAIN, NULL, 0);
    } else if (s->end.stops == 2) {
        log_info("hurrying: the running round is given up");
        job_end_hurry(&s->end, &s->generation);
    } else {
        s->end.kill_at = monotime_now();
    }
}

static void log_lines(char *text)
{
    char *rest;
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        log_error("%s", line);
}

/* Takes over /log, the only key that may change while a job runs, but not in a model-parallel job: its
 * workers compute the means that its lines show. Other changes wait for the next start. */
static void adopt_job(struct supervisor *s, struct job *job)
{
    const struct supervise_config *config = s->config;
    const bool log_changes = config->job->kind != JOB_MODEL_PARALLEL;
    size_t bytes;
    resume_keep(job, config->job);
    if (log_changes)
        config->job->log = job->log;
    char *wanted = job_format(job, &bytes), *have = job_format(config->job, &bytes);
    const bool same = wanted != NULL && have != NULL && strcmp(wanted, have) == 0;
    log_info("%s is read again: %s%s", config->job_path,
             log_changes ? "/log is in force" : "nothing changes now",
             same          ? ""
             : log_changes ? "; its other changes wait for the next start"
                           : "; its changes wait for the next start");
    free(wanted);
    free(have);
}

static void reload_job(struct supervisor *s)
{
    const struct supervise_config *config = s->config;
    struct job job;
    char *problems = NULL;
    runlog_clear_progress(config->log);
    if (job_read_file(&job, path_of(config->job_path), config->overrides, config->override_count, NULL,
                      &problems) == STATUS_OK) {
        adopt_job(s, &job);
    } else {
        log_lines(problems);
        log_error("%s cannot be used: nothing is changed", config->job_path);
    }
    free(problems);
}

/* Obeys all signals that have arrived. True: SIGCHLD was among them, and children wait to be reaped. */
static bool obey_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    bool child_exited = false;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        switch (info.ssi_signo) {
        case SIGCHLD:
            child_exited = true;
            break;
        case SIGINT:
        case SIGTERM:
            stop_job(s);
            break;
        case SIGHUP:
            reload_job(s);
            break;
        case SIGUSR1:
            supervise_order_save(s);
            break;
        }
    }
    return child_exited;
}

/* ---- deadlines ---- */

/* While this process itself was stopped or waited for a disk, it could not hear its workers: their silence
 * counts from now on. */
static void excuse_own_absence(struct supervisor *s, struct monotime now)
{
    uint64_t hang_us = (uint64_t)(s->config->job->supervise.hang_s * 1e6);
    const uint64_t absent_us = monotime_us_between(s->wake_due, now);
    if (absent_us > hang_us / 4)
        for (unsigned i = 0; i < s->generation.count; i++)
            s->generation.children[i].last_beat = now;
    if (absent_us > RELAY_SILENCE_US / 4)
        hosts_excuse(&s->hosts, now);
}

/* The order to kill a worker may be lost with its host's supervisor, or not be obeyed. */
static struct monotime check_killed_far(struct supervisor *s, struct child *child, struct monotime now)
{
    enum { KILL_US = 5000000 };
    char why[2 * CHILD_TITLE_BYTES];
    const struct monotime due = monotime_add_us(child->killed_at, KILL_US);
    if (monotime_before(now, due))
        return due;
    snprintf(why, sizeof why, "it does not end %s", child->name);
    if (hosts_lose(&s->hosts, child->host))
        lose_host(s, child->host, why);
    return MONOTIME_NEVER;
}

/* The next time at which something is due of this worker; what is due now has been done. */
static struct monotime check_child(struct supervisor *s, struct child *child, struct monotime now)
{
    const bool waits = child->state == CHILD_WAITING;
    struct monotime due =
        waits ? child->restart_at : monotime_add_us(child->last_beat, supervise_silence_us_max(s, child));
    if (child->state == CHILD_KILLED && child->relay != NULL)
        return check_killed_far(s, child, now);
    if (!waits && !child_is_heard(child))
        return MONOTIME_NEVER;
    if (!monotime_before(now, due))
        supervise_react(s, child, waits ? EVENT_DUE : EVENT_SILENT, NULL);
    if (!monotime_before(now, s->end.kill_at))
        supervise_react(s, child, EVENT_LATE, NULL);
    return monotime_before(now, due) ? due : now;
}

/* Acts on every deadline that has come; returns the next one. */
static struct monotime check_deadlines(struct supervisor *s)
{
    struct monotime now = monotime_now(), next = service_watchdog(now);
    excuse_own_absence(s, now);
    next = monotime_earliest(next, check_hosts(s, now));
    next = monotime_earliest(next, run_watch_check(&s->watch, now));
    for (unsigned i = 0; i < s->generation.count; i++)
        next = monotime_earliest(next, check_child(s, &s->generation.children[i], now));
    next = monotime_earliest(next, supervise_advance_generation(s, now));
    return monotime_earliest(next, monotime_before(now, s->end.kill_at) ? s->end.kill_at : MONOTIME_NEVER);
}

/* ---- the loop ---- */

static bool goes_on(const struct supervisor *s)
{
    return generation_goes_on(&s->generation) || (s->hosts.awaited && s->end.stops == 0);
}

/* Fails the job and kills all workers at once: without poll the loop cannot go on. */
static void end_without_poll(struct supervisor *s, int errnum)
{
    char why[160];
    snprintf(why, sizeof why, "cannot wait for %u workers: %s", s->generation.count, strerror(errnum));
    job_end_fail(&s->end, &s->generation, STATUS_INTERNAL, why);
    for (unsigned i = 0; i < s->generation.count; i++)
        child_kill(&s->generation.children[i]);
    reap_children(s, true);
}

static void wait_and_read(struct supervisor *s, struct monotime until)
{
    static struct pollfd waits[2 + RUN_WATCH_WAITS + ROSTER_WORKERS_MAX]; /* one thread */
    struct generation *g = &s->generation;
    struct pollfd *of_watch = &waits[2], *of_workers = &waits[2 + RUN_WATCH_WAITS];
    waits[0] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    waits[1] = (struct pollfd){.fd = hosts_fd(&s->hosts), .events = POLLIN};
    run_watch_waits(&s->watch, of_watch);
    for (unsigned i = 0; i < g->count; i++) {
        struct child *child = &g->children[i];
        const bool listening = child_is_heard(child) && !child->hung_up;
        of_workers[i] = (struct pollfd){.fd = listening ? child->fd : -1, .events = POLLIN};
        child->heard = 0;
    }
    const int ready = poll(waits, 2 + RUN_WATCH_WAITS + g->count, monotime_poll_ms(monotime_now(), until));
    const int errnum = errno;
    s->wake_due = monotime_earliest(until, monotime_now());
    if (ready < 0 && errnum != EINTR)
        end_without_poll(s, errnum);
    if (ready <= 0)
        return;
    for (unsigned i = 0; i < g->count; i++)
        if (of_workers[i].revents != 0)
            read_messages(s, &g->children[i]);
    if (waits[1].revents != 0)
        read_hosts(s);
    run_watch_serve(&s->watch, of_watch);
    if ((waits[0].revents & POLLIN) && obey_signals(s))
        reap_children(s, false);
}

/* ---- the job's start and end ---- */

static enum status write_end(struct supervisor *s, struct error *error)
{
    static const char *const ends[] = {[CONTROL_END_FINISHED] = "finished",
                                       [CONTROL_END_SOLVED] = "solved",
                                       [CONTROL_END_STOPPED] = "stopped"};
    const bool has_failed = job_end_has_failed(&s->end);
    struct error log_error = {0};
    const enum status status = runlog_finish(s->config->log, has_failed ? "failed" : ends[s->end.result.end],
                                             &s->end.result, s->generation.holdings, &log_error);
    *error = has_failed ? s->end.outcome : log_error;
    return has_failed ? s->end.outcome.status : status;
}

/* Opens everything that the workers need, and goes back to the checkpoint of a run that is resumed. */
static enum status open_job(struct supervisor *s, struct error *error)
{
    const struct supervise_config *config = s->config;
    enum status status = generation_open(&s->generation, config, &s->hosts, error);
    if (status == STATUS_OK) /* ahead of the signals: they end the process until the hosts have met */
        status = hosts_open(&s->hosts, config->place, config->job, config->dir->real, error);
    if (status == STATUS_OK)
        status = take_signals(s, error);
    if (status != STATUS_OK)
        return status;
    run_watch_open_metrics(&s->watch);
    return config->dir->resumed ? go_back(s, NULL, error) : runlog_start(config->log, error);
}

static void run_job(struct supervisor *s)
{
    struct error error = {0};
    run_watch_open_status(&s->watch);
    s->wake_due = monotime_now();
    if (!s->hosts.awaited && start_all(s, &error) != STATUS_OK)
        job_end_fail(&s->end, &s->generation, error.status, error.text);
    while (goes_on(s)) {
        const struct monotime next = check_deadlines(s);
        if (goes_on(s))
            wait_and_read(s, next);
    }
}

enum status supervise(const struct supervise_config *config, struct error *error)
{
    struct supervisor s = {.config = config,
                           .signal_fd = -1,
                           .end = JOB_END_NONE,
                           .profiles = {.is_on = config->job->log.profile}};
    run_watch_init(&s.watch, &s.generation, &s.end);
    enum status status = open_job(&s, error);
    if (status == STATUS_OK) {
        run_job(&s);
        run_watch_close(&s.watch);
        status = write_end(&s, error);
        worker_profiles_end(&s.profiles, &s.generation, s.watch.begin);
    } else {
        error_set(&s.end.outcome, status, "%s", error->text);
        run_watch_close(&s.watch);
    }
    hosts_close(&s.hosts, status_exit_code(s.end.outcome.status),
                job_end_has_failed(&s.end) ? s.end.outcome.text : "the job is over");
    if (s.signal_fd >= 0)
        close(s.signal_fd);
    generation_close(&s.generation);
    return status;
}
