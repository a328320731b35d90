/* The reactions to a worker's exit: the job's outcome, and the other workers that are told. Supervisor
 * process; its only thread; no lock.
 *
 * Today every exit that nobody asked for fails the job (supervise_exit_unasked). */
#include "daemon/supervise_internal.h"
#include "kernels/base/log.h"

#include <stdio.h>
#include <unistd.h>

static void forget_child(struct supervisor *s, struct child *child)
{
    child->state = CHILD_GONE;
    close(child->fd);
    child->fd = -1;
    supervise_leave_next(s);
}

/* Forgets a worker that did not leave in order, and the references and contexts that it held. */
static void forget_dead_child(struct supervisor *s, struct child *child)
{
    s->holdings[child->start.worker] = (struct control_status){0};
    forget_child(s, child);
}

void supervise_exit_killed(struct supervisor *s, struct child *child, const struct event *event)
{
    (void)event;
    forget_dead_child(s, child);
}

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

static void describe_exit(const struct child *child, const struct event *event, char why[ERROR_TEXT_BYTES])
{
    if (child->last_words.status != STATUS_OK)
        snprintf(why, ERROR_TEXT_BYTES, "%s: %.300s", event->exit_text, child->last_words.text);
    else
        snprintf(why, ERROR_TEXT_BYTES, "%s", event->exit_text);
}

/* Tells the workers that the dead worker connected to: a bound ZeroMQ socket does not report that a peer is
 * gone. */
static void tell_dialed_workers(struct supervisor *s, const struct child *child, const struct event *event)
{
    struct control_died died = {.worker = child->start.worker};
    snprintf(died.text, sizeof died.text, "%.190s", event->exit_text);
    for (unsigned i = 0; i < roster_dialed(&s->roster, child->start.worker); i++)
        child_order(&s->children[i], CONTROL_DIED, &died, sizeof died);
}

void supervise_exit_unasked(struct supervisor *s, struct child *child, const struct event *event)
{
    char why[ERROR_TEXT_BYTES];
    describe_exit(child, event, why);
    forget_dead_child(s, child);
    tell_dialed_workers(s, child, event);
    fail_because_of(s, child, status_of_exit(child), why);
}

/* A worker that fails after it was told to leave changes the job's outcome only if that is a follow-on
 * failure and this worker its cause. */
void supervise_exit_asked(struct supervisor *s, struct child *child, const struct event *event)
{
    char why[ERROR_TEXT_BYTES];
    describe_exit(child, event, why);
    forget_child(s, child);
    if (child->last_words.status == STATUS_OK)
        return;
    if (s->outcome_is_follow_on && !is_follow_on(child))
        fail_because_of(s, child, status_of_exit(child), why);
    else
        log_warning("%s", why);
}
