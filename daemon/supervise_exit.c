/* The reaction to a worker's exit: the job's outcome, and the other workers that are told. Every exit without
 * an order fails the job. Supervisor process; its only thread; no lock. */
#include "daemon/supervise_internal.h"
#include "kernels/base/log.h"

#include <stdio.h>
#include <unistd.h>

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

/* Tells the workers that the dead worker connected to: a bound ZeroMQ socket does not report that a peer is
 * gone. */
static void tell_dialed_workers(struct supervisor *s, const struct child *child, const char *exit_text)
{
    struct control_died died = {.worker = child->start.worker};
    snprintf(died.text, sizeof died.text, "%.190s", exit_text);
    for (unsigned i = 0; i < roster_dialed(&s->roster, child->start.worker); i++)
        child_order(&s->children[i], CONTROL_DIED, &died, sizeof died);
}

/* A worker that fails after it was told to leave changes the job's outcome only if that is a follow-on
 * failure and this worker its cause. */
static void note_exit_asked(struct supervisor *s, const struct child *child, const char *why)
{
    if (child->last_words.status == STATUS_OK)
        return;
    if (s->outcome_is_follow_on && !is_follow_on(child))
        fail_because_of(s, child, status_of_exit(child), why);
    else
        log_warning("%s", why);
}

/* A worker that did not leave in order no longer holds its references and contexts. A worker that the
 * supervisor killed has failed the job already. */
void supervise_exit(struct supervisor *s, struct child *child, const char *exit_text)
{
    const enum child_state state = child->state;
    const bool has_words = child->last_words.status != STATUS_OK;
    char why[ERROR_TEXT_BYTES];
    snprintf(why, sizeof why, "%s%s%.300s", exit_text, has_words ? ": " : "",
             has_words ? child->last_words.text : "");
    if (state != CHILD_LEAVING)
        s->holdings[child->start.worker] = (struct control_status){0};
    child->state = CHILD_GONE;
    close(child->fd);
    child->fd = -1;
    supervise_leave_next(s);
    if (state == CHILD_LEAVING) {
        note_exit_asked(s, child, why);
    } else if (state != CHILD_KILLED) {
        tell_dialed_workers(s, child, exit_text);
        fail_because_of(s, child, status_of_exit(child), why);
    }
}
