/* The supervisor's reaction to each event of a worker: one table, [event][state of the worker]. Supervisor
 * process; its only thread; no lock. */
#include "daemon/process/service.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- messages ---- */

void supervise_expel(struct supervisor *s, struct child *child, uint32_t message_kind)
{
    static const char *const states[] = {
        [CHILD_STARTING] = "starting", [CHILD_READY] = "running", [CHILD_LEAVING] = "leaving"};
    char why[256], title[CHILD_TITLE_BYTES];
    child_title(child, title);
    snprintf(why, sizeof why, "%s sent a message that is not permitted (kind %u, while %s): killed", title,
             message_kind, states[child->state]);
    supervise_lose(s, child, STATUS_INTERNAL, why);
}

static void expel(struct supervisor *s, struct child *child, const struct control_message *message)
{
    supervise_expel(s, child, message->kind);
}

/* A worker may connect once all workers that it connects to have bound their sockets. */
void supervise_connect(struct supervisor *s)
{
    unsigned bound = 0;
    while (bound < s->roster.listeners && s->children[bound].bound)
        bound++;
    for (unsigned i = 1; i < s->count; i++) {
        struct child *child = &s->children[i];
        if (child->connected || !child_is_heard(child) || roster_dialed(&s->roster, (uint16_t)i) > bound)
            continue;
        child->connected = true;
        supervise_introduce(s, child);
        child_order(child, CONTROL_CONNECT, NULL, 0);
    }
}

static void mark_bound(struct supervisor *s, struct child *child, const struct control_message *message)
{
    child->bound = true;
    child->far_port = message->body_bytes >= sizeof message->body.bound ? message->body.bound.far_port : 0;
    supervise_connect(s);
}

/* A worker that is leaving had not yet read the order when it said READY. */
static void mark_opened(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    (void)message;
    child->opened = true;
}

static void mark_ready(struct supervisor *s, struct child *child, const struct control_message *message)
{
    mark_opened(s, child, message);
    child->state = CHILD_READY;
    for (unsigned i = 0; i < s->count; i++)
        if (!s->children[i].opened)
            return;
    if (!s->announced)
        service_notify("READY=1\nSTATUS=training with %u workers", s->count);
    s->announced = true;
}

static void keep_beat(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    child->last_beat = monotime_now();
    if (message->body_bytes >= sizeof message->body.beat)
        child_note_use(child, &message->body.beat, child->last_beat);
}

static void keep_last_words(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    child->last_words = message->body.failed;
    child->last_words.text[ERROR_TEXT_BYTES - 1] = '\0';
}

/* ---- messages of the lead ---- */

static bool is_lead(const struct supervisor *s, const struct child *child)
{
    return child == &s->children[s->roster.lead];
}

