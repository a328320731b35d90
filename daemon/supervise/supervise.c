/* Runs a job: starts its workers, waits for signals, messages and deadlines, acts on each, and ends the job.
 *
 * The file reads from the bottom up: the loop, the events of signals, deadlines and other hosts, the reaction
 * to each event of a worker (one table), and what follows when a worker is dead, or must die:
 *
 *     event                                what follows
 *     ------------------------------------ -------------------------------------------------------------
 *     the job is over already              a warning
 *     a replaceable worker dies            a successor takes its place
 *     any other worker dies                all start again, from the newest checkpoint
 *     the job cannot outlive the failure,  the job ends with the worker's status
 *     or would come again
 *
 * A job cannot outlive a failure when the job is ending, or when /supervise/restart is false. It would come
 * again in these cases: the worker's last words name the machine, the data or the job; the worker has died
 * DEATHS_MAX times in a row; DEATHS_MAX generations in a row have ended with the same last words and brought
 * nothing new (a loss that is no number, say).
 *
 * After a follow-on failure the worker's start waits CAUSE_US: the failure that caused it may end the job.
 *
 * Supervisor process; its only thread; no lock. */
#include "daemon/supervise/supervise.h"

#include "daemon/process/service.h"
#include "daemon/supervise/generation.h"
#include "daemon/supervise/run_view.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
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

/* What can happen to a worker: a message of it, by its kind (enum control_kind), or one of these. */
enum supervise_event {
    EVENT_SILENT = CONTROL_KINDS, /* no beat has come for too long */
    EVENT_LATE,                   /* it still lives past its time to leave */
    EVENT_EXITED,                 /* it is reaped; child->end says how it ended */
    EVENT_DUE,                    /* its successor is due to start */
    EVENTS
};

/* Failures in a row that brought no episode or update that is new. */
struct death_tally {
    unsigned fruitless; /* generations */
    unsigned alike;     /* failures that had the last words `words` */
    char words[ERROR_TEXT_BYTES];
};

struct supervisor {
    const struct supervise_config *config;
    struct hosts hosts;
    struct generation generation;
    struct death_tally tally;
    struct run_view view;
    bool stops_by_order;     /* of the page, and no signal has come since */
    struct monotime use_due; /* of the next sum of what the workers use */
    uint64_t records;        /* of this generation's lead that are in the logs */
    bool log_failed;         /* a record's line is missing: no later one may follow */
    int signal_fd;
    struct monotime wake_due; /* the latest time at which the last wait should have ended */
};

/* What an event sets off. `message`: NULL where the event is no message. */
typedef void reaction(struct supervisor *s, struct child *child, const struct control_message *message);

/* ---- deaths ---- */

enum {
    DEATHS_MAX = 5,
    FRUITLESS_MAX = 20, /* generations; with their delays some eight minutes */
    CAUSE_US = 200000,
};

/* The job's status after this worker's exit. A worker's own status stands if it names the machine or the
 * data. STATUS_INVALID before READY means a bad job file; after READY it may come from a peer, so it counts
 * as INTERNAL. */
static enum status status_of_exit(const struct child *child)
{
    switch (child->last_words.status) {
    case STATUS_INVALID:
        return child->opened ? STATUS_INTERNAL : STATUS_INVALID;
    case STATUS_UNAVAILABLE:
    case STATUS_IO:
    case STATUS_CORRUPT:
    case STATUS_NOT_FOUND:
    case STATUS_PERMISSION:
        return child->last_words.status;
    default:
        return STATUS_INTERNAL;
    }
}

/* ---- planning what starts again ---- */

/* The first start comes at once. As long as no episode or update comes between, later ones come 0.5 s after
 * the death, 1 s after it, then 2 s, up to 30 s. */
static struct monotime restart_time(unsigned fruitless)
{
    enum { FIRST_US = 500000, LONGEST_US = 30000000, DOUBLINGS_MAX = 6 };
    const unsigned doublings = fruitless < 2 + DOUBLINGS_MAX ? fruitless - 2 : DOUBLINGS_MAX;
    const uint64_t delay_us = fruitless < 2 ? 0 : (uint64_t)FIRST_US << doublings;
    return monotime_add_us(monotime_now(), delay_us < LONGEST_US ? delay_us : LONGEST_US);
}

static void plan_start(struct child *child, struct monotime due, const char *why)
{
    child->replaced = true;
    child->restart_at = due;
    snprintf(child->reason, sizeof child->reason, "%s", why);
}

