/* The supervisor's reaction to each event of a worker: one table, [event][state of the worker], at the end of
 * this file. The reactions to exits are in supervise_exit.c. Supervisor process; its only thread; no lock. */
#include "daemon/service.h"
#include "daemon/supervise_internal.h"

#include <inttypes.h>
#include <stdio.h>

typedef void reaction(struct supervisor *s, struct child *child, const struct event *event);

enum event_kind supervise_event_of(uint32_t message_kind)
{
    switch (message_kind) {
    case CONTROL_BOUND:
        return EVENT_BOUND;
    case CONTROL_READY:
        return EVENT_READY;
    case CONTROL_BEAT:
        return EVENT_BEAT;
    case CONTROL_EPISODE:
    case CONTROL_UPDATE:
    case CONTROL_EPOCH:
        return EVENT_RECORD;
    case CONTROL_STATUS:
        return EVENT_STATUS;
    case CONTROL_FINISHED:
        return EVENT_FINISHED;
    case CONTROL_FAILED:
        return EVENT_FAILED;
    default:
        return EVENT_INVALID;
    }
}

/* ---- reactions ---- */

static void expel_child(struct supervisor *s, struct child *child, const struct event *event)
{
    static const char *const states[CHILD_STATES] = {
        [CHILD_STARTING] = "starting", [CHILD_READY] = "running", [CHILD_LEAVING] = "leaving"};
    char why[160];
    snprintf(why, sizeof why,
             "%s (process %ld) sent a message that is not permitted (kind %u, while %s): killed", child->name,
             (long)child->pid, event->message->kind, states[child->state]);
    child_kill(child);
    supervise_fail(s, STATUS_INTERNAL, why);
}

static void kill_silent(struct supervisor *s, struct child *child, const struct event *event)
{
    char why[128];
    (void)event;
    snprintf(why, sizeof why, "%s (process %ld) sent no heartbeat for %g s: killed", child->name,
             (long)child->pid, s->config->job->supervise.hang_s);
    child_kill(child);
    supervise_fail(s, STATUS_INTERNAL, why);
}

static void ignore_event(struct supervisor *s, struct child *child, const struct event *event)
{
    (void)s;
    (void)child;
    (void)event;
}

static void note_beat(struct supervisor *s, struct child *child, const struct event *event)
{
    (void)s;
    (void)event;
    child->last_beat = monotime_now();
}

/* The worker had not yet read the order to leave when it said READY. */
static void note_opened(struct supervisor *s, struct child *child, const struct event *event)
{
    (void)s;
    (void)event;
    child->opened = true;
}

/* A worker may connect once all workers that it connects to have bound their sockets. */
static void mark_bound(struct supervisor *s, struct child *child, const struct event *event)
{
    unsigned bound = 0;
    (void)event;
    child->bound = true;
    while (bound < s->roster.listeners && s->children[bound].bound)
        bound++;
    for (unsigned i = 1; i < s->count; i++) {
        struct child *other = &s->children[i];
        if (other->connected || roster_dialed(&s->roster, (uint16_t)i) > bound)
            continue;
        other->connected = true;
        child_order(other, CONTROL_CONNECT, NULL, 0);
    }
}

static void mark_ready(struct supervisor *s, struct child *child, const struct event *event)
{
    (void)event;
    child->opened = true;
    child->state = CHILD_READY;
    if (++s->ready == s->count)
        service_notify("READY=1\nSTATUS=training with %u workers", s->count);
}

static enum status log_episode(struct supervisor *s, const struct control_episode *r, struct error *error)
{
    service_notify("STATUS=episode %" PRIu64 ", running reward %.2f", r->episode, r->running_reward);
    return runlog_episode(s->config->log, r, error);
}

static enum status log_update(struct supervisor *s, const struct control_update *r, struct error *error)
{
    service_notify("STATUS=update %" PRIu64 ", loss %.4f", r->update, r->loss);
    return runlog_update(s->config->log, r, error);
}

static enum status log_epoch(struct supervisor *s, const struct control_epoch *r, struct error *error)
{
    service_notify("STATUS=epoch %" PRIu64 ", loss %.4f", r->epoch, r->loss);
    return runlog_epoch(s->config->log, r, error);
}

/* An episode and an update are acknowledged once their lines are in the logs; the lead is at most one step
 * ahead. After one record could not be logged, later ones are dropped: the log would have a gap. */
static void log_record(struct supervisor *s, struct child *child, const struct event *event)
{
    const struct control_message *message = event->message;
    struct control_logged logged = {0};
    struct error error;
    enum status status;
    if (child != &s->children[s->roster.lead] ||
        (message->kind == CONTROL_UPDATE && message->body.update.trainers > JOB_TRAINERS_MAX)) {
        expel_child(s, child, event);
        return;
    }
    if (s->log_failed)
        return;
    if (message->kind == CONTROL_EPISODE) {
        logged.number = message->body.episode.episode;
        status = log_episode(s, &message->body.episode, &error);
    } else if (message->kind == CONTROL_UPDATE) {
        logged.number = message->body.update.update;
        status = log_update(s, &message->body.update, &error);
    } else {
        status = log_epoch(s, &message->body.epoch, &error);
    }
    s->log_failed = status != STATUS_OK;
    if (s->log_failed)
        supervise_fail(s, error.status, error.text);
    else if (message->kind != CONTROL_EPOCH)
        child_order(child, CONTROL_LOGGED, &logged, sizeof logged);
}

static void note_holdings(struct supervisor *s, struct child *child, const struct event *event)
{
    s->holdings[child->start.worker] = event->message->body.status;
}

static void finish_job(struct supervisor *s, struct child *child, const struct event *event)
{
    if (child != &s->children[s->roster.lead]) {
        expel_child(s, child, event);
        return;
    }
    s->result = event->message->body.finished;
    if (s->result.end > CONTROL_END_STOPPED)
        s->result.end = CONTROL_END_STOPPED;
    service_notify("STOPPING=1");
    supervise_close(s);
}

static void note_last_words(struct supervisor *s, struct child *child, const struct event *event)
{
    (void)s;
    child->last_words = event->message->body.failed;
    child->last_words.text[ERROR_TEXT_BYTES - 1] = '\0';
}

/* ---- the table ---- */

/* clang-format off */
static reaction *const reactions[EVENT_KINDS][CHILD_STATES] = {
    /*                  starting                ready                   leaving               killed */
    [EVENT_BOUND]    = {mark_bound,             expel_child,            ignore_event,         ignore_event},
    [EVENT_READY]    = {mark_ready,             expel_child,            note_opened,          ignore_event},
    [EVENT_BEAT]     = {note_beat,              note_beat,              note_beat,            ignore_event},
    [EVENT_RECORD]   = {expel_child,            log_record,             ignore_event,         ignore_event},
    [EVENT_STATUS]   = {expel_child,            note_holdings,          note_holdings,        ignore_event},
    [EVENT_FINISHED] = {expel_child,            finish_job,             ignore_event,         ignore_event},
    [EVENT_FAILED]   = {note_last_words,        note_last_words,        note_last_words,      ignore_event},
    [EVENT_SILENT]   = {kill_silent,            kill_silent,            kill_silent,          ignore_event},
    [EVENT_EXITED]   = {supervise_exit_unasked, supervise_exit_unasked, supervise_exit_asked, supervise_exit_killed},
    [EVENT_INVALID]  = {expel_child,            expel_child,            expel_child,          ignore_event},
};
/* clang-format on */

void supervise_handle(struct supervisor *s, struct child *child, const struct event *event)
{
    if (child->state != CHILD_GONE)
        reactions[event->kind][child->state](s, child, event);
}
