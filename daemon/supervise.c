/* The supervisor's loop. Supervisor process; its only thread; no lock.
 *
 * The loop: wait for signals, control lines and deadlines; take in what came; act on it through the table
 * (supervise_table.c); see to what is due. */
#include "daemon/supervise.h"

#include "daemon/service.h"
#include "daemon/supervise_internal.h"
#include "kernels/base/log.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* ---- taking in ---- */

static void read_line(struct supervisor *s, struct child *child);

/* What an epoch's line tells of the others they have said before the lead said that the epoch has ended. */
static void read_others(struct supervisor *s, const struct child *lead)
{
    for (unsigned i = 0; i < s->count; i++)
        if (&s->children[i] != lead)
            read_line(s, &s->children[i]);
}

static void read_line(struct supervisor *s, struct child *child)
{
    struct control_message message;
    while (child->state != CHILD_GONE) {
        enum status status = control_receive(child->fd, false, &message);
        if (status == STATUS_PEER_DIED)
            child->deaf = true; /* of its death, the reaper tells */
        if (status == STATUS_AGAIN || status == STATUS_PEER_DIED)
            return;
        if (status == STATUS_OK && message.kind == CONTROL_EPOCH && child == &s->children[s->roster.lead])
            read_others(s, child);
        struct happening what = {.message = &message};
        supervise_react(s, child, status == STATUS_OK ? supervise_event_of(message.kind) : EVENTS, &what);
    }
}

static void reap_children(struct supervisor *s)
{
    char text[160];
    for (unsigned i = 0; i < s->count; i++) {
        struct child *child = &s->children[i];
        if (!child_reap(child, text, sizeof text))
            continue;
        read_line(s, child); /* its last words */
        struct happening what = {.text = text};
        supervise_react(s, child, EVENT_EXITED, &what);
    }
}

/* The first asks for an orderly end, the second for a quick one, the third for an end. */
static void stop(struct supervisor *s)
{
    s->stops++;
    runlog_clear_progress(s->config->log);
    if (s->stops == 1) {
        log_info("stopping: the running round is finished first; a second signal hurries");
        service_notify("STOPPING=1\nSTATUS=finishing the round");
        child_order(&s->children[s->roster.lead], CONTROL_DRAIN, NULL, 0);
    } else if (s->stops == 2) {
        log_info("hurrying: the running round is given up");
        supervise_hurry(s);
    } else {
        s->kill_at = monotime_now();
    }
}

static void log_lines(char *text)
{
    char *rest;
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        log_error("%s", line);
}

/* Reads the job file again. Only `log` may change while a job runs; anything else waits for the next start.
 * Of a model-parallel job even that, for its lines are means that the workers make. */
static void reload(struct supervisor *s)
{
    const struct supervise_config *config = s->config;
    struct job job;
    struct job_problems problems = {0};
    runlog_clear_progress(config->log);
    if (job_read_file(&job, config->job_path, config->overrides, config->override_count, &problems) !=
        STATUS_OK) {
        log_lines(problems.text);
        log_error("%s is not read again, nothing is changed", config->job_path);
    } else {
        size_t bytes;
        resume_keep(&job, config->job);
        const bool live = config->job->kind != JOB_MODEL_PARALLEL;
        if (live)
            config->job->log = job.log;
        char *wanted = job_format(&job, &bytes), *have = job_format(config->job, &bytes);
        bool same = wanted != NULL && have != NULL && strcmp(wanted, have) == 0;
        log_info("%s is read again: %s%s", config->job_path,
                 live ? "/log is in force" : "nothing changes now",
                 same   ? ""
                 : live ? "; its other changes wait for the next start"
                        : "; its changes wait for the next start");
        free(wanted);
        free(have);
    }
    job_problems_fini(&problems);
}

static void reopen(struct supervisor *s)
{
    struct error error;
    if (runlog_reopen(s->config->log, &error) != STATUS_OK)
        log_error("%s; the lines go on into the old files", error.text);
}

static void read_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        switch (info.ssi_signo) {
        case SIGCHLD:
            reap_children(s);
            break;
        case SIGINT:
        case SIGTERM:
            stop(s);
            break;
        case SIGHUP:
            reload(s);
            break;
        case SIGUSR1:
            reopen(s);
            break;
        }
    }
}

/* ---- what is due ---- */

/* When this loop itself was away (suspended with its workers, or waiting for a disk), their silence says
 * nothing: it could not hear them. Their time begins anew. */
static void forgive_own_absence(struct supervisor *s, struct monotime now)
{
    uint64_t hang_us = (uint64_t)(s->config->job->supervise.hang_s * 1e6);
    if (monotime_us_between(s->awake, now) > hang_us / 4)
        for (unsigned i = 0; i < s->count; i++)
            s->children[i].last_beat = now;
}

/* Kills who has been silent too long or was told to hurry too long ago; returns the next such time. */
static struct monotime check_deadlines(struct supervisor *s)
{
    struct monotime now = monotime_now(), next = service_watchdog(now);
    forgive_own_absence(s, now);
    for (unsigned i = 0; i < s->count; i++) {
        struct child *child = &s->children[i];
        if (child->state == CHILD_GONE || child->state == CHILD_KILLED)
            continue;
        struct monotime due = monotime_add_us(child->last_beat, supervise_patience_us(s, child));
        if (!monotime_before(now, due))
            supervise_react(s, child, EVENT_SILENT, &(struct happening){0});
        else
            next = monotime_earliest(next, due);
        if (!monotime_before(now, s->kill_at)) {
            log_warning("%s (process %ld) did not leave in time: killed", child->name, (long)child->pid);
            child_kill(child);
        }
    }
    return monotime_earliest(next, monotime_before(now, s->kill_at) ? s->kill_at : MONOTIME_NEVER);
}

