/* The other hosts of a job, seen from the leader. Supervisor process; its only thread; no lock.
 *
 * A host comes with JOIN and is up from then on. Each supervisor beats twice a second. A host that is silent
 * for RELAY_SILENCE_US is lost, and so are its workers: they are handled like workers that were killed, and
 * start elsewhere. A lost host has ended its workers itself by the time it comes back
 * (daemon/supervise/follow.c); messages of theirs that are still under way carry an incarnation that is gone.
 */
#include "daemon/hosts/place.h"
#include "daemon/process/service.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLEAR_US = 500000, /* a host that departs may only be one of many that got the same signal */
    MESSAGES_PER_TURN = 256,
};

static struct control_message received; /* too large for a stack; one thread */

/* ---- hosts that come and go ---- */

static void tell_host(struct supervisor *s, uint16_t host, enum control_kind kind, const void *body,
                      size_t bytes)
{
    relay_send(&s->hosts.relay, host, NULL, kind, body, bytes);
}

/* A worker is gone with its host, or was reaped there. */
static void end_worker(struct supervisor *s, struct child *child, const char *end)
{
    if (!child_lives(child))
        return;
    snprintf(child->end, sizeof child->end, "%s", end);
    supervise_react(s, child, EVENT_EXITED, NULL);
}

static void lose_workers(struct supervisor *s, uint16_t host, const char *why)
{
    for (unsigned i = 0; i < s->count; i++) {
        struct child *child = &s->children[i];
        char end[sizeof child->end];
        if (child->relay == NULL || child->host != host)
            continue;
        snprintf(end, sizeof end, "%s is lost: %.120s", child->name, why);
        child->deaths = 0; /* the host's fault, not the worker's */
        end_worker(s, child, end);
    }
}

/* What the host brought leaves with it. */
static void take_away(struct supervisor *s, uint16_t index, const char *end)
{
    struct host *host = &s->hosts.of[index];
    char why[160];
    if (host->brings == 0)
        return;
    snprintf(why, sizeof why, "host %u (%.60s) %s, with %u %s", index, host->name, end, host->brings,
             supervise_clients_unit(s, host->brings));
    host->brings = 0;
    supervise_resize(s, why);
}

static void lose_host(struct supervisor *s, uint16_t index, const char *why)
{
    struct host *host = &s->hosts.of[index];
    if (host->state != HOST_UP && host->state != HOST_DEPARTS)
        return;
    host->state = HOST_LOST;
    host->lost_at = monotime_now();
    runlog_clear_progress(s->config->log);
    log_warning("host %u (%s) is lost: %s", index, host->name, why);
    lose_workers(s, index, why);
    take_away(s, index, "is lost");
}

static void host_refuse(struct supervisor *s, uint16_t host, enum status status, const char *text)
{
    struct error error = {0};
    error_set(&error, status, "%s", text);
    log_warning("host %u is refused: %s", host, text);
    tell_host(s, host, CONTROL_REFUSE, &error, sizeof error);
}

static void admit_host(struct supervisor *s, uint16_t index, const struct control_join *join)
{
    struct host *host = &s->hosts.of[index];
    const struct control_admit admit = {.patience_s = s->config->job->hosts.patience_s,
                                        .requeue = s->config->job->hosts.requeue ? 1 : 0};
    const bool is_back = host->state == HOST_LOST;
    *host = (struct host){.state = HOST_UP, .heard = monotime_now()};
    snprintf(host->name, sizeof host->name, "%.*s", (int)sizeof join->name - 1, join->name);
    snprintf(host->address, sizeof host->address, "%.*s", (int)sizeof join->from - 1, join->from);
    snprintf(host->leader, sizeof host->leader, "%.*s", (int)sizeof join->leader - 1, join->leader);
    runlog_clear_progress(s->config->log);
    log_info("host %u (%s) %s, from %s", index, host->name, is_back ? "is back" : "is here", host->address);
    tell_host(s, index, CONTROL_ADMIT, &admit, sizeof admit);
}

/* The job runs already: it grows by what the host brings. To one of those with which the job began its share
 * of the workers moves. */
static void fill_host(struct supervisor *s, uint16_t index, uint32_t brings)
{
    struct host *host = &s->hosts.of[index];
    char why[160];
    host->brings = brings;
    snprintf(why, sizeof why, "host %u (%.60s) brings %u %s", index, host->name, brings,
             supervise_clients_unit(s, brings));
    if (brings > 0)
        supervise_resize(s, why);
    else if (!s->hosts.awaited && s->stops == 0 && s->config->job->supervise.restart)
        supervise_move_to(s, index, supervise_fair_share(s, index));
}

