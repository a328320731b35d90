/* What the supervisor does when a worker says or does something, and how a job ends: one table,
 * [state of the worker][event]. Supervisor process; its only thread; no lock.
 *
 * Restarting a dead worker has its place in the table's `exited` column: today every unasked end goes to
 * `died`, which ends the job. */
#include "daemon/supervise_internal.h"

#include "daemon/service.h"
#include "kernels/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

enum { GRACE_US = 2000000 }; /* for workers that were told to hurry */

/* ---- the job's end ---- */

static void leave(struct child *child)
{
    if (child->state != CHILD_STARTING && child->state != CHILD_READY)
        return;
    child_order(child, CONTROL_EXIT, NULL, 0);
    child->state = CHILD_LEAVING;
}

/* Whoever dials another leaves before it, so that its BYE is heard: the clients, then the servers from the
 * highest number down. */
static void leave_next(struct supervisor *s)
{
    bool clients = false;
    if (!s->leaving)
        return;
    for (unsigned i = s->roster.servers; i < s->count; i++) {
        leave(&s->children[i]);
        clients |= s->children[i].state != CHILD_GONE;
    }
    unsigned server = clients ? 0 : s->roster.servers;
    while (server > 0 && s->children[server - 1].state == CHILD_GONE)
        server--;
    if (server > 0)
        leave(&s->children[server - 1]);
}

static void close_job(struct supervisor *s)
{
    s->leaving = true;
    leave_next(s);
}

void supervise_hurry(struct supervisor *s)
{
    for (unsigned i = 0; i < s->count; i++)
        child_order(&s->children[i], CONTROL_HURRY, NULL, 0);
    s->kill_at = monotime_earliest(s->kill_at, monotime_add_us(monotime_now(), GRACE_US));
}

void supervise_fail(struct supervisor *s, enum status status, const char *why)
{
    if (s->outcome.status == STATUS_OK)
        error_set(&s->outcome, status, "%s", why);
    else
        log_error("%s", why);
    supervise_hurry(s);
    close_job(s);
}

/* ---- events ---- */

enum event supervise_event_of(uint32_t kind)
{
    switch (kind) {
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
        return EVENTS;
    }
}

typedef void reaction(struct supervisor *s, struct child *child, const struct happening *what);

static void out_of_turn(struct supervisor *s, struct child *child, const struct happening *what)
{
    char why[160];
    snprintf(why, sizeof why, "%s (process %ld) said something out of turn (message %u in state %d): killed",
             child->name, (long)child->pid, what->message != NULL ? what->message->kind : 0, child->state);
    child_kill(child);
    supervise_fail(s, STATUS_INTERNAL, why);
}

/* It was asked to leave just before. */
static void opened(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)s;
    (void)what;
    child->opened = true;
}

static void ignored(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)s;
    (void)child;
    (void)what;
}

static void beaten(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)s;
    (void)what;
    child->last_beat = monotime_now();
}

/* A worker may dial once every server below it is bound: a client all of them, a server the lower ones. */
static void connect_ready(struct supervisor *s)
{
    unsigned bound = 0;
    while (bound < s->roster.servers && s->children[bound].state != CHILD_STARTING)
        bound++;
    for (unsigned i = 1; i < s->count; i++) {
        struct child *child = &s->children[i];
        unsigned below = i < s->roster.servers ? i : s->roster.servers;
        if (child->connected || below > bound)
            continue;
        child->connected = true;
        child_order(child, CONTROL_CONNECT, NULL, 0);
    }
}

static void now_ready(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)what;
    child->opened = true;
    child->state = CHILD_READY;
    if (child->start.worker < s->roster.servers)
        connect_ready(s);
    if (++s->ready == s->count)
        service_notify("READY=1\nSTATUS=training with %u workers", s->count);
}

/* Each of the three: into the logs, and told to the service manager. */
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

/* The lead tells of progress. What its next step waits for is acknowledged once it is in the logs. */
static void recorded(struct supervisor *s, struct child *child, const struct happening *what)
{
    const struct control_message *message = what->message;
    struct control_logged logged = {0};
    struct error error;
    enum status status;
    if (child != &s->children[s->roster.lead] ||
        (message->kind == CONTROL_UPDATE && message->body.update.trainers > JOB_TRAINERS_MAX)) {
        out_of_turn(s, child, what);
        return;
    }
    if (message->kind == CONTROL_EPISODE) {
        logged.number = message->body.episode.episode;
        status = log_episode(s, &message->body.episode, &error);
    } else if (message->kind == CONTROL_UPDATE) {
        logged.number = message->body.update.update;
        status = log_update(s, &message->body.update, &error);
    } else {
        status = log_epoch(s, &message->body.epoch, &error);
    }
    if (status != STATUS_OK)
        supervise_fail(s, error.status, error.text);
    else if (message->kind != CONTROL_EPOCH)
        child_order(child, CONTROL_LOGGED, &logged, sizeof logged);
}

static void told_holdings(struct supervisor *s, struct child *child, const struct happening *what)
{
    s->holdings[child->start.worker] = what->message->body.status;
}