static void plan_next_generation(struct supervisor *s, const struct child *cause, const char *why)
{
    generation_plan_next(&s->generation, cause, restart_time(++s->tally.fruitless), why);
}

/* ---- what follows a death ---- */

/* Whether the job can go on after this death. After an order to stop, only the running round is finished: a
 * successor can take part in the round, but no new generation begins. */
static bool is_survivable(const struct supervisor *s, const struct child *child, enum status status)
{
    return s->config->job->supervise.restart && status == STATUS_INTERNAL && !s->generation.end.closing &&
           !s->generation.end.hurried &&
           (s->generation.end.stops == 0 || generation_can_replace(&s->generation, child));
}

/* Counts failures that end a generation with the same last words. A worker that is killed has none. */
static void note_words(struct death_tally *tally, const struct child *child)
{
    const char *words = child->last_words.status == STATUS_OK ? "" : child->last_words.text;
    if (words[0] == '\0' || strcmp(words, tally->words) != 0)
        tally->alike = 0;
    if (words[0] != '\0')
        tally->alike++;
    snprintf(tally->words, sizeof tally->words, "%s", words);
}

/* The death of a worker without which the others cannot go on. */
static void lose_generation(struct supervisor *s, struct child *child, const char *why)
{
    if (child_is_follow_on(child)) {
        plan_start(child, monotime_add_us(monotime_now(), CAUSE_US), why);
        return;
    }
    note_words(&s->tally, child);
    if (s->tally.alike >= DEATHS_MAX)
        generation_fail(&s->generation, child, STATUS_INTERNAL,
                        "%.32s failed %u times in a row in the same way without an episode or update that is "
                        "new: %.300s",
                        child->name, s->tally.alike, why);
    else
        plan_next_generation(s, child, why);
}

/* A worker died unasked, or must die: it is killed if it lives. Decides what follows: a successor, the next
 * generation, or the job's end with `status`. The format makes a sentence that names the worker. */
