/* Reacts to each event of a worker: one table, [event][state of the worker], and a function for each cell.
 * Supervisor process; its only thread; no lock. */
#include "daemon/process/service.h"
#include "daemon/supervise/growth.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- messages ---- */

void supervise_expel(struct supervisor *s, struct child *child, uint32_t message_kind)
{
    static const char *const states[] = {
        [CHILD_STARTING] = "starting", [CHILD_READY] = "running", [CHILD_LEAVING] = "leaving"};
    char title[CHILD_TITLE_BYTES];
    child_title(child, title);
    supervise_lose(s, child, STATUS_INTERNAL,
                   "%s sent a message that is not permitted (kind %u, while %s): killed", title, message_kind,
                   states[child->state]);
}

static void expel(struct supervisor *s, struct child *child, const struct control_message *message)
{
    supervise_expel(s, child, message->kind);
}

static void mark_bound(struct supervisor *s, struct child *child, const struct control_message *message)
{
    child->bound = true;
    child->far_port = message->body_bytes >= sizeof message->body.bound ? message->body.bound.far_port : 0;
    generation_connect(&s->generation);
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
    if (generation_note_ready(&s->generation))
        service_notify("READY=1\nSTATUS=training with %u workers", s->generation.count);
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

/* The lead reports for all workers, any other worker for itself. */
static void keep_holdings(struct supervisor *s, struct child *child, const struct control_message *message)
{
    const uint32_t worker = message->body.status.worker;
    if (worker < s->generation.count &&
        (worker == child->start.worker || generation_is_lead(&s->generation, child)))
        s->generation.holdings[worker] = message->body.status;
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
    child_order(generation_lead(&s->generation), CONTROL_LOGGED, &logged, sizeof logged);
}

void supervise_order_save(struct supervisor *s)
{
    if (runlog_is_moved(s->config->log))
        child_order(generation_lead(&s->generation), CONTROL_SAVE, NULL, 0);
}

/* A record is acknowledged once its lines are in the logs; the lead is at most one record ahead. After one
 * record could not be logged, later ones are dropped: the log would have a gap. */
static void log_record(struct supervisor *s, struct child *child, const struct control_message *message)
{
    struct error error;
    if (!generation_is_lead(&s->generation, child) ||
        (message->kind == CONTROL_UPDATE && message->body.update.trainers > JOB_TRAINERS_MAX)) {
        expel(s, child, message);
        return;
    }
    if (s->log_failed)
        return;
    show_status(message);
    s->log_failed = runlog_record(s->config->log, message, s->generation.holdings, &error) != STATUS_OK;
    if (s->log_failed) {
        job_end_fail(&s->end, &s->generation, error.status, error.text);
        return;
    }
    run_watch_record(&s->watch, message);
    supervise_note_progress(s, message);
    s->records++;
    supervise_tell_place(s);
}

/* The checkpoint that supervise_order_save asked for is visible. */
static void continue_logs(struct supervisor *s, struct child *child, const struct control_message *message)
{
    struct error error;
    if (!generation_is_lead(&s->generation, child))
        expel(s, child, message);
    else if (runlog_continue(s->config->log, &message->body.saved.place, &error) != STATUS_OK)
        log_error("%s; the lines go on into the old file", error.text);
    else
        supervise_tell_place(s);
}

static void finish_job(struct supervisor *s, struct child *child, const struct control_message *message)
{
    char why[80];
    if (!generation_is_lead(&s->generation, child)) {
        expel(s, child, message);
        return;
    }
    s->end.result = message->body.finished;
    if (s->end.result.end > CONTROL_END_STOPPED)
        s->end.result.end = CONTROL_END_STOPPED;
    if (s->generation.drains && s->end.stops == 0 && s->end.result.end == CONTROL_END_STOPPED) {
        snprintf(why, sizeof why, "the number of %s changes with the hosts", growth_unit(&s->generation, 0));
        generation_plan_next(&s->generation, NULL, monotime_now(), why);
        return;
    }
    s->end.finished = true;
    if (!s->generation.was_ready) /* systemd waits for READY, and takes of one message the last state alone */
        service_notify("READY=1");
    service_notify("STOPPING=1");
    job_end_close(&s->end, &s->generation);
}

/* ---- deadlines ---- */

/* A starting worker gets more time: it loads libraries and connects to servers, perhaps as one of a thousand
 * workers. */
uint64_t supervise_silence_us_max(const struct supervisor *s, const struct child *child)
{
    enum { START_US = 30000000 };
    uint64_t hang_us = (uint64_t)(s->config->job->supervise.hang_s * 1e6);
    return child->state == CHILD_STARTING ? hang_us + START_US : hang_us;
}

static void kill_silent(struct supervisor *s, struct child *child, const struct control_message *message)
{
    char title[CHILD_TITLE_BYTES], place[CHILD_PLACE_BYTES];
    (void)message;
    child_title(child, title);
    child_place(child, place);
    supervise_lose(s, child, STATUS_INTERNAL, "%s sent no heartbeat for %g s%s%s: killed", title,
                   (double)supervise_silence_us_max(s, child) / 1e6, place[0] != '\0' ? "," : "", place);
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

static void keep_profile(struct supervisor *s, struct child *child, const struct control_message *message)
{
    worker_profiles_keep(&s->profiles, child, &message->body.profile);
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