static void job_over(struct supervisor *s, struct child *child, const struct happening *what)
{
    if (child != &s->children[s->roster.lead]) {
        out_of_turn(s, child, what);
        return;
    }
    s->result = what->message->body.finished;
    if (s->result.end > CONTROL_END_STOPPED)
        s->result.end = CONTROL_END_STOPPED;
    service_notify("STOPPING=1");
    close_job(s);
}

static void failed(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)s;
    child->last_words = what->message->body.failed;
    child->last_words.text[ERROR_TEXT_BYTES - 1] = '\0';
}

/* A worker that starts has libraries to load and a server to find, perhaps among a thousand others. */
uint64_t supervise_patience_us(const struct supervisor *s, const struct child *child)
{
    enum { START_US = 30000000 };
    uint64_t hang_us = (uint64_t)(s->config->job->supervise.hang_s * 1e6);
    return child->state == CHILD_STARTING ? hang_us + START_US : hang_us;
}

static void silent(struct supervisor *s, struct child *child, const struct happening *what)
{
    char why[128];
    (void)what;
    snprintf(why, sizeof why, "%s (process %ld) has not beaten for %g s: killed", child->name,
             (long)child->pid, s->config->job->supervise.hang_s);
    child_kill(child);
    supervise_fail(s, STATUS_INTERNAL, why);
}

static void gone(struct supervisor *s, struct child *child, const struct happening *what)
{
    (void)what;
    child->state = CHILD_GONE;
    close(child->fd);
    child->fd = -1;
    leave_next(s);
}

/* Whoever dies holds nothing any more. */
static void killed(struct supervisor *s, struct child *child, const struct happening *what)
{
    s->holdings[child->start.worker] = (struct control_status){0};
    gone(s, child, what);
}

/* A worker's own status is told by its exit code only where it is the machine's or the data's fault, or the
 * job's: one that has not opened yet has met nobody else who could have asked for what cannot be. */
static enum status status_of_death(const struct child *child)
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

/* A worker that fails says goodbye to its peers before it ends, and these may be reaped before it. */
static bool ended_because_of_another(const struct child *child)
{
    return child->last_words.status == STATUS_PEER_DIED || child->last_words.status == STATUS_SHUTDOWN;
}

/* Ends the job because of this worker's end, with `status`. Whose end is the cause of others' takes their
 * place. */
static void blame(struct supervisor *s, const struct child *child, enum status status, const char *why)
{
    bool follows = ended_because_of_another(child);
    if (s->outcome.status == STATUS_OK) {
        s->follows = follows;
    } else if (s->follows && !follows) {
        log_error("%s", s->outcome.text);
        s->outcome.status = STATUS_OK;
        s->follows = false;
    }
    supervise_fail(s, status, why);
}

static void tell_end(const struct child *child, const struct happening *what, char why[ERROR_TEXT_BYTES])
{
    if (child->last_words.status != STATUS_OK)
        snprintf(why, ERROR_TEXT_BYTES, "%s: %.300s", what->text, child->last_words.text);
    else
        snprintf(why, ERROR_TEXT_BYTES, "%s", what->text);
}

/* A death is told to the servers, whose sockets do not report it. */
static void died(struct supervisor *s, struct child *child, const struct happening *what)
{
    char why[ERROR_TEXT_BYTES];
    struct control_died news = {.worker = child->start.worker};
    const enum status status = status_of_death(child);
    tell_end(child, what, why);
    snprintf(news.text, sizeof news.text, "%.190s", what->text);
    killed(s, child, what);
    for (unsigned i = 0; i < s->roster.servers; i++)
        child_order(&s->children[i], CONTROL_DIED, &news, sizeof news);
    blame(s, child, status, why);
}

/* It was asked to leave, but ended otherwise. */
static void left(struct supervisor *s, struct child *child, const struct happening *what)
{
    char why[ERROR_TEXT_BYTES];
    tell_end(child, what, why);
    gone(s, child, what);
    if (child->last_words.status == STATUS_OK)
        return;
    if (s->follows && !ended_because_of_another(child))
        blame(s, child, status_of_death(child), why);
    else
        log_warning("%s", why);
}

/* clang-format off */
static reaction *const reactions[CHILD_STATES][EVENTS] = {
    /*                   READY      BEAT     RECORD    STATUS         FINISHED  FAILED   SILENT   EXITED */
    [CHILD_STARTING] = { now_ready, beaten,  NULL,     NULL,          NULL,     failed,  silent,  died },
    [CHILD_READY]    = { NULL,      beaten,  recorded, told_holdings, job_over, failed,  silent,  died },
    [CHILD_LEAVING]  = { opened,    beaten,  ignored,  told_holdings, ignored,  failed,  silent,  left },
    [CHILD_KILLED]   = { ignored,   ignored, ignored,  ignored,       ignored,  ignored, ignored, killed },
};
/* clang-format on */

void supervise_react(struct supervisor *s, struct child *child, enum event event,
                     const struct happening *what)
{
    if (child->state == CHILD_GONE)
        return;
    reaction *answer = event < EVENTS ? reactions[child->state][event] : NULL;
    (answer != NULL ? answer : out_of_turn)(s, child, what);
}
