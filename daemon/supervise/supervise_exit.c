/* A worker is dead, or must die: what follows. Supervisor process; its only thread; no lock.
 *
 *     the job is over already            nothing but a warning
 *     the worker is replaceable          a successor takes its place          supervise_restart.c
 *     any other worker                   all start again, from the newest checkpoint; after a follow-on
 *                                        failure a little later, for its cause may be one that ends the job
 *     the failure would come again, or   the job ends with the worker's status
 *     may not be survived
 *
 * A failure would come again when the worker's last words name the machine, the data or the job, when the
 * worker has died DEATHS_MAX times in a row, or when DEATHS_MAX generations in a row have ended with the same
 * last words and brought nothing that is new: a loss that is no number, say. It may not be survived when the
 * job is ending, or when /supervise/restart is false. */
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    DEATHS_MAX = 5,
    FRUITLESS_MAX = 20, /* generations; with their delays some eight minutes */
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

/* Follow-on failure: this worker exited because a peer did. The peer may be reaped later, for a worker that
 * fails says BYE to its peers before it exits. */
static bool is_follow_on(const struct child *child)
{
    return child->last_words.status == STATUS_PEER_DIED || child->last_words.status == STATUS_SHUTDOWN;
}

/* Fails the job because of this worker. A cause takes the place of a follow-on failure as the job's outcome.
 */
static void fail_because_of(struct supervisor *s, const struct child *child, enum status status,
                            const char *why)
{
    if (s->outcome.status == STATUS_OK) {
        s->outcome_is_follow_on = is_follow_on(child);
    } else if (s->outcome_is_follow_on && !is_follow_on(child)) {
        log_error("%s", s->outcome.text);
        s->outcome.status = STATUS_OK;
        s->outcome_is_follow_on = false;
    }
    supervise_fail(s, status, why);
}

/* ---- what follows a death ---- */

/* Whether the job can go on after this death. After an order to stop, only the running round is finished: a
 * successor can take part in the round, but no new generation begins. */
static bool is_survivable(const struct supervisor *s, const struct child *child, enum status status)
{
    const bool replaceable = child->start.worker >= s->roster.replaceable;
    return s->config->job->supervise.restart && status == STATUS_INTERNAL && !s->closing && !s->hurried &&
           (replaceable || s->stops == 0);
}

static void fail_after_deaths(struct supervisor *s, const struct child *child, const char *why)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%.32s died %u times in a row without an episode or update between: %.350s",
             child->name, child->deaths, why);
    fail_because_of(s, child, STATUS_INTERNAL, text);
}

/* A death that comes at the same place again and again. */
static void fail_after_generations(struct supervisor *s, const struct child *child, const char *why)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%u generations in a row brought no episode or update that is new: %.350s",
             s->regeneration.fruitless, why);
    fail_because_of(s, child, STATUS_INTERNAL, text);
}

/* Counts failures that end a generation with the same last words. A worker that is killed has none. */
static void note_words(struct regeneration *regeneration, const struct child *child)
{
    const char *words = child->last_words.status == STATUS_OK ? "" : child->last_words.text;
    if (words[0] == '\0' || strcmp(words, regeneration->words) != 0)
        regeneration->alike = 0;
    if (words[0] != '\0')
        regeneration->alike++;
    snprintf(regeneration->words, sizeof regeneration->words, "%s", words);
}

static void fail_after_words(struct supervisor *s, const struct child *child, const char *why)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(
        text, sizeof text,
        "%.32s failed %u times in a row in the same way without an episode or update that is new: %.300s",
        child->name, s->regeneration.alike, why);
    fail_because_of(s, child, STATUS_INTERNAL, text);
}

/* The death of a worker without which the others cannot go on. */
static void lose_generation(struct supervisor *s, struct child *child, const char *why)
{
    if (is_follow_on(child)) {
        supervise_await_cause(child, why);
        return;
    }
    note_words(&s->regeneration, child);
    if (s->regeneration.alike >= DEATHS_MAX)
        fail_after_words(s, child, why);
    else
        supervise_regenerate(s, child, why);
}

void supervise_lose(struct supervisor *s, struct child *child, enum status status, const char *why)
{
    child_kill(child);
    if (s->finished && s->outcome.status == STATUS_OK)
        log_warning("%s: the job is over, and nothing is lost", why);
    else if (!is_survivable(s, child, status))
        fail_because_of(s, child, status, why);
    else if (++child->deaths >= DEATHS_MAX)
        fail_after_deaths(s, child, why);
    else if (child->start.worker >= s->roster.replaceable)
        supervise_replace(child, is_follow_on(child), why);
    else if (s->regeneration.fruitless >= FRUITLESS_MAX)
        fail_after_generations(s, child, why);
    else
        lose_generation(s, child, why);
}

/* ---- exits ---- */

/* Tells the workers that the dead worker connected to: a bound ZeroMQ socket does not report that a peer is
 * gone. */
static void tell_dialed_workers(struct supervisor *s, const struct child *child)
{
    struct control_died died = {.worker = child->start.worker, .incarnation = child->start.incarnation};
    snprintf(died.text, sizeof died.text, "%.190s", child->end);
    for (unsigned i = 0; i < roster_dialed(&s->roster, child->start.worker); i++)
        child_order(&s->children[i], CONTROL_DIED, &died, sizeof died);
}

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
    supervise_leave_next(s);
}

/* A worker that did not leave in order no longer holds its references and contexts. */
void exit_unasked(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    char why[ERROR_TEXT_BYTES];
    format_exit(child, why);
    s->holdings[child->start.worker] = (struct control_status){0};
    bury(s, child);
    tell_dialed_workers(s, child);
    enum status status = status_of_exit(child);
    if (child->relay != NULL &&
        status != STATUS_INTERNAL) { /* that host's fault, until the leader fails, too */
        supervise_doubt_host(s, child->host, why);
        status = STATUS_INTERNAL;
    }
    supervise_lose(s, child, status, why);
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
    if (s->outcome_is_follow_on && !is_follow_on(child))
        fail_because_of(s, child, status_of_exit(child), why);
    else
        log_warning("%s", why);
}

/* What follows was decided when the worker was killed. */
void exit_killed(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    s->holdings[child->start.worker] = (struct control_status){0};
    bury(s, child);
    if (!child->replaced)
        return;
    tell_dialed_workers(s, child);
    child->state = CHILD_WAITING;
}