static void hear_join(struct supervisor *s, uint16_t index, const struct control_join *join)
{
    const struct host *host = &s->hosts.of[index];
    char text[CONTROL_FAR_BYTES + 80];
    struct error error;
    if (host->state == HOST_UP || host->state == HOST_DEPARTS) {
        snprintf(text, sizeof text, "host %u is here already, at %s, and was heard of in the last 3 s", index,
                 host->address);
        host_refuse(s, index, STATUS_BUSY, text);
    } else if (join->build != s->hosts.relay.order.build) {
        host_refuse(s, index, STATUS_INVALID, "it runs another build of coalesced than the leader");
    } else if (s->finished || s->closing || s->stops > 0) {
        host_refuse(s, index, STATUS_SHUTDOWN, "the job is ending");
    } else if (join->brings > 0 && supervise_check_growth(s, join->role, join->brings, &error) != STATUS_OK) {
        host_refuse(s, index, error.status, error.text);
    } else {
        admit_host(s, index, join);
        fill_host(s, index, join->brings);
    }
}

static void hear_depart(struct supervisor *s, uint16_t index)
{
    struct host *host = &s->hosts.of[index];
    if (host->state != HOST_UP)
        return;
    host->state = HOST_DEPARTS;
    host->clear_at = monotime_add_us(monotime_now(), CLEAR_US);
}

/* Its workers start elsewhere. When the job is ending anyway, they leave with all others. */
static void clear_host(struct supervisor *s, uint16_t index)
{
    struct host *host = &s->hosts.of[index];
    host->clear_at = MONOTIME_NEVER;
    if (s->stops > 0 || s->closing)
        return;
    log_info("host %u (%s) departs: its workers start elsewhere", index, host->name);
    for (unsigned i = 0; i < s->count; i++) {
        struct child *child = &s->children[i];
        char why[CHILD_TITLE_BYTES + 32];
        if (child->relay == NULL || child->host != index || !child_is_heard(child))
            continue;
        snprintf(why, sizeof why, "%s ends: its host departs", child->name);
        child->deaths = 0;
        supervise_lose(s, child, STATUS_INTERNAL, why);
    }
    take_away(s, index, "departs");
}

static void release_host(struct supervisor *s, uint16_t index)
{
    const struct control_over over = {.exit_code = 0, .text = "this host has left the job"};
    if (s->hosts.of[index].clear_at.ns != MONOTIME_NEVER.ns || supervise_load_of(s, index) > 0)
        return;
    tell_host(s, index, CONTROL_OVER, &over, sizeof over);
    s->hosts.of[index].state = HOST_DEPARTED;
}

/* ---- messages ---- */

static void hear_exit(struct supervisor *s, struct child *child, const struct control_exited *exited)
{
    char end[sizeof child->end];
    snprintf(end, sizeof end, "%.*s, on host %u (%.40s)", (int)sizeof exited->end - 80, exited->end,
             child->host, s->hosts.of[child->host].name);
    end_worker(s, child, end);
}

/* A message of a worker, under the incarnation that runs there now; a late one of a predecessor is dropped.
 */
static void hear_worker(struct supervisor *s, const struct control_relay *head,
                        const struct control_message *message)
{
    struct child *child = head->worker < s->count ? &s->children[head->worker] : NULL;
    if (child == NULL || child->relay == NULL || child->host != head->host ||
        child->start.incarnation != head->incarnation || child->start.generation != head->generation)
        return;
    if (message->kind == CONTROL_EXITED)
        hear_exit(s, child, &message->body.exited);
    else if (child_is_heard(child))
        supervise_react(s, child, message->kind, message);
}

/* A JOIN is no sign of life of a host that is up: it may be another program with the host's key. */
static void hear(struct supervisor *s, const struct control_relay *head)
{
    if (head->host == HOST_LEADER || head->host >= supervise_host_count(s))
        return;
    struct host *host = &s->hosts.of[head->host];
    if (head->worker == CONTROL_NO_WORKER && received.kind == CONTROL_JOIN) {
        hear_join(s, head->host, &received.body.join);
        return;
    }
    if (host->state != HOST_UP && host->state != HOST_DEPARTS)
        return;
    host->heard = monotime_now();
    if (head->worker != CONTROL_NO_WORKER)
        hear_worker(s, head, &received);
    else if (received.kind == CONTROL_DEPART)
        hear_depart(s, head->host);
}

void supervise_doubt_host(struct supervisor *s, uint16_t index, const char *why)
{
    struct host *host = &s->hosts.of[index];
    if (!host->unfit)
        log_warning("host %u (%s) cannot run workers: %s; no more start there", index, host->name, why);
    host->unfit = true;
    if (host->brings == 0)
        return;
    struct control_over over = {.exit_code = status_exit_code(STATUS_UNAVAILABLE)};
    snprintf(over.text, sizeof over.text, "this host cannot run workers: %.160s", why);
    take_away(s, index, "cannot run workers");
    tell_host(s, index, CONTROL_OVER, &over, sizeof over);
    host->state = HOST_DEPARTED;
}

