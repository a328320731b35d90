/* The supervisor's loop: wait for signals, messages and deadlines, and act on each. Supervisor process; its
 * only thread; no lock. */
#include "daemon/supervise/supervise.h"

#include "daemon/process/service.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- messages and exits ---- */

/* A turn of the loop handles at most so many messages of one worker: a flood must not keep the others, the
 * signals, the deadlines and the service manager's watchdog waiting. */
enum {
    MESSAGES_PER_TURN = 64,
    LINE_MESSAGES_MAX = 4096, /* more than a socket's buffer holds */
};

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
    for (unsigned i = 0; i < s->count; i++) {
        struct child *child = &s->children[i];
        if (!child_reap(child, wait))
            continue;
        for (unsigned last = 0; last < LINE_MESSAGES_MAX && read_message(s, child); last++)
            ;
        supervise_react(s, child, EVENT_EXITED, NULL);
    }
}

/* ---- deadlines ---- */

/* While this process itself was stopped or waited for a disk, it could not hear its workers: their silence
 * counts from now on. */
static void excuse_own_absence(struct supervisor *s, struct monotime now)
{
    uint64_t hang_us = (uint64_t)(s->config->job->supervise.hang_s * 1e6);
    const uint64_t absent_us = monotime_us_between(s->wake_due, now);
    if (absent_us > hang_us / 4)
        for (unsigned i = 0; i < s->count; i++)
            s->children[i].last_beat = now;
    if (absent_us > RELAY_SILENCE_US / 4)
        supervise_excuse_hosts(s, now);
}

/* How long a worker may be silent. A starting worker gets more time: it loads libraries and connects to
 * servers, perhaps as one of a thousand workers. */
uint64_t supervise_silence_us_max(const struct supervisor *s, const struct child *child)
{
    enum { START_US = 30000000 };
    uint64_t hang_us = (uint64_t)(s->config->job->supervise.hang_s * 1e6);
    return child->state == CHILD_STARTING ? hang_us + START_US : hang_us;
}

/* The order to kill a worker may be lost with its host's supervisor, or not be obeyed. */
static struct monotime check_killed_far(struct supervisor *s, struct child *child, struct monotime now)
{
    enum { KILL_US = 5000000 };
    const struct monotime due = monotime_add_us(child->killed_at, KILL_US);
    if (monotime_before(now, due))
        return due;
    supervise_lose_stuck(s, child);
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
    if (!monotime_before(now, s->kill_at))
        supervise_react(s, child, EVENT_LATE, NULL);
    return monotime_before(now, due) ? due : now;
}

/* Acts on every deadline that has come; returns the next one. */
static struct monotime check_deadlines(struct supervisor *s)
{
    struct monotime now = monotime_now(), next = service_watchdog(now);
    excuse_own_absence(s, now);
    next = monotime_earliest(next, supervise_check_hosts(s, now));
    next = monotime_earliest(next, status_socket_check(&s->status, now));
    next = monotime_earliest(next, supervise_check_metrics(s, now));
    for (unsigned i = 0; i < s->count; i++)
        next = monotime_earliest(next, check_child(s, &s->children[i], now));
    next = monotime_earliest(next, supervise_advance_generation(s, now));
    return monotime_earliest(next, monotime_before(now, s->kill_at) ? s->kill_at : MONOTIME_NEVER);
}

/* ---- the loop ---- */

/* Whether a worker lives or is to start. */
static bool goes_on(const struct supervisor *s)
{
    for (unsigned i = 0; i < s->count; i++)
        if (s->children[i].state != CHILD_GONE)
            return true;
    return s->regeneration.pending || (s->hosts.awaited && s->stops == 0);
}

/* Fails the job and kills all workers at once: without poll the loop cannot go on. */
static void end_without_poll(struct supervisor *s, int errnum)
{
    char why[160];
    snprintf(why, sizeof why, "cannot wait for %u workers: %s", s->count, strerror(errnum));
    supervise_fail(s, STATUS_INTERNAL, why);
    for (unsigned i = 0; i < s->count; i++)
        child_kill(&s->children[i]);
    reap_children(s, true);
}

