/* The supervisor's loop and its table. Supervisor process; its only thread; no lock.
 *
 * The loop: wait for signals, control lines and deadlines; take in what came; act on it through the table;
 * see to what is due. Restarting a dead worker has its place in the table's `exited` column: today every
 * unasked end goes to `died`, which ends the job. */
#include "daemon/supervise.h"

#include "daemon/child.h"
#include "daemon/service.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { GRACE_US = 2000000 }; /* for workers that were told to hurry */

struct supervisor {
    const struct supervise_config *config;
    struct child *children; /* the server first, then its clients in order of their numbers */
    unsigned count, ready;
    struct pollfd *waits; /* signals, then one for each child */
    int signal_fd;
    unsigned stops; /* SIGINT and SIGTERM so far */
    bool leaving;
    struct control_finished result;
    struct monotime kill_at; /* workers that are left then are killed */
    struct monotime awake;   /* when this loop should have gone on at the latest */
    struct error outcome;    /* the first failure */
    char *job_text;
    size_t job_bytes;
};

/* ---- the job's end ---- */

static void order_all(struct supervisor *s, enum control_kind kind)
{
    for (unsigned i = 0; i < s->count; i++)
        child_order(&s->children[i], kind, NULL, 0);
}

static void leave(struct child *child)
{
    if (child->state != CHILD_STARTING && child->state != CHILD_READY)
        return;
    child_order(child, CONTROL_EXIT, NULL, 0);
    child->state = CHILD_LEAVING;
}

/* Clients leave before the server, so that their BYE is heard. */
static void leave_next(struct supervisor *s)
{
    bool clients = false;
    if (!s->leaving)
        return;
    for (unsigned i = 1; i < s->count; i++) {
        leave(&s->children[i]);
        clients |= s->children[i].state != CHILD_GONE;
    }
    if (!clients)
        leave(&s->children[0]);
}

static void close_job(struct supervisor *s)
{
    s->leaving = true;
    leave_next(s);
}

static void hurry(struct supervisor *s)
{
    order_all(s, CONTROL_HURRY);
    s->kill_at = monotime_earliest(s->kill_at, monotime_add_us(monotime_now(), GRACE_US));
}

/* Ends the job because of `why`; only the first failure is the outcome. */
static void fail(struct supervisor *s, enum status status, const char *why)
{
    if (s->outcome.status == STATUS_OK)
        error_set(&s->outcome, status, "%s", why);
    else
        log_error("%s", why);
    hurry(s);
    close_job(s);
}

/* ---- events ---- */

enum event {
    EVENT_READY,
    EVENT_BEAT,
    EVENT_EPISODE,
    EVENT_FINISHED,
    EVENT_FAILED,
    EVENT_SILENT,
    EVENT_EXITED,
    EVENTS
};

/* What a control message is to the table; EVENTS for one that a worker may not send. */
static enum event event_of(uint32_t kind)
{
    switch (kind) {
    case CONTROL_READY:
        return EVENT_READY;
    case CONTROL_BEAT:
        return EVENT_BEAT;
    case CONTROL_EPISODE:
        return EVENT_EPISODE;
    case CONTROL_FINISHED:
        return EVENT_FINISHED;
    case CONTROL_FAILED:
        return EVENT_FAILED;
    default:
        return EVENTS;
    }
}

/* One event: the message it came with, or for EVENT_EXITED the end's description. */
struct happening {
    const struct control_message *message;
    const char *text;
};

typedef void reaction(struct supervisor *s, struct child *child, const struct happening *what);

static void ignored(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)s;
    (void)child;
    (void)what;
}

static void beaten(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)s;
    (void)what;
    child->last_beat = monotime_now();
}

static void now_ready(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)what;
    child->state = CHILD_READY;
    if (child == &s->children[0])
        for (unsigned i = 1; i < s->count; i++)
            child_order(&s->children[i], CONTROL_CONNECT, NULL, 0);
    if (++s->ready == s->count)
        service_notify("READY=1\nSTATUS=training with %u workers", s->count);
}

static void played(struct supervisor *s, struct child *child, const struct happening *what)
{
    struct control_episode record = what->message->body.episode;
    struct error error;
    if (runlog_episode(s->config->log, &record, &error) != STATUS_OK) {
        fail(s, error.status, error.text);
        return;
    }
    service_notify("STATUS=episode %" PRIu64 ", running reward %.2f", record.episode, record.running_reward);
    struct control_logged logged = {record.episode};
    child_order(child, CONTROL_LOGGED, &logged, sizeof logged);
}

static void job_over(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)child;
    s->result = what->message->body.finished;
    if (s->result.end > CONTROL_END_STOPPED)
        s->result.end = CONTROL_END_STOPPED;
    service_notify("STOPPING=1");
    close_job(s);
}

static void failed(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)s;
    child->last_words = what->message->body.failed;
    child->last_words.text[ERROR_TEXT_BYTES - 1] = '\0';
}

/* A worker that starts has libraries to load and a server to find, perhaps among a thousand others. */
static uint64_t patience_us(const struct supervisor *s, const struct child *child)
{
    enum { START_US = 30000000 };
    uint64_t hang_us = (uint64_t)(s->config->job->supervise.hang_s * 1e6);
    return child->state == CHILD_STARTING ? hang_us + START_US : hang_us;
}

static void silent(struct supervisor *s, struct child *child, const struct happening *what)
{
    char why[128];
    (void)what;
    snprintf(why, sizeof why, "%s (process %ld) has not beaten for %g s: killed", child->name,
             (long)child->pid, s->config->job->supervise.hang_s);
    child_kill(child);
    fail(s, STATUS_INTERNAL, why);
}