void supervise_lose_stuck(struct supervisor *s, const struct child *child)
{
    char why[2 * CHILD_TITLE_BYTES];
    snprintf(why, sizeof why, "it does not end %s", child->name);
    lose_host(s, child->host, why);
}

/* The link is dead or stuck: the hosts ask again, through a new one at the same port. Returns when to look
 * again, if a new one may not be opened yet. */
static struct monotime replace_link(struct supervisor *s, struct monotime now)
{
    struct error error = {0};
    for (uint16_t i = 1; i < supervise_host_count(s); i++)
        lose_host(s, i, "the leader's link to it has ended");
    if (monotime_before(now, s->hosts.relay.may_open))
        return s->hosts.relay.may_open;
    relay_close(&s->hosts.relay, true);
    if (relay_open(&s->hosts.relay, &s->hosts.relay.order, NULL, &error) != STATUS_OK)
        log_error("no other host can be reached: %s", error.text);
    return s->hosts.relay.may_open;
}

void supervise_read_hosts(struct supervisor *s)
{
    struct control_relay head;
    enum status status = STATUS_OK;
    if (!supervise_has_hosts(s) || s->hosts.relay.pid == 0)
        return;
    for (unsigned i = 0; i < MESSAGES_PER_TURN && status != STATUS_AGAIN; i++) {
        status = relay_receive(&s->hosts.relay, &head, &received);
        if (status == STATUS_PEER_DIED) {
            s->hosts.relay.broken = true;
            return;
        }
        if (status == STATUS_OK)
            hear(s, &head);
    }
}

/* ---- deadlines ---- */

/* When the last host that was up has fallen silent, the leader's own link may be what hangs. */
static void lose_silent(struct supervisor *s, uint16_t index)
{
    unsigned up = 0;
    lose_host(s, index, "nothing was heard of it for 3 s");
    for (uint16_t i = 1; i < supervise_host_count(s); i++)
        up += s->hosts.of[i].state == HOST_UP || s->hosts.of[i].state == HOST_DEPARTS;
    s->hosts.relay.broken = s->hosts.relay.broken || up == 0;
}

static struct monotime check_host(struct supervisor *s, uint16_t index, struct monotime now)
{
    struct host *host = &s->hosts.of[index];
    const struct monotime silent = monotime_add_us(host->heard, RELAY_SILENCE_US);
    if (host->state == HOST_DEPARTS && !monotime_before(now, host->clear_at))
        clear_host(s, index);
    if (host->state == HOST_DEPARTS)
        release_host(s, index);
    if (host->state != HOST_UP && host->state != HOST_DEPARTS)
        return MONOTIME_NEVER;
    if (!monotime_before(now, silent))
        lose_silent(s, index);
    return host->state == HOST_DEPARTS ? monotime_earliest(silent, host->clear_at) : silent;
}

static bool is_complete(const struct supervisor *s)
{
    for (uint16_t i = 1; i < s->config->place->hosts; i++)
        if (s->hosts.of[i].state == HOST_AWAITED)
            return false;
    return true;
}

static void name_missing(const struct supervisor *s)
{
    for (uint16_t i = 1; i < s->config->place->hosts; i++)
        if (s->hosts.of[i].state == HOST_AWAITED)
            log_warning(
                "host %u of %u has not come within %g s (/hosts/patience_s): the job begins without it", i,
                s->config->place->hosts, s->config->job->hosts.patience_s);
}

static struct monotime start_when_complete(struct supervisor *s, struct monotime now)
{
    struct error error = {0};
    if (!s->hosts.awaited)
        return MONOTIME_NEVER;
    if (!is_complete(s) && monotime_before(now, s->hosts.due))
        return s->hosts.due;
    s->hosts.awaited = false;
    name_missing(s);
    if (supervise_adopt_size(s, &error) != STATUS_OK || supervise_spawn_all(s, &error) != STATUS_OK)
        supervise_fail(s, error.status, error.text);
    return now;
}

static void hosts_beat(struct supervisor *s, struct monotime now)
{
    for (uint16_t i = 1; i < supervise_host_count(s); i++)
        if (s->hosts.of[i].state == HOST_UP || s->hosts.of[i].state == HOST_DEPARTS)
            tell_host(s, i, CONTROL_BEAT, NULL, 0);
    s->hosts.beat_due = monotime_add_us(now, RELAY_BEAT_US);
}

struct monotime supervise_check_hosts(struct supervisor *s, struct monotime now)
{
    if (!supervise_has_hosts(s))
        return MONOTIME_NEVER;
    struct monotime next = s->hosts.relay.broken ? replace_link(s, now) : MONOTIME_NEVER;
    if (!monotime_before(now, s->hosts.beat_due))
        hosts_beat(s, now);
    next = monotime_earliest(next, s->hosts.beat_due);
    next = monotime_earliest(next, start_when_complete(s, now));
    for (uint16_t i = 1; i < supervise_host_count(s); i++)
        next = monotime_earliest(next, check_host(s, i, now));
    return next;
}