static void wait_and_read(struct supervisor *s, struct monotime until)
{
    s->waits[0] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    for (unsigned i = 0; i < s->count; i++) {
        struct child *child = &s->children[i];
        bool listening = child_is_heard(child) && !child->hung_up;
        s->waits[i + 1] = (struct pollfd){.fd = listening ? child->fd : -1, .events = POLLIN};
        child->heard = 0;
    }
    s->waits[s->count + 1] = (struct pollfd){.fd = supervise_hosts_fd(s), .events = POLLIN};
    s->waits[s->count + 2] = (struct pollfd){.fd = listener_fd(&s->metrics.listener), .events = POLLIN};
    struct pollfd *status_waits = &s->waits[s->count + 3];
    status_socket_waits(&s->status, status_waits);
    int ready = poll(s->waits, 1 + s->count + WAITS_BEHIND, monotime_poll_ms(monotime_now(), until));
    int errnum = errno;
    s->wake_due = monotime_earliest(until, monotime_now());
    if (ready < 0 && errnum != EINTR)
        end_without_poll(s, errnum);
    if (ready <= 0)
        return;
    for (unsigned i = 0; i < s->count; i++)
        if (s->waits[i + 1].revents != 0)
            read_messages(s, &s->children[i]);
    if (s->waits[s->count + 1].revents != 0)
        supervise_read_hosts(s);
    if (s->waits[s->count + 2].revents != 0)
        listener_serve(&s->metrics.listener);
    status_socket_serve(&s->status, status_waits);
    if ((s->waits[0].revents & POLLIN) && supervise_obey_signals(s))
        reap_children(s, false);
}

/* ---- the job's start and end ---- */

static enum status open_memory(struct supervisor *s, struct error *error)
{
    s->roster = roster_of(s->config->job);
    s->count = roster_workers(&s->roster);
    s->children = calloc(s->count, sizeof *s->children);
    s->holdings = calloc(s->count, sizeof *s->holdings);
    s->waits = calloc(1 + s->count + WAITS_BEHIND, sizeof *s->waits);
    s->job_text = job_format(s->config->job, &s->job_bytes);
    if (s->children == NULL || s->holdings == NULL || s->waits == NULL || s->job_text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u workers", s->count);
    for (unsigned i = 0; i < s->count; i++)
        s->children[i].state = CHILD_GONE;
    return python_worker_find(&s->python_worker, s->config->job, error);
}

static void supervisor_close(struct supervisor *s)
{
    if (s->signal_fd >= 0)
        close(s->signal_fd);
    spawn_segments_close(&s->segments);
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
    enum status status = runlog_finish(s->config->log, why, &s->result, s->holdings, &log_error);
    *error = s->outcome.status != STATUS_OK ? s->outcome : log_error;
    return s->outcome.status != STATUS_OK ? s->outcome.status : status;
}

enum status supervise(const struct supervise_config *config, struct error *error)
{
    struct supervisor s = {.config = config,
                           .signal_fd = -1,
                           .status = {.fd = -1},
                           .begin = monotime_now(),
                           .begin_unix_s = supervise_unix_s(),
                           .generation = 1,
                           .kill_at = MONOTIME_NEVER,
                           .result = {.end = CONTROL_END_STOPPED}};
    s.profile.is_on = config->job->log.profile;
    enum status status = open_memory(&s, error);
    if (status ==
        STATUS_OK) /* ahead of the signals: until the hosts have found each other they end the process */
        status = supervise_open_hosts(&s, error);
    if (status == STATUS_OK)
        status = supervise_take_signals(&s, error);
    if (status == STATUS_OK) {
        supervise_open_metrics(&s);
        status = config->dir->resumed
                     ? resume_go_back(&s.resume, rundir_path(config->dir), config->log, NULL, error)
                     : runlog_start(config->log, error);
    }
    s.furthest = s.resume.update;
    if (status != STATUS_OK) {
        error_set(&s.outcome, status, "%s", error->text);
        supervise_close_metrics(&s);
        supervise_close_hosts(&s);
        supervisor_close(&s);
        return status;
    }
    supervise_open_status(&s);
    s.wake_due = monotime_now();
    if (!s.hosts.awaited && supervise_spawn_all(&s, error) != STATUS_OK)
        supervise_fail(&s, error->status, error->text);
    while (goes_on(&s)) {
        struct monotime next = check_deadlines(&s);
        if (goes_on(&s))
            wait_and_read(&s, next);
    }
    status_socket_close(&s.status);
    supervise_close_metrics(&s);
    status = write_end(&s, error);
    supervise_end_profile(&s);
    supervise_close_hosts(&s);
    supervisor_close(&s);
    return status;
}
