/* The supervisor's reaction to each message: a table of what is permitted, [kind of message][state of its
 * worker], and a function for each kind. Supervisor process; its only thread; no lock. */
#include "daemon/service.h"
#include "daemon/supervise_internal.h"

#include <inttypes.h>
#include <stdio.h>

void supervise_expel(struct supervisor *s, struct child *child, uint32_t message_kind)
{
    static const char *const states[] = {
        [CHILD_STARTING] = "starting", [CHILD_READY] = "running", [CHILD_LEAVING] = "leaving"};
    char why[160];
    snprintf(why, sizeof why,
             "%s (process %ld) sent a message that is not permitted (kind %u, while %s): killed", child->name,
             (long)child->pid, message_kind, states[child->state]);
    child_kill(child);
    supervise_fail(s, STATUS_INTERNAL, why);
}

/* A worker may connect once all workers that it connects to have bound their sockets. */
static void connect_workers(struct supervisor *s)
{
    unsigned bound = 0;
    while (bound < s->roster.listeners && s->children[bound].bound)
        bound++;
    for (unsigned i = 1; i < s->count; i++) {
        struct child *child = &s->children[i];
        if (child->connected || roster_dialed(&s->roster, (uint16_t)i) > bound)
            continue;
        child->connected = true;
        child_order(child, CONTROL_CONNECT, NULL, 0);
    }
}

/* A worker that is leaving had not yet read the order when it said READY. */
static void mark_ready(struct supervisor *s, struct child *child)
{
    child->opened = true;
    if (child->state == CHILD_LEAVING)
        return;
    child->state = CHILD_READY;
    if (++s->ready == s->count)
        service_notify("READY=1\nSTATUS=training with %u workers", s->count);
}

static void show_status(const struct control_message *record)
{
    const struct control_episode *episode = &record->body.episode;
    const struct control_update *update = &record->body.update;
    const struct control_epoch *epoch = &record->body.epoch;
    if (record->kind == CONTROL_EPISODE)
        service_notify("STATUS=episode %" PRIu64 ", running reward %.2f", episode->episode,
                       episode->running_reward);
    else if (record->kind == CONTROL_UPDATE)
        service_notify("STATUS=update %" PRIu64 ", loss %.4f", update->update, update->loss);
    else
        service_notify("STATUS=epoch %" PRIu64 ", loss %.4f", epoch->epoch, epoch->loss);
}

/* An episode and an update are acknowledged once their lines are in the logs; the lead is at most one step
 * ahead. After one record could not be logged, later ones are dropped: the log would have a gap. */
static void log_record(struct supervisor *s, struct child *child, const struct control_message *message)
{
    struct error error;
    if (s->log_failed)
        return;
    show_status(message);
    s->log_failed = runlog_record(s->config->log, message, s->holdings, &error) != STATUS_OK;
    if (s->log_failed) {
        supervise_fail(s, error.status, error.text);
    } else if (message->kind != CONTROL_EPOCH) {
        const struct control_logged logged = {.number = control_record_number(message)};
        child_order(child, CONTROL_LOGGED, &logged, sizeof logged);
    }
}

static void finish_job(struct supervisor *s, const struct control_finished *finished)
{
    s->result = *finished;
    if (s->result.end > CONTROL_END_STOPPED)
        s->result.end = CONTROL_END_STOPPED;
    service_notify("STOPPING=1");
    supervise_close(s);
}

/* ---- the table ---- */

enum permission { EXPEL, IGNORE, OBEY };

/* clang-format off */
static const enum permission permissions[CONTROL_KINDS][CHILD_KILLED] = {
    /*                    starting  ready  leaving */
    [CONTROL_BOUND]    = {OBEY,     EXPEL, IGNORE},
    [CONTROL_READY]    = {OBEY,     EXPEL, OBEY},
    [CONTROL_BEAT]     = {OBEY,     OBEY,  OBEY},
    [CONTROL_EPISODE]  = {EXPEL,    OBEY,  IGNORE},
    [CONTROL_UPDATE]   = {EXPEL,    OBEY,  IGNORE},
    [CONTROL_EPOCH]    = {EXPEL,    OBEY,  IGNORE},
    [CONTROL_STATUS]   = {EXPEL,    OBEY,  OBEY},
    [CONTROL_FINISHED] = {EXPEL,    OBEY,  IGNORE},
    [CONTROL_FAILED]   = {OBEY,     OBEY,  OBEY},
};
/* clang-format on */

/* The lead alone may report a record or the end. */
static enum permission permission_of(const struct supervisor *s, const struct child *child,
                                     const struct control_message *message)
{
    const uint32_t kind = message->kind;
    const enum permission permission = permissions[kind][child->state];
    if (permission != OBEY || (kind != CONTROL_EPISODE && kind != CONTROL_UPDATE && kind != CONTROL_EPOCH &&
                               kind != CONTROL_FINISHED))
        return permission;
    if (kind == CONTROL_UPDATE && message->body.update.trainers > JOB_TRAINERS_MAX)
        return EXPEL;
    return child == &s->children[s->roster.lead] ? OBEY : EXPEL;
}

void supervise_obey_message(struct supervisor *s, struct child *child, const struct control_message *message)
{
    const enum permission permission = permission_of(s, child, message);
    if (permission == EXPEL)
        supervise_expel(s, child, message->kind);
    if (permission != OBEY)
        return;
    switch (message->kind) {
    case CONTROL_BOUND:
        child->bound = true;
        connect_workers(s);
        return;
    case CONTROL_READY:
        mark_ready(s, child);
        return;
    case CONTROL_BEAT:
        child->last_beat = monotime_now();
        return;
    case CONTROL_STATUS:
        s->holdings[child->start.worker] = message->body.status;
        return;
    case CONTROL_FINISHED:
        finish_job(s, &message->body.finished);
        return;
    case CONTROL_FAILED:
        child->last_words = message->body.failed;
        child->last_words.text[ERROR_TEXT_BYTES - 1] = '\0';
        return;
    default:
        log_record(s, child, message);
    }
}
