/* The supervisor's reaction to each message: one table, [kind of message][state of its worker], at the end of
 * this file. Supervisor process; its only thread; no lock. */
#include "daemon/service.h"
#include "daemon/supervise_internal.h"

#include <inttypes.h>
#include <stdio.h>

typedef void reaction(struct supervisor *s, struct child *child, const struct control_message *message);

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

static void ignore_message(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    (void)child;
    (void)message;
}

static void note_beat(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    (void)message;
    child->last_beat = monotime_now();
}

/* The worker had not yet read the order to leave when it said READY. */
static void note_opened(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    (void)message;
    child->opened = true;
}

/* A worker may connect once all workers that it connects to have bound their sockets. */
static void mark_bound(struct supervisor *s, struct child *child, const struct control_message *message)
{
    unsigned bound = 0;
    (void)message;
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

static void mark_ready(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    child->opened = true;
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
    if (child != &s->children[s->roster.lead] ||
        (message->kind == CONTROL_UPDATE && message->body.update.trainers > JOB_TRAINERS_MAX)) {
        supervise_expel(s, child, message->kind);
        return;
    }
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

static void note_holdings(struct supervisor *s, struct child *child, const struct control_message *message)
{
    s->holdings[child->start.worker] = message->body.status;
}

static void finish_job(struct supervisor *s, struct child *child, const struct control_message *message)
{
    if (child != &s->children[s->roster.lead]) {
        supervise_expel(s, child, message->kind);
        return;
    }
    s->result = message->body.finished;
    if (s->result.end > CONTROL_END_STOPPED)
        s->result.end = CONTROL_END_STOPPED;
    service_notify("STOPPING=1");
    supervise_close(s);
}

static void note_last_words(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    child->last_words = message->body.failed;
    child->last_words.text[ERROR_TEXT_BYTES - 1] = '\0';
}

/* ---- the table ---- */

/* clang-format off */
static reaction *const reactions[CONTROL_KINDS][CHILD_KILLED] = { /* NULL: not permitted */
    /*                    starting         ready            leaving */
    [CONTROL_BOUND]    = {mark_bound,      NULL,            ignore_message},
    [CONTROL_READY]    = {mark_ready,      NULL,            note_opened},
    [CONTROL_BEAT]     = {note_beat,       note_beat,       note_beat},
    [CONTROL_EPISODE]  = {NULL,            log_record,      ignore_message},
    [CONTROL_UPDATE]   = {NULL,            log_record,      ignore_message},
    [CONTROL_EPOCH]    = {NULL,            log_record,      ignore_message},
    [CONTROL_STATUS]   = {NULL,            note_holdings,   note_holdings},
    [CONTROL_FINISHED] = {NULL,            finish_job,      ignore_message},
    [CONTROL_FAILED]   = {note_last_words, note_last_words, note_last_words},
};
/* clang-format on */

void supervise_obey_message(struct supervisor *s, struct child *child, const struct control_message *message)
{
    reaction *const react = reactions[message->kind][child->state];
    if (react == NULL)
        supervise_expel(s, child, message->kind);
    else
        react(s, child, message);
}