/* The lead reports for all workers, any other worker for itself. */
static void keep_holdings(struct supervisor *s, struct child *child, const struct control_message *message)
{
    const uint32_t worker = message->body.status.worker;
    if (worker < s->count && (worker == child->start.worker || is_lead(s, child)))
        s->holdings[worker] = message->body.status;
    else
        expel(s, child, message);
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

void supervise_tell_place(struct supervisor *s)
{
    struct control_logged logged = {.records = s->records};
    runlog_place(s->config->log, &logged.place);
    child_order(&s->children[s->roster.lead], CONTROL_LOGGED, &logged, sizeof logged);
}

void supervise_order_save(struct supervisor *s)
{
    if (runlog_is_moved(s->config->log))
        child_order(&s->children[s->roster.lead], CONTROL_SAVE, NULL, 0);
}

/* A record is acknowledged once its lines are in the logs; the lead is at most one record ahead. After one
 * record could not be logged, later ones are dropped: the log would have a gap. */
static void log_record(struct supervisor *s, struct child *child, const struct control_message *message)
{
    struct error error;
    if (!is_lead(s, child) ||
        (message->kind == CONTROL_UPDATE && message->body.update.trainers > JOB_TRAINERS_MAX)) {
        expel(s, child, message);
        return;
    }
    if (s->log_failed)
        return;
    show_status(message);
    s->log_failed = runlog_record(s->config->log, message, s->holdings, &error) != STATUS_OK;
    if (s->log_failed) {
        supervise_fail(s, error.status, error.text);
        return;
    }
    run_totals_add(&s->totals, message, monotime_now());
    run_history_add(&s->history, message);
    supervise_note_progress(s, message);
    s->records++;
    supervise_tell_place(s);
}

/* The checkpoint that supervise_order_save asked for is visible. */
static void continue_logs(struct supervisor *s, struct child *child, const struct control_message *message)
{
    struct error error;
    if (!is_lead(s, child))
        expel(s, child, message);
    else if (runlog_continue(s->config->log, &message->body.saved.place, &error) != STATUS_OK)
        log_error("%s; the lines go on into the old file", error.text);
    else
        supervise_tell_place(s);
}

static void finish_job(struct supervisor *s, struct child *child, const struct control_message *message)
{
    if (!is_lead(s, child)) {
        expel(s, child, message);
        return;
    }
    s->result = message->body.finished;
    if (s->result.end > CONTROL_END_STOPPED)
        s->result.end = CONTROL_END_STOPPED;
    if (s->resizes && s->stops == 0 && s->result.end == CONTROL_END_STOPPED) {
        supervise_regenerate_resized(s);
        return;
    }
    s->finished = true;
    if (!s->announced) /* systemd waits for READY, and takes of one message the last state alone */
        service_notify("READY=1");
    service_notify("STOPPING=1");
    supervise_close(s);
}

/* ---- deadlines and exits ---- */

static void kill_silent(struct supervisor *s, struct child *child, const struct control_message *message)
{
    char why[256], title[CHILD_TITLE_BYTES], place[CHILD_PLACE_BYTES];
    (void)message;
    child_title(child, title);
    child_place(child, place);
    snprintf(why, sizeof why, "%s sent no heartbeat for %g s%s%s: killed", title,
             (double)supervise_silence_us_max(s, child) / 1e6, place[0] != '\0' ? "," : "", place);
    supervise_lose(s, child, STATUS_INTERNAL, why);
}

static void kill_late(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    (void)message;
    char title[CHILD_TITLE_BYTES];
    child_title(child, title);
    log_warning("%s did not leave in time: killed", title);
    child_kill(child);
}

/* ---- the table ---- */

static void ignore(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    (void)child;
    (void)message;
}

/* clang-format off */
static supervise_reaction *const reactions[EVENTS][CHILD_STATES] = {
    /*                    starting         ready            leaving          killed       waiting  gone */
    [CONTROL_BOUND]    = {mark_bound,      expel,           ignore,          ignore,      ignore,  ignore},
    [CONTROL_READY]    = {mark_ready,      expel,           mark_opened,     ignore,      ignore,  ignore},
    [CONTROL_BEAT]     = {keep_beat,       keep_beat,       keep_beat,       ignore,      ignore,  ignore},
    [CONTROL_EPISODE]  = {expel,           log_record,      ignore,          ignore,      ignore,  ignore},
    [CONTROL_UPDATE]   = {expel,           log_record,      ignore,          ignore,      ignore,  ignore},
    [CONTROL_EPOCH]    = {expel,           log_record,      ignore,          ignore,      ignore,  ignore},
    [CONTROL_STATUS]   = {expel,           keep_holdings,   keep_holdings,   ignore,      ignore,  ignore},
    [CONTROL_FINISHED] = {expel,           finish_job,      ignore,          ignore,      ignore,  ignore},
    [CONTROL_FAILED]   = {keep_last_words, keep_last_words, keep_last_words, ignore,      ignore,  ignore},
    [CONTROL_PROFILE]  = {keep_profile,    keep_profile,    keep_profile,    ignore,      ignore,  ignore},
    [CONTROL_SAVED]    = {expel,           continue_logs,   continue_logs,   ignore,      ignore,  ignore},
    [EVENT_SILENT]     = {kill_silent,     kill_silent,     kill_silent,     ignore,      ignore,  ignore},
    [EVENT_LATE]       = {kill_late,       kill_late,       kill_late,       ignore,      ignore,  ignore},
    [EVENT_EXITED]     = {exit_unasked,    exit_unasked,    exit_asked,      exit_killed, ignore,  ignore},
    [EVENT_DUE]        = {ignore,          ignore,          ignore,          ignore,      restart_due, ignore},
};
/* clang-format on */

/* An order is no message of a worker. */
void supervise_react(struct supervisor *s, struct child *child, unsigned event,
                     const struct control_message *message)
{
    supervise_reaction *react = reactions[event][child->state];
    if (react == NULL)
        react = child_is_heard(child) ? expel : ignore;
    react(s, child, message);
}