static void gone(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)what;
    child->state = CHILD_GONE;
    close(child->fd);
    child->fd = -1;
    leave_next(s);
}

/* A worker's own status is told by its exit code only where it is the machine's fault, not the job file's. */
static enum status status_of_death(const struct child *child)
{
    enum status status = child->last_words.status;
    return status == STATUS_UNAVAILABLE || status == STATUS_IO ? status : STATUS_INTERNAL;
}

static void died(struct supervisor *s, struct child *child, const struct happening *what)
{
    char why[ERROR_TEXT_BYTES];
    struct control_died news = {.worker = child->start.worker};
    if (child->last_words.status != STATUS_OK)
        snprintf(why, sizeof why, "%s: %.300s", what->text, child->last_words.text);
    else
        snprintf(why, sizeof why, "%s", what->text);
    snprintf(news.text, sizeof news.text, "%.190s", what->text);
    gone(s, child, what);
    if (child != &s->children[0])
        child_order(&s->children[0], CONTROL_DIED, &news, sizeof news);
    fail(s, status_of_death(child), why);
}

/* It was asked to leave, but ended otherwise. */
static void left(struct supervisor *s, struct child *child, const struct happening *what)
{
    if (child->last_words.status != STATUS_OK)
        log_warning("%s: %s", what->text, child->last_words.text);
    gone(s, child, what);
}

/* clang-format off */
static reaction *const reactions[CHILD_STATES][EVENTS] = {
    /*                   READY      BEAT     EPISODE  FINISHED  FAILED   SILENT   EXITED */
    [CHILD_STARTING] = { now_ready, beaten,  NULL,    NULL,     failed,  silent,  died },
    [CHILD_READY]    = { NULL,      beaten,  played,  job_over, failed,  silent,  died },
    [CHILD_LEAVING]  = { ignored,   beaten,  ignored, ignored,  failed,  silent,  left },
    [CHILD_KILLED]   = { ignored,   ignored, ignored, ignored,  ignored, ignored, gone },
};
/* clang-format on */

/* What the table has no entry for is a worker that has lost its mind. */
static void react(struct supervisor *s, struct child *child, enum event event, const struct happening *what)
{
    if (child->state == CHILD_GONE)
        return;
    reaction *answer = event < EVENTS ? reactions[child->state][event] : NULL;
    if (answer != NULL) {
        answer(s, child, what);
        return;
    }
    char why[128];
    snprintf(why, sizeof why, "%s (process %ld) said something out of turn (event %d in state %d): killed",
             child->name, (long)child->pid, event, child->state);
    child_kill(child);
    fail(s, STATUS_INTERNAL, why);
}

/* ---- taking in ---- */

static void read_line(struct supervisor *s, struct child *child)
{
    static struct control_message message;
    while (child->state != CHILD_GONE) {
        enum status status = control_receive(child->fd, false, &message);
        if (status == STATUS_PEER_DIED)
            child->deaf = true; /* of its death, the reaper tells */
        if (status == STATUS_AGAIN || status == STATUS_PEER_DIED)
            return;
        struct happening what = {.message = &message};
        react(s, child, status == STATUS_OK ? event_of(message.kind) : EVENTS, &what);
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
        react(s, child, EVENT_EXITED, &what);
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
        child_order(&s->children[0], CONTROL_DRAIN, NULL, 0);
    } else if (s->stops == 2) {
        log_info("hurrying: the running round is given up");
        hurry(s);
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
 */
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
        config->job->log = job.log;
        char *wanted = job_format(&job, &bytes), *have = job_format(config->job, &bytes);
        bool same = wanted != NULL && have != NULL && strcmp(wanted, have) == 0;
        log_info("%s is read again: /log is in force%s", config->job_path,
                 same ? "" : "; its other changes wait for the next start");
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
        struct monotime due = monotime_add_us(child->last_beat, patience_us(s, child));
        if (!monotime_before(now, due))
            react(s, child, EVENT_SILENT, &(struct happening){0});
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
    s->count = 1 + s->config->job->observers.count;
    s->children = calloc(s->count, sizeof *s->children);
    s->waits = calloc(s->count + 1, sizeof *s->waits);
    s->job_text = job_format(s->config->job, &s->job_bytes);
    if (s->children == NULL || s->waits == NULL || s->job_text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u workers", s->count);
    for (unsigned i = 0; i < s->count; i++)
        s->children[i].state = CHILD_GONE;
    return STATUS_OK;
}

static enum status spawn_all(struct supervisor *s, struct error *error)
{
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < s->count && status == STATUS_OK; i++) {
        const struct role *role = role_by_wire(i == 0 ? WIRE_ROLE_AGENT : WIRE_ROLE_OBSERVER);
        struct control_start start = {
            .worker = (uint16_t)i, .role = role->wire, .incarnation = 1, .generation = 1};
        memcpy(start.address, s->config->dir->address, sizeof start.address);
        status = child_spawn(&s->children[i], role, &start, s->job_text, s->job_bytes, error);
    }
    return status;
}

static void supervisor_close(struct supervisor *s)
{
    if (s->signal_fd >= 0)
        close(s->signal_fd);
    free(s->children);
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
        status = runlog_start(config->log, error);
    if (status != STATUS_OK) {
        supervisor_close(&s);
        return status;
    }
    s.awake = monotime_now();
    if (spawn_all(&s, error) != STATUS_OK)
        fail(&s, error->status, error->text);
    while (any_left(&s)) {
        struct monotime next = check_deadlines(&s);
        if (any_left(&s))
            wait_and_read(&s, next);
    }
    status = write_end(&s, error);
    supervisor_close(&s);
    return status;
}
