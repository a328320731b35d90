/* Decides what follows when a worker is dead, or must die:
 *
 *     event                                what follows
 *     ------------------------------------ -------------------------------------------------------------
 *     the job is over already              a warning
 *     a replaceable worker dies            a successor takes its place
 *     any other worker dies                all start again, from the newest checkpoint
 *     the failure may not be survived,     the job ends with the worker's status
 *     or would come again
 *
 * A failure may not be survived when the job is ending, or when /supervise/restart is false. It would come
 * again in these cases: the worker's last words name the machine, the data or the job; the worker has died
 * DEATHS_MAX times in a row; DEATHS_MAX generations in a row have ended with the same last words and brought
 * nothing new (a loss that is no number, say).
 *
 * Follow-on failure: a worker exited because a peer died, and the peer's own exit has not been reaped yet.
 * After it, all other starts wait CAUSE_US: the failure that caused it may end the job.
 *
 * Supervisor process; its only thread; no lock. */
#include "daemon/supervise/growth.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static bool is_follow_on(const struct child *child)
{
    return child->last_words.status == STATUS_PEER_DIED || child->last_words.status == STATUS_SHUTDOWN;
}

static void fail_because_of(struct supervisor *s, const struct child *child, enum status status,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));
static void fail_because_of(struct supervisor *s, const struct child *child, enum status status,
                            const char *format, ...)
{
    char why[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    job_end_fail_by_worker(&s->end, &s->generation, status, why, is_follow_on(child));
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

/* If the cause of a follow-on failure ends the generation, the worker needs no successor. */
static void plan_successor(struct child *child, const char *why)
{
    const uint64_t wait_us = is_follow_on(child) ? CAUSE_US : 0;
    plan_start(child, monotime_add_us(restart_time(child->deaths), wait_us), why);
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
    return s->config->job->supervise.restart && status == STATUS_INTERNAL && !s->end.closing &&
           !s->end.hurried && (s->end.stops == 0 || generation_can_replace(&s->generation, child));
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
    if (is_follow_on(child)) {
        plan_start(child, monotime_add_us(monotime_now(), CAUSE_US), why);
        return;
    }
    note_words(&s->tally, child);
    if (s->tally.alike >= DEATHS_MAX)
        fail_because_of(s, child, STATUS_INTERNAL,
                        "%.32s failed %u times in a row in the same way without an episode or update that is "
                        "new: %.300s",
                        child->name, s->tally.alike, why);
    else
        plan_next_generation(s, child, why);
}

void supervise_lose(struct supervisor *s, struct child *child, enum status status, const char *format, ...)
{
    char why[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    child_kill(child);
    if (s->end.finished && !job_end_has_failed(&s->end))
        log_warning("%s: the job is over, and nothing is lost", why);
    else if (!is_survivable(s, child, status))
        fail_because_of(s, child, status, "%s", why);
    else if (++child->deaths >= DEATHS_MAX)
        fail_because_of(s, child, STATUS_INTERNAL,
                        "%.32s died %u times in a row without an episode or update between: %.350s",
                        child->name, child->deaths, why);
    else if (generation_can_replace(&s->generation, child))
        plan_successor(child, why);
    else if (s->tally.fruitless >= FRUITLESS_MAX)
        fail_because_of(s, child, STATUS_INTERNAL,
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
    child->state = CHILD_GONE;
    close(child->fd);
    child->fd = -1;
    job_end_leave_next(&s->end, &s->generation);
}

/* A worker on another host has failed in a way that would come again there. That host cannot run workers; the
 * job can, until the leader's host fails in that way too. */
static void doubt_host(struct supervisor *s, uint16_t host, const char *why)
{
    char text[200];
    if (!hosts_doubt(&s->hosts, host, why))
        return;
    snprintf(text, sizeof text, "this host cannot run workers: %.160s", why);
    growth_take_away(&s->generation, host, "cannot run workers", job_end_has_begun(&s->end));
    hosts_release(&s->hosts, host, status_exit_code(STATUS_UNAVAILABLE), text);
}

/* A worker that did not leave in order no longer holds its references and contexts. */
void exit_unasked(struct supervisor *s, struct child *child, const struct control_message *message)
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
    supervise_lose(s, child, status, "%s", why);
    if (child->replaced)
        child->state = CHILD_WAITING;
}

/* A worker that fails after it was told to leave changes the job's outcome only if that is a follow-on
 * failure and this worker its cause. */
void exit_asked(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    char why[ERROR_TEXT_BYTES];
    format_exit(child, why);
    bury(s, child);
    if (child->last_words.status == STATUS_OK)
        return;
    if (s->end.is_follow_on && !is_follow_on(child))
        fail_because_of(s, child, status_of_exit(child), "%s", why);
    else
        log_warning("%s", why);
}

/* What follows was decided when the worker was killed. */
void exit_killed(struct supervisor *s, struct child *child, const struct control_message *message)
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

/* No cause has come. An order to stop has perhaps: then no generation begins. */
static void end_wait_for_cause(struct supervisor *s, const struct child *child)
{
    if (s->end.stops > 0)
        job_end_close(&s->end, &s->generation);
    else
        plan_next_generation(s, child, child->reason);
}

static enum status log_restart(struct supervisor *s, const struct child *child, uint32_t incarnation,
                               struct error *error)
{
    const struct line_restart line = {.role = role_by_wire(child->start.role)->name,
                                      .worker = child->start.worker,
                                      .incarnation = incarnation,
                                      .reason = child->reason};
    runlog_clear_progress(s->config->log);
    run_watch_mark(&s->watch, child->reason);
    log_warning("%s; incarnation %u takes its place", child->reason, incarnation);
    return runlog_restart(s->config->log, &line, error);
}

/* A fork that fails counts as a death: it is tried again. */
static void restart_worker(struct supervisor *s, struct child *child)
{
    struct error error = {0};
    struct control_start start = child->start;
    start.incarnation++;
    if (log_restart(s, child, start.incarnation, &error) != STATUS_OK) {
        s->log_failed = true;
        job_end_fail(&s->end, &s->generation, error.status, error.text);
        return;
    }
    if (generation_start(&s->generation, child, &start, &error) != STATUS_OK) {
        child_kill(child);
        supervise_lose(s, child, STATUS_INTERNAL, "%s", error.text);
        if (child->state == CHILD_GONE && child->replaced)
            child->state = CHILD_WAITING;
    }
    generation_connect(&s->generation);
}

void restart_due(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    if (generation_can_replace(&s->generation, child))
        restart_worker(s, child);
    else
        end_wait_for_cause(s, child);
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

void supervise_note_progress(struct supervisor *s, const struct control_message *record)
{
    struct generation *g = &s->generation;
    for (unsigned i = 0; i < g->count; i++)
        if (took_part(s, &g->children[i], record))
            g->children[i].deaths = 0;
    if (generation_advance(g, record->kind == CONTROL_EPOCH ? 0 : control_record_number(record)))
        s->tally.fruitless = s->tally.alike = 0;
}