static bool any_left(const struct supervisor *s)
{
    for (unsigned i = 0; i < s->count; i++)
        if (s->children[i].state != CHILD_GONE)
            return true;
    return false;
}

static void wait_and_read(struct supervisor *s, struct monotime until)
{
    s->waits[0] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    for (unsigned i = 0; i < s->count; i++) {
        bool listening = s->children[i].state != CHILD_GONE && !s->children[i].deaf;
        s->waits[i + 1] = (struct pollfd){.fd = listening ? s->children[i].fd : -1, .events = POLLIN};
    }
    int ready = poll(s->waits, s->count + 1, monotime_poll_ms(monotime_now(), until));
    s->awake = monotime_earliest(until, monotime_now());
    if (ready <= 0)
        return;
    for (unsigned i = 0; i < s->count; i++)
        if (s->waits[i + 1].revents != 0)
            read_line(s, &s->children[i]);
    if (s->waits[0].revents & POLLIN)
        read_signals(s);
}

/* ---- opening ---- */

static enum status take_signals(struct supervisor *s, struct error *error)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd >= 0 ? STATUS_OK
                             : error_set_errno(error, errno, "cannot make a descriptor for signals");
}

/* Each worker costs us a descriptor, and ZeroMQ aborts a server that runs out of them. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static enum status open_memory(struct supervisor *s, struct error *error)
{
    s->roster = roster_of(s->config->job);
    s->count = roster_workers(&s->roster);
    s->children = calloc(s->count, sizeof *s->children);
    s->holdings = calloc(s->count, sizeof *s->holdings);
    s->waits = calloc(s->count + 1, sizeof *s->waits);
    s->job_text = job_format(s->config->job, &s->job_bytes);
    if (s->children == NULL || s->holdings == NULL || s->waits == NULL || s->job_text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u workers", s->count);
    runlog_tell_holdings(s->config->log, s->holdings, s->count);
    for (unsigned i = 0; i < s->count; i++)
        s->children[i].state = CHILD_GONE;
    return STATUS_OK;
}

static enum status spawn_all(struct supervisor *s, struct error *error)
{
    enum status status = s->roster.segments ? child_segments_open(&s->segments, s->count, error) : STATUS_OK;
    struct control_start start = {.incarnation = 1, .generation = 1};
    memcpy(start.address, s->config->dir->address, sizeof start.address);
    memcpy(start.run_dir, s->config->dir->real, sizeof start.run_dir);
    if (s->config->resume != NULL)
        memcpy(start.resume, s->config->resume->checkpoint, sizeof start.resume);
    for (unsigned i = 0; i < s->count && status == STATUS_OK; i++) {
        start.worker = (uint16_t)i;
        start.role = roster_role(&s->roster, start.worker);
        const struct role *role = role_by_wire(start.role);
        assert(role != NULL);
        status = child_spawn(&s->children[i], role, &start, s->job_text, s->job_bytes, &s->segments, error);
    }
    return status;
}

static void supervisor_close(struct supervisor *s)
{
    if (s->signal_fd >= 0)
        close(s->signal_fd);
    child_segments_close(&s->segments);
    runlog_tell_holdings(s->config->log, NULL, 0);
    free(s->children);
    free(s->holdings);
    free(s->waits);
    free(s->job_text);
}

static enum status write_end(struct supervisor *s, struct error *error)
{
    static const char *const ends[] = {[CONTROL_END_FINISHED] = "finished",
                                       [CONTROL_END_SOLVED] = "solved",
                                       [CONTROL_END_STOPPED] = "stopped"};
    const char *why = s->outcome.status != STATUS_OK ? "failed" : ends[s->result.end];
    struct error log_error = {0};
    enum status status = runlog_finish(s->config->log, why, &s->result, &log_error);
    *error = s->outcome.status != STATUS_OK ? s->outcome : log_error;
    return s->outcome.status != STATUS_OK ? s->outcome.status : status;
}

enum status supervise(const struct supervise_config *config, struct error *error)
{
    struct supervisor s = {
        .config = config, .signal_fd = -1, .kill_at = MONOTIME_NEVER, .result = {.end = CONTROL_END_STOPPED}};
    raise_descriptor_limit();
    enum status status = open_memory(&s, error);
    if (status == STATUS_OK)
        status = take_signals(&s, error);
    if (status == STATUS_OK)
        status = config->resume != NULL ? runlog_resume(config->log, config->resume->update, error)
                                        : runlog_start(config->log, error);
    if (status != STATUS_OK) {
        supervisor_close(&s);
        return status;
    }
    s.awake = monotime_now();
    if (spawn_all(&s, error) != STATUS_OK)
        supervise_fail(&s, error->status, error->text);
    while (any_left(&s)) {
        struct monotime next = check_deadlines(&s);
        if (any_left(&s))
            wait_and_read(&s, next);
    }
    status = write_end(&s, error);
    supervisor_close(&s);
    return status;
}