void supervise_excuse_hosts(struct supervisor *s, struct monotime now)
{
    for (uint16_t i = 1; supervise_has_hosts(s) && i < supervise_host_count(s); i++)
        s->hosts.of[i].heard = now;
}

int supervise_hosts_fd(const struct supervisor *s)
{
    return supervise_has_hosts(s) && s->hosts.relay.pid != 0 && !s->hosts.relay.broken ? s->hosts.relay.fd
                                                                                       : -1;
}

/* ---- opening and closing ---- */

enum status supervise_open_hosts(struct supervisor *s, struct error *error)
{
    struct place *place = s->config->place;
    uint16_t port;
    if (place == NULL)
        return STATUS_OK;
    s->hosts.due = monotime_add_us(monotime_now(), (uint64_t)(s->config->job->hosts.patience_s * 1e6));
    s->hosts.of = calloc(place->link.keys.count, sizeof *s->hosts.of);
    if (s->hosts.of == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u hosts", place->link.keys.count);
    enum status status = relay_open(&s->hosts.relay, &place->link, &port, error);
    if (status != STATUS_OK)
        return status;
    char *colon = strrchr(s->hosts.relay.order.addresses[0], ':');
    snprintf(colon + 1, 8, "%u", port); /* a link that takes its place binds the same */
    status = place_publish(place, port, s->config->dir->real, s->hosts.due, error);
    if (status != STATUS_OK)
        return status;
    relay_admit(&s->hosts.relay, &place->link.keys);
    s->hosts.awaited = true;
    if (place->hosts > 1)
        log_info("waiting for %u other host%s, at port %u", place->hosts - 1u, place->hosts == 2 ? "" : "s",
                 port);
    else
        log_info("other hosts may join at port %u", port);
    service_notify("STATUS=waiting for other hosts");
    return STATUS_OK;
}

/* A host that was cut off a moment ago may ask to join again: it shall hear that the job is over, and not
 * take the leader for dead. */
static bool may_come_back(const struct supervisor *s, const struct host *host, struct monotime now)
{
    const uint64_t patience_us = (uint64_t)(s->config->job->hosts.patience_s * 1e6);
    return host->state == HOST_LOST && monotime_before(now, monotime_add_us(host->lost_at, patience_us));
}

static void tell_over(struct supervisor *s, uint16_t index)
{
    struct control_over over = {.exit_code = status_exit_code(s->outcome.status)};
    snprintf(over.text, sizeof over.text, "%.190s",
             s->outcome.status != STATUS_OK ? s->outcome.text : "the job is over");
    tell_host(s, index, CONTROL_OVER, &over, sizeof over);
}

/* Reads what a lost host says after the job's end. True: it has come back, and knows. */
static bool tell_returned(struct supervisor *s)
{
    struct control_relay head;
    if (relay_receive(&s->hosts.relay, &head, &received) != STATUS_OK || head.host == HOST_LEADER ||
        head.host >= supervise_host_count(s) || received.kind != CONTROL_JOIN ||
        s->hosts.of[head.host].state != HOST_LOST)
        return false;
    admit_host(s, head.host, &received.body.join);
    tell_over(s, head.host);
    return true;
}

static void await_returns(struct supervisor *s)
{
    enum { RETURN_US = 5000000 };
    const struct monotime until = monotime_add_us(monotime_now(), RETURN_US);
    unsigned missing = 0;
    for (uint16_t i = 1; i < supervise_host_count(s); i++)
        missing += may_come_back(s, &s->hosts.of[i], until);
    for (struct monotime now = monotime_now(); missing > 0 && monotime_before(now, until);
         now = monotime_now()) {
        if (s->hosts.relay.broken && !monotime_before(now, s->hosts.relay.may_open))
            replace_link(s, now);
        struct pollfd line = {.fd = supervise_hosts_fd(s), .events = POLLIN};
        poll(&line, 1, (int)(monotime_us_between(now, until) / 1000) < 100 ? 10 : 100);
        missing -= tell_returned(s);
    }
}

void supervise_close_hosts(struct supervisor *s)
{
    if (!supervise_has_hosts(s))
        return;
    for (uint16_t i = 1; i < supervise_host_count(s); i++)
        if (s->hosts.of[i].state == HOST_UP || s->hosts.of[i].state == HOST_DEPARTS)
            tell_over(s, i);
    await_returns(s);
    relay_close(&s->hosts.relay, false);
    place_close(s->config->place, s->config->dir->real);
    free(s->hosts.of);
    s->hosts.of = NULL;
}