__attribute__((format(printf, 4, 5))) static void lose(struct supervisor *s, struct child *child,
                                                       enum status status, const char *format, ...)
{
    char why[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    child_kill(child);
    if (s->generation.end.finished && !job_end_has_failed(&s->generation.end))
        log_warning("%s: the job is over, and nothing is lost", why);
    else if (!is_survivable(s, child, status))
        generation_fail(&s->generation, child, status, "%s", why);
    else if (++child->deaths >= DEATHS_MAX)
        generation_fail(&s->generation, child, STATUS_INTERNAL,
                        "%.32s died %u times in a row without an episode or update between: %.350s",
                        child->name, child->deaths, why);
    else if (generation_can_replace(&s->generation, child))
        plan_start(child,
                   monotime_add_us(restart_time(child->deaths), child_is_follow_on(child) ? CAUSE_US : 0),
                   why);
    else if (s->tally.fruitless >= FRUITLESS_MAX)
        generation_fail(&s->generation, child, STATUS_INTERNAL,
                        "%u generations in a row brought no episode or update that is new: %.350s",
                        s->tally.fruitless, why);
    else
        lose_generation(s, child, why);
}

/* ---- exits ---- */

/* The worker's end and last words, as one sentence. */
static void format_exit(const struct child *child, char why[ERROR_TEXT_BYTES])
{
    const bool has_words = child->last_words.status != STATUS_OK;
    snprintf(why, ERROR_TEXT_BYTES, "%s%s%.230s", child->end, has_words ? ": " : "",
             has_words ? child->last_words.text : "");
}

static void bury(struct supervisor *s, struct child *child)
{
    child_bury(child);
    generation_leave_next(&s->generation);
}

/* A worker on another host has failed in a way that would come again there. The job goes on without
 * that host; the same failure on the leader's host ends the job. */
static void doubt_host(struct supervisor *s, uint16_t host, const char *why)
{
    char text[200];
    if (!hosts_doubt(&s->hosts, host, why))
        return;
    snprintf(text, sizeof text, "this host cannot run workers: %.160s", why);
    generation_shrink(&s->generation, host, "cannot run workers");
    hosts_release(&s->hosts, host, status_exit_code(STATUS_UNAVAILABLE), text);
}

/* A worker that did not leave in order no longer holds its references and contexts. */
static void exit_unasked(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    char why[ERROR_TEXT_BYTES];
    format_exit(child, why);
    s->generation.holdings[child->start.worker] = (struct control_status){0};
    bury(s, child);
    generation_tell_death(&s->generation, child);
    enum status status = status_of_exit(child);
    if (child->relay != NULL && status != STATUS_INTERNAL) {
        doubt_host(s, child->host, why);
        status = STATUS_INTERNAL;
    }
    lose(s, child, status, "%s", why);
    if (child->replaced)
        child->state = CHILD_WAITING;
}

/* A worker failed after it was told to leave. The job's outcome changes only if the outcome is a follow-on
 * failure and this one is not. */
static void exit_asked(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    char why[ERROR_TEXT_BYTES];
    format_exit(child, why);
    bury(s, child);
    if (child->last_words.status == STATUS_OK)
        return;
    if (s->generation.end.is_follow_on && !child_is_follow_on(child))
        generation_fail(&s->generation, child, status_of_exit(child), "%s", why);
    else
        log_warning("%s", why);
}

/* What follows was decided when the worker was killed. */
static void exit_killed(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    s->generation.holdings[child->start.worker] = (struct control_status){0};
    bury(s, child);
    if (!child->replaced)
        return;
    generation_tell_death(&s->generation, child);
    child->state = CHILD_WAITING;
}

/* ---- the time to start again ---- */

/* A fork that fails counts as a death: it is tried again. */
static void restart_worker(struct supervisor *s, struct child *child)
{
    struct error error = {0};
    struct control_start start = child->start;
    const struct line_restart line = {.role = role_by_wire(start.role)->name,
                                      .worker = start.worker,
                                      .incarnation = ++start.incarnation,
                                      .reason = child->reason};
    runlog_clear_progress(s->config->log);
    log_warning("%s; incarnation %u takes its place", child->reason, start.incarnation);
    if (runlog_restart(s->config->log, &line, &error) != STATUS_OK) {
        s->log_failed = true;
        generation_fail(&s->generation, NULL, error.status, "%s", error.text);
        return;
    }
    if (generation_start(&s->generation, child, &start, &error) != STATUS_OK) {
        lose(s, child, STATUS_INTERNAL, "%s", error.text);
        if (child->state == CHILD_GONE && child->replaced)
            child->state = CHILD_WAITING;
    }
    generation_connect(&s->generation);
}

/* A restart is due. A replaceable worker starts again. Another waited for the cause of its failure, and none
 * came: the next generation begins, unless the job was told to stop. */
static void restart_due(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    if (generation_can_replace(&s->generation, child))
        restart_worker(s, child);
    else if (s->generation.end.stops > 0)
        generation_leave(&s->generation);
    else
        plan_next_generation(s, child, child->reason);
}

/* ---- progress ---- */

/* Whether the worker took part. An update of a parameter server has no loss of a trainer that did not. */
static bool took_part(const struct supervisor *s, const struct child *child,
                      const struct control_message *record)
{
    const unsigned trainer = child->start.worker - s->generation.roster.servers;
    const bool names_trainers =
        record->kind == CONTROL_UPDATE && s->config->job->kind == JOB_PARAMETER_SERVER;
    return !names_trainers || child->start.worker < s->generation.roster.servers ||
           (trainer < record->body.update.trainers && !isnan(record->body.update.losses[trainer]));
}

static void note_progress(struct supervisor *s, const struct control_message *record)
{
    struct generation *g = &s->generation;
    for (unsigned i = 0; i < g->count; i++)
        if (took_part(s, &g->children[i], record))
            g->children[i].deaths = 0;
    if (generation_note_record(g, record->kind == CONTROL_EPOCH ? 0 : control_record_number(record)))
        s->tally.fruitless = s->tally.alike = 0;
}

/* ---- messages ---- */

/* Kills a worker that sent a message which its state does not permit. */
static void expel(struct supervisor *s, struct child *child, const struct control_message *message)
{
    char title[CHILD_TITLE_BYTES];
    child_title(child, title);
    lose(s, child, STATUS_INTERNAL, "%s sent a message that is not permitted (kind %u, while %s): killed",
         title, message->kind, child_states[child->state]);
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

static void show_status(const struct supervisor *s)
{
    char text[PROGRESS_TEXT_BYTES];
    progress_text(text, runlog_progress(s->config->log), PROGRESS_TEXT_BYTES);
    service_notify("STATUS=%s", text);
}

/* Shows how far an evaluation has come, as the sum of the workers' parts. */
static void show_evaluation(const struct supervisor *s)
{
    struct control_share sum = {0};
    for (unsigned i = 0; i < s->generation.count; i++) {
        sum.done += s->generation.children[i].use.now.evaluation.done;
        sum.total += s->generation.children[i].use.now.evaluation.total;
    }
    runlog_evaluating(s->config->log, sum);
    show_status(s);
}

static void keep_beat(struct supervisor *s, struct child *child, const struct control_message *message)
{
    const struct control_beat *beat = &message->body.beat;
    const struct control_share before = child->use.now.evaluation;
    child->last_beat = monotime_now();
    runlog_redraw(s->config->log);
    if (message->body_bytes < sizeof *beat)
        return;
    child_note_use(child, beat, child->last_beat);
    if (beat->evaluation.done != before.done || beat->evaluation.total != before.total)
        show_evaluation(s);
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

static void tell_place(struct supervisor *s)
{
    struct control_logged logged = {.records = s->records};
    runlog_place(s->config->log, &logged.place);
    child_order(generation_lead(&s->generation), CONTROL_LOGGED, &logged, sizeof logged);
}

static void order_save_if_rotated(struct supervisor *s)
{
    if (runlog_is_moved(s->config->log))
        child_order(generation_lead(&s->generation), CONTROL_SAVE, NULL, 0);
}

/* Sums the workers' newest beats up, once a second. */
static void note_use(struct supervisor *s)
{
    enum { SPAN_US = 1000000 };
    struct run_use use = {0};
    const struct monotime now = monotime_now();
    if (monotime_before(now, s->use_due))
        return;
    s->use_due = monotime_add_us(now, SPAN_US);
    for (unsigned i = 0; i < s->generation.count; i++) {
        const struct child_use *one = &s->generation.children[i].use;
        use.cores += one->cores;
        use.resident_bytes += one->now.resident_bytes;
        use.queue += one->now.queue;
    }
    if (use.cores > 0) /* the first beats have come */
        runlog_note_use(s->config->log, &use);
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
    if (progress_evaluates(runlog_progress(s->config->log))) /* its last beats may be older than its end */
        for (unsigned i = 0; i < s->generation.count; i++)
            s->generation.children[i].use.now.evaluation = (struct control_share){0};
    s->log_failed = runlog_record(s->config->log, message, s->generation.holdings, &error) != STATUS_OK;
    if (s->log_failed) {
        generation_fail(&s->generation, NULL, error.status, "%s", error.text);
        return;
    }
    show_status(s);
    note_use(s);
    run_view_record(&s->view, message);
    note_progress(s, message);
    s->records++;
    tell_place(s);
}

/* A checkpoint is visible, ordered or not. Logs that were renamed go on in new files. */
static void continue_logs(struct supervisor *s, struct child *child, const struct control_message *message)
{
    struct error error;
    if (!generation_is_lead(&s->generation, child))
        expel(s, child, message);
    else if (runlog_continue(s->config->log, &message->body.saved.place, &error) != STATUS_OK)
        log_error("%s; the lines go on into the old file", error.text);
    else
        tell_place(s);
}

static void finish_job(struct supervisor *s, struct child *child, const struct control_message *message)
{
    char why[80];
    if (!generation_is_lead(&s->generation, child)) {
        expel(s, child, message);
        return;
    }
    s->generation.end.result = message->body.finished;
    if (s->generation.end.result.end > CONTROL_END_STOPPED)
        s->generation.end.result.end = CONTROL_END_STOPPED;
    if (s->generation.drains && s->generation.end.stops == 0 &&
        s->generation.end.result.end == CONTROL_END_STOPPED) {
        snprintf(why, sizeof why, "the number of %s changes with the hosts",
                 generation_unit(&s->generation, 0));
        generation_plan_next(&s->generation, NULL, monotime_now(), why);
        return;
    }
    s->generation.end.finished = true;
    if (!s->generation.was_ready) /* systemd waits for READY, and takes of one message the last state alone */
        service_notify("READY=1");
    service_notify("STOPPING=1");
    generation_leave(&s->generation);
}

/* ---- deadlines ---- */

/* A starting worker gets more time: it loads libraries and connects to servers, perhaps as one of a thousand
 * workers. */
static uint64_t silence_us_max(const struct supervisor *s, const struct child *child)
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
    lose(s, child, STATUS_INTERNAL, "%s sent no heartbeat for %g s%s%s: killed", title,
         (double)silence_us_max(s, child) / 1e6, place[0] != '\0' ? "," : "", place);
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
    run_view_keep_profile(&s->view, child, &message->body.profile);
}

/* ---- the table ---- */

static void ignore(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)s;
    (void)child;
    (void)message;
}

/* clang-format off */
static reaction *const reactions[EVENTS][CHILD_STATES] = {
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

/* Orders have no row: a worker that sends one is expelled. */
static void react(struct supervisor *s, struct child *child, unsigned event,
                  const struct control_message *message)
{
    reaction *what_follows = reactions[event][child->state];
    if (what_follows == NULL)
        what_follows = message != NULL && child_is_heard(child) ? expel : ignore;
    what_follows(s, child, message);
}

/* ---- generations ---- */

static enum status start_all(struct supervisor *s, struct error *error)
{
    const enum status status = generation_start_all(&s->generation, error);
    if (status != STATUS_OK)
        return status;
    s->records = 0;
    tell_place(s);
    order_save_if_rotated(s);
    return STATUS_OK;
}

/* Goes back to the newest checkpoint, and says why. */
static enum status begin_next_generation(struct supervisor *s, struct error *error)
{
    struct generation *g = &s->generation;
    const bool is_resize = g->next.is_resize;
    const struct control_start cause = g->children[g->next.worker].start;
    generation_begin_next(g);
    runlog_clear_progress(s->config->log);
    if (is_resize)
        log_info("the job goes on with %u %s", g->roster.clients, generation_unit(g, g->roster.clients));
    else
        log_warning("%s; all workers start again", g->next.reason);
    const struct line_restart line = {.role = is_resize ? NULL : role_by_wire(cause.role)->name,
                                      .worker = cause.worker,
                                      .incarnation = cause.incarnation,
                                      .generation = g->number,
                                      .reason = g->next.reason};
    return generation_go_back(g, &line, error);
}

/* A fork that fails counts as another death of the worker that is the cause: it is tried again. */
static struct monotime start_planned_generation(struct supervisor *s, struct monotime now)
{
    struct error error = {0};
    const struct monotime due = generation_next_due(&s->generation);
    if (monotime_before(now, due))
        return due;
    if (begin_next_generation(s, &error) != STATUS_OK)
        generation_fail(&s->generation, NULL, error.status, "%s", error.text);
    else if (start_all(s, &error) != STATUS_OK)
        lose(s, &s->generation.children[s->generation.next.worker], STATUS_INTERNAL, "%s", error.text);
    return MONOTIME_NEVER;
}

/* ---- messages and exits of workers ---- */

/* Handles at most `most` waiting messages of the worker. */
static void read_messages(struct supervisor *s, struct child *child, unsigned most)
{
    static struct control_message message; /* too large for a stack; one thread */
    enum status status;
    while (most-- > 0 && (status = child_receive(child, &message)) != STATUS_AGAIN) {
        if (status == STATUS_OK)
            react(s, child, message.kind, &message);
        else
            expel(s, child, &message);
    }
}

/* Handles each worker's exit, after the messages that its line still holds. */
static void reap_children(struct supervisor *s, bool wait)
{
    for (unsigned i = 0; i < s->generation.count; i++) {
        struct child *child = &s->generation.children[i];
        if (!child_reap(child, wait))
            continue;
        read_messages(s, child, LINE_MESSAGES_MAX);
        react(s, child, EVENT_EXITED, NULL);
    }
}

/* ---- events of other hosts ---- */

/* Each live worker of the host counts as exited. Workers that can be replaced start again on another host. */
static void lose_host(struct supervisor *s, uint16_t host, const char *why)
{
    struct generation *g = &s->generation;
    runlog_clear_progress(s->config->log);
    log_warning("host %u (%s) is lost: %s", host, hosts_name(&s->hosts, host), why);
    for (unsigned i = 0; i < g->count; i++) {
        struct child *child = &g->children[i];
        if (child->host != host || !child_lives(child))
            continue;
        snprintf(child->end, sizeof child->end, "%s is lost: %.120s", child->name, why);
        child->deaths = 0; /* the host's fault, not the worker's */
        react(s, child, EVENT_EXITED, NULL);
    }
    generation_shrink(g, host, "is lost");
}

/* A host departs: its workers start elsewhere. When the job is ending anyway, they leave with all others. */
static void clear_host(struct supervisor *s, uint16_t host)
{
    struct generation *g = &s->generation;
    if (s->generation.end.stops > 0 || s->generation.end.closing)
        return;
    log_info("host %u (%s) departs: its workers start elsewhere", host, hosts_name(&s->hosts, host));
    for (unsigned i = 0; i < g->count; i++) {
        struct child *child = &g->children[i];
        if (child->host != host || !child_is_heard(child))
            continue;
        child->deaths = 0;
        lose(s, child, STATUS_INTERNAL, "%s ends: its host departs", child->name);
    }
    generation_shrink(g, host, "departs");
}

/* Kills clients elsewhere, whose successors start on this host: its share of the workers. */
static void move_share_to(struct supervisor *s, uint16_t host)
{
    const struct placement placement = generation_placement(&s->generation);
    struct child *child;
    uint32_t count = placement_fair_share(&placement, host);
    while (count-- > 0 && (child = placement_choose_mover(&placement, host)) != NULL) {
        child->moves_to = host;
        child->deaths = 0;
        lose(s, child, STATUS_INTERNAL, "%s moves to host %u (%.40s)", child->name, host,
             hosts_name(&s->hosts, host));
    }
}

/* A host that brings workers makes a running job grow. A host that the job began with gets its share of the
 * workers. */
static void answer_join(struct supervisor *s, uint16_t host, const struct control_join *join)
{
    char why[160];
    struct error error = {0};
    if (job_end_has_begun(&s->generation.end))
        error_set(&error, STATUS_SHUTDOWN, "the job is ending");
    else if (join->brings > 0)
        generation_check_growth(&s->generation, join->role, join->brings, &error);
    if (error.status != STATUS_OK) {
        hosts_refuse(&s->hosts, host, error.status, error.text);
        return;
    }
    runlog_clear_progress(s->config->log);
    hosts_admit(&s->hosts, host, join);
    snprintf(why, sizeof why, "host %u (%.60s) brings %u %s", host, hosts_name(&s->hosts, host), join->brings,
             generation_unit(&s->generation, join->brings));
    if (join->brings > 0)
        generation_resize(&s->generation, why);
    else if (!s->hosts.awaited && s->config->job->supervise.restart)
        move_share_to(s, host);
}

/* Takes a message of a worker, under the incarnation that runs there now. A late one of a predecessor is
 * dropped. */
static void hear_worker(struct supervisor *s, const struct control_relay *head,
                        const struct control_message *message)
{
    struct child *child = head->worker < s->generation.count ? &s->generation.children[head->worker] : NULL;
    if (child == NULL || !child_lives(child) || child->host != head->host ||
        child->start.incarnation != head->incarnation || child->start.generation != head->generation)
        return;
    if (message->kind == CONTROL_EXITED) {
        snprintf(child->end, sizeof child->end, "%.*s, on host %u (%.40s)",
                 (int)sizeof message->body.exited.end - 80, message->body.exited.end, child->host,
                 hosts_name(&s->hosts, child->host));
        react(s, child, EVENT_EXITED, NULL);
    } else if (child_is_heard(child)) {
        react(s, child, message->kind, message);
    }
}

/* Starts the first generation. */
static void start_job(struct supervisor *s)
{
    struct error error = {0};
    if (start_all(s, &error) != STATUS_OK)
        generation_fail(&s->generation, NULL, error.status, "%s", error.text);
}

static void obey_host_event(struct supervisor *s, const struct host_event *event)
{
    switch (event->kind) {
    case HOST_NOTHING:
        break;
    case HOSTS_READY:
        start_job(s);
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

static struct monotime check_hosts(struct supervisor *s, struct monotime now)
{
    struct host_event event;
    while (hosts_check(&s->hosts, now, &event))
        obey_host_event(s, &event);
    const struct placement placement = generation_placement(&s->generation);
    for (uint16_t i = 1; i < hosts_count(&s->hosts); i++)
        if (hosts_is_clearing(&s->hosts, i) && placement_load(&placement, i) == 0)
            hosts_release(&s->hosts, i, 0, "this host has left the job");
    return hosts_due(&s->hosts);
}

/* ---- signals ---- */

/* The first signal asks for an orderly end, the second for a quick one, the third kills. */
static void stop_job(struct supervisor *s)
{
    s->generation.end.stops++;
    runlog_clear_progress(s->config->log);
    if (s->generation.end.stops == 1) {
        log_info("stopping: the running round is finished first; a second signal hurries");
        service_notify("STOPPING=1\nSTATUS=finishing the round");
        if (s->generation.next.is_planned) /* no round is running */
            generation_leave(&s->generation);
        child_order(generation_lead(&s->generation), CONTROL_DRAIN, NULL, 0);
    } else if (s->generation.end.stops == 2) {
        log_info("hurrying: the running round is given up");
        generation_hurry(&s->generation);
    } else {
        s->generation.end.kill_at = monotime_now();
    }
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
        char *rest = problems;
        for (const char *line; rest != NULL && (line = strsep(&rest, "\n")) != NULL;)
            if (line[0] != '\0')
                log_error("%s", line);
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
            if (s->stops_by_order)
                log_info("stopping already, by an order of the page; a second signal hurries");
            else
                stop_job(s);
            s->stops_by_order = false;
            break;
        case SIGHUP:
            reload_job(s);
            break;
        case SIGUSR1:
            order_save_if_rotated(s);
            break;
        }
    }
    return child_exited;
}

/* Orders of the page's readers. */
static void obey_orders(struct supervisor *s)
{
    enum http_order order;
    while (run_view_take_order(&s->view, &order)) {
        runlog_clear_progress(s->config->log);
        log_info("an order by the page: %s", order == HTTP_STOP ? "stop" : "take a checkpoint");
        if (order == HTTP_CHECKPOINT) {
            child_order(generation_lead(&s->generation), CONTROL_SAVE, NULL, 0);
        } else if (s->generation.end.stops == 0) {
            stop_job(s);
            s->stops_by_order = true;
        }
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

/* Does what is due for this worker; returns its next deadline. */
static struct monotime check_child(struct supervisor *s, struct child *child, struct monotime now)
{
    const bool waits = child->state == CHILD_WAITING;
    struct monotime due =
        waits ? child->restart_at : monotime_add_us(child->last_beat, silence_us_max(s, child));
    if (child->state == CHILD_KILLED && child->relay != NULL)
        return check_killed_far(s, child, now);
    if (!waits && !child_is_heard(child))
        return MONOTIME_NEVER;
    if (!monotime_before(now, due))
        react(s, child, waits ? EVENT_DUE : EVENT_SILENT, NULL);
    if (!monotime_before(now, s->generation.end.kill_at))
        react(s, child, EVENT_LATE, NULL);
    return monotime_before(now, due) ? due : now;
}

/* Acts on every deadline that has come; returns the next one. */
static struct monotime check_deadlines(struct supervisor *s)
{
    struct monotime now = monotime_now(), next = service_watchdog(now);
    excuse_own_absence(s, now);
    next = monotime_earliest(next, check_hosts(s, now));
    next = monotime_earliest(next, run_view_check(&s->view, now));
    for (unsigned i = 0; i < s->generation.count; i++)
        next = monotime_earliest(next, check_child(s, &s->generation.children[i], now));
    next = monotime_earliest(next, start_planned_generation(s, now));
    return monotime_earliest(next, monotime_before(now, s->generation.end.kill_at) ? s->generation.end.kill_at
                                                                                   : MONOTIME_NEVER);
}

/* ---- the loop ---- */

static bool goes_on(const struct supervisor *s)
{
    return generation_goes_on(&s->generation) || (s->hosts.awaited && s->generation.end.stops == 0);
}

/* Fails the job and kills all workers at once: without poll the loop cannot go on. */
static void end_without_poll(struct supervisor *s, int errnum)
{
    generation_fail(&s->generation, NULL, STATUS_INTERNAL, "cannot wait for %u workers: %s",
                    s->generation.count, strerror(errnum));
    for (unsigned i = 0; i < s->generation.count; i++)
        child_kill(&s->generation.children[i]);
    reap_children(s, true);
}

static void wait_and_read(struct supervisor *s, struct monotime until)
{
    static struct pollfd waits[2 + RUN_VIEW_WAITS + ROSTER_WORKERS_MAX]; /* one thread */
    struct generation *g = &s->generation;
    struct pollfd *of_watch = &waits[2], *of_workers = &waits[2 + RUN_VIEW_WAITS];
    struct host_event event;
    waits[0] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    waits[1] = (struct pollfd){.fd = relay_fd(&s->hosts.relay), .events = POLLIN};
    run_view_waits(&s->view, of_watch);
    for (unsigned i = 0; i < g->count; i++)
        of_workers[i] = (struct pollfd){.fd = child_fd(&g->children[i]), .events = POLLIN};
    const int ready = poll(waits, 2 + RUN_VIEW_WAITS + g->count, monotime_poll_ms(monotime_now(), until));
    const int errnum = errno;
    s->wake_due = monotime_earliest(until, monotime_now());
    if (ready < 0 && errnum != EINTR)
        end_without_poll(s, errnum);
    if (ready <= 0)
        return;
    for (unsigned i = 0; i < g->count; i++)
        if (of_workers[i].revents != 0)
            read_messages(s, &g->children[i], MESSAGES_PER_TURN);
    for (unsigned i = 0; i < HOST_MESSAGES_PER_TURN && waits[1].revents != 0 && hosts_read(&s->hosts, &event);
         i++)
        obey_host_event(s, &event);
    run_view_serve(&s->view, of_watch);
    obey_orders(s);
    if ((waits[0].revents & POLLIN) && obey_signals(s))
        reap_children(s, false);
}

/* ---- the job's start and end ---- */

static const char *end_of(const struct supervisor *s)
{
    static const char *const ends[] = {[CONTROL_END_FINISHED] = "finished",
                                       [CONTROL_END_SOLVED] = "solved",
                                       [CONTROL_END_STOPPED] = "stopped"};
    return job_end_has_failed(&s->generation.end) ? "failed" : ends[s->generation.end.result.end];
}

static enum status log_end(struct supervisor *s, struct error *error)
{
    const struct job_end *end = &s->generation.end;
    return runlog_finish(s->config->log, end_of(s), job_end_has_failed(end) ? end->outcome.text : NULL,
                         &end->result, s->generation.holdings, error);
}

/* A run that could not begin has two lines. The log of a run that could not be resumed stays as it is. The
 * caller reports why the start failed; a warning adds only another reason. */
static void write_failed_start(struct supervisor *s)
{
    struct error error;
    if (s->config->dir->resumed || s->generation.holdings == NULL)
        return;
    if ((runlog_start(s->config->log, &error) != STATUS_OK || log_end(s, &error) != STATUS_OK) &&
        strcmp(error.text, s->generation.end.outcome.text) != 0)
        log_warning("%s", error.text);
}

/* Opens everything that the workers need, and goes back to the checkpoint of a run that is resumed. */
static enum status open_job(struct supervisor *s, struct error *error)
{
    const struct supervise_config *config = s->config;
    enum status status =
        generation_open(&s->generation, config->job, config->dir, config->log, &s->hosts, error);
    if (status == STATUS_OK) /* before the signals: until the hosts have met, a signal ends the process */
        status = hosts_open(&s->hosts, config->rendezvous, config->job, config->dir->real, error);
    if (status == STATUS_OK)
        status = signals_open(&s->signal_fd, error);
    if (status != STATUS_OK)
        return status;
    return config->dir->resumed ? generation_go_back(&s->generation, NULL, error)
                                : runlog_start(config->log, error);
}

/* Each death had its warning, perhaps days ago. Deaths that recur are summed up. */
static void sum_restarts_up(const struct generation *g)
{
    const struct child *worst = NULL;
    unsigned sum = 0;
    for (unsigned i = 0; i < g->count; i++) {
        const struct child *child = &g->children[i];
        sum += child->starts > 1 ? child->starts - 1 : 0;
        worst = worst == NULL || child->starts > worst->starts ? child : worst;
    }
    if (worst != NULL && worst->starts > 2)
        log_warning("workers were started again %u times in this run, %s most often: %u times", sum,
                    worst->name, worst->starts - 1);
}

static void run_job(struct supervisor *s)
{
    run_view_open(&s->view);
    s->wake_due = monotime_now();
    if (!s->hosts.awaited)
        start_job(s);
    while (goes_on(s)) {
        const struct monotime next = check_deadlines(s);
        if (goes_on(s))
            wait_and_read(s, next);
    }
}

enum status supervise(const struct supervise_config *config, struct error *error)
{
    struct supervisor s = {.config = config, .signal_fd = -1};
    run_view_init(&s.view, &s.generation, config->job->log.profile);
    enum status status = open_job(&s, error);
    if (status == STATUS_OK) {
        run_job(&s);
        status = log_end(&s, error);
        if (job_end_has_failed(&s.generation.end)) {
            *error = s.generation.end.outcome;
            status = error->status;
        }
        run_view_close(&s.view, end_of(&s), status != STATUS_OK ? error->text : "");
        run_view_write_profile(&s.view);
        sum_restarts_up(&s.generation);
    } else {
        error_set(&s.generation.end.outcome, status, "%s", error->text);
        write_failed_start(&s);
        run_view_close(&s.view, "failed", error->text);
    }
    hosts_close(&s.hosts, s.generation.end.outcome.status,
                job_end_has_failed(&s.generation.end) ? s.generation.end.outcome.text : "the job is over");
    if (s.signal_fd >= 0)
        close(s.signal_fd);
    generation_close(&s.generation);
    return status;
}
