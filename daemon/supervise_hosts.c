/* The other hosts of a job, seen from the leader. Supervisor process; its only thread; no lock.
 *
 * A host comes with JOIN and is up from then on. Each supervisor beats twice a second. A host that is silent
 * for RELAY_SILENCE_US is lost, and so are its workers: they are handled like workers that were killed, and
 * start elsewhere. A lost host has ended its workers itself by the time it comes back (daemon/follow.c);
 * messages of theirs that are still under way carry an incarnation that is gone. */
#include "daemon/place.h"
#include "daemon/service.h"
#include "daemon/supervise_internal.h"
#include "kernels/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLEAR_US = 500000, /* a host that departs may only be one of many that got the same signal */
    MESSAGES_PER_TURN = 256,
};

static struct control_message received; /* too large for a stack; one thread */

static bool has_hosts(const struct supervisor *s)
{
    return s->hosts.of != NULL;
}

static uint16_t host_count(const struct supervisor *s)
{
    return s->config->place->link.keys.count;
}

static bool is_up(const struct supervisor *s, uint16_t host)
{
    return host == HOST_LEADER || s->hosts.of[host].state == HOST_UP;
}

/* ---- where workers run ---- */

static bool may_run(const struct supervisor *s, uint16_t host, bool leader_too)
{
    return (host != HOST_LEADER || leader_too) && is_up(s, host);
}

/* How many workers live on a host. */
static unsigned load_of(const struct supervisor *s, uint16_t host)
{
    unsigned load = 0;
    for (unsigned i = 0; i < s->count; i++)
        load += child_lives(&s->children[i]) && s->children[i].host == host;
    return load;
}

/* The place of share `share` of `shares` among the hosts that are up. */
static uint16_t spread(const struct supervisor *s, uint32_t share, uint32_t shares, bool leader_too)
{
    uint16_t up[HOSTS_MAX];
    uint32_t count = 0;
    for (uint16_t i = 0; i < host_count(s); i++)
        if (may_run(s, i, leader_too))
            up[count++] = i;
    return count == 0 ? HOST_LEADER : up[(uint64_t)share * count / shares];
}

static uint16_t least_loaded(const struct supervisor *s, bool leader_too)
{
    uint16_t best = HOST_LEADER;
    unsigned least = leader_too ? load_of(s, HOST_LEADER) : UINT32_MAX;
    for (uint16_t i = 1; i < host_count(s); i++) {
        const unsigned load = load_of(s, i);
        if (!may_run(s, i, false) || load >= least)
            continue;
        best = i;
        least = load;
    }
    return best;
}

uint16_t supervise_choose_host(const struct supervisor *s, uint16_t worker)
{
    const struct job *job = s->config->job;
    const struct child *child = &s->children[worker];
    const bool is_server = worker < s->roster.servers;
    const bool leader_too = job->hosts.clients == JOB_SPREAD_EVEN;
    if (!has_hosts(s))
        return HOST_LEADER;
    if (is_server && job->hosts.servers == JOB_SERVERS_EVEN && job->kind != JOB_REINFORCE)
        return spread(s, worker, s->roster.servers, true);
    if (is_server)
        return HOST_LEADER;
    if (child->moves_to != HOST_LEADER && is_up(s, child->moves_to))
        return child->moves_to;
    if (child->start.generation != s->generation) /* the first start in this generation */
        return spread(s, worker - s->roster.servers, s->roster.clients, leader_too);
    return may_run(s, child->host, leader_too) ? child->host : least_loaded(s, leader_too);
}

enum status supervise_spawn_on(struct supervisor *s, struct child *child, const struct control_start *start,
                               uint16_t host, struct error *error)
{
    const struct spawn_setting setting = {.command = python_worker_command(&s->python_worker, start->role),
                                          .run_fd = s->config->dir->fd,
                                          .segments = &s->segments};
    if (host == HOST_LEADER)
        return child_spawn(child, start, s->job_text, s->job_bytes, &setting, error);
    child_spawn_far(child, start, s->job_text, s->job_bytes, &s->hosts.relay, host, s->hosts.of[host].name);
    return STATUS_OK;
}

/* ---- who dials whom, and where ---- */

/* Where workers of host `from` dial a listener of host `to`. */
static void write_address(const struct supervisor *s, const struct child *listener, uint16_t from,
                          char address[CONTROL_FAR_BYTES])
{
    const char *text =
        listener->host == HOST_LEADER ? s->hosts.of[from].leader : s->hosts.of[listener->host].address;
    const size_t prefix = strncmp(text, "tcp://", 6) == 0 ? 6 : 0;
    const int length = (int)strcspn(text + prefix, ":");
    snprintf(address, CONTROL_FAR_BYTES, "tcp://%.*s:%u", length, text + prefix, listener->far_port);
}

static void tell_far(struct supervisor *s, struct child *child)
{
    struct control_far far[ROSTER_LISTENERS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < roster_dialed(&s->roster, child->start.worker); i++) {
        const struct child *listener = &s->children[i];
        if (listener->host == child->host)
            continue;
        far[count] = (struct control_far){.worker = (uint16_t)i, .host = listener->host};
        write_address(s, listener, child->host, far[count++].address);
    }
    if (count > 0)
        child_order(child, CONTROL_FAR, far, count * sizeof far[0]);
}

/* The listeners learn the places of all workers at once: one message, however many workers connect. */
static void tell_places(struct supervisor *s, const struct child *child)
{
    int16_t host_of_worker[ROSTER_WORKERS_MAX];
    for (unsigned i = 0; i < s->count; i++)
        host_of_worker[i] = child_lives(&s->children[i]) ? (int16_t)s->children[i].host : -1;
    for (unsigned i = 0; i < roster_dialed(&s->roster, child->start.worker); i++)
        if (s->children[i].host != child->host)
            child_order(&s->children[i], CONTROL_PLACED, host_of_worker, s->count * sizeof host_of_worker[0]);
}

void supervise_introduce(struct supervisor *s, struct child *child)
{
    if (!has_hosts(s))
        return;
    tell_places(s, child);
    tell_far(s, child);
}

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
        end_worker(s, child, end);
    }
}

static void lose_host(struct supervisor *s, uint16_t index, const char *why)
{
    struct host *host = &s->hosts.of[index];
    if (host->state != HOST_UP && host->state != HOST_DEPARTS)
        return;
    host->state = HOST_LOST;
    s->hosts.lost++;
    runlog_clear_progress(s->config->log);
    log_warning("host %u (%s) is lost: %s", index, host->name, why);
    lose_workers(s, index, why);
}

static void refuse(struct supervisor *s, uint16_t host, enum status status, const char *text)
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
                                        .requeue = s->config->job->hosts.requeue};
    const bool is_back = host->state == HOST_LOST;
    *host = (struct host){.state = HOST_UP, .attempt = join->attempt, .heard = monotime_now()};
    snprintf(host->name, sizeof host->name, "%.*s", (int)sizeof join->name - 1, join->name);
    snprintf(host->address, sizeof host->address, "%.*s", (int)sizeof join->from - 1, join->from);
    snprintf(host->leader, sizeof host->leader, "%.*s", (int)sizeof join->leader - 1, join->leader);
    runlog_clear_progress(s->config->log);
    log_info("host %u (%s) %s, from %s", index, host->name, is_back ? "is back" : "is here", host->address);
    tell_host(s, index, CONTROL_ADMIT, &admit, sizeof admit);
}

/* The client that moves next: of the host with the most of them. NULL: none can. */
static struct child *choose_mover(struct supervisor *s, uint16_t to)
{
    struct child *mover = NULL;
    unsigned most = 0;
    for (unsigned i = s->roster.replaceable; i < s->count; i++) {
        struct child *child = &s->children[i];
        const unsigned load = load_of(s, child->host);
        if (child->host == to || !child_is_heard(child) || load <= most)
            continue;
        mover = child;
        most = load;
    }
    return mover;
}

/* A host that joins a running job takes clients over: each is killed, and its successor starts there. */
static void move_workers(struct supervisor *s, uint16_t to, uint32_t count)
{
    uint32_t moved = 0;
    for (struct child *child; moved < count && (child = choose_mover(s, to)) != NULL; moved++) {
        char why[2 * CHILD_TITLE_BYTES];
        snprintf(why, sizeof why, "%s moves to host %u (%.40s)", child->name, to, s->hosts.of[to].name);
        child->moves_to = to;
        child->deaths = 0;
        supervise_lose(s, child, STATUS_INTERNAL, why);
    }
    if (moved < count)
        log_warning("host %u (%s) takes %u of %u workers: a job of this kind has no more that can move", to,
                    s->hosts.of[to].name, moved, count);
}

/* A host that is up and beats is not replaced; if it has started anew, its silence shows in a moment, and it
 * asks again. */
static void hear_join(struct supervisor *s, uint16_t index, const struct control_join *join)
{
    const struct host *host = &s->hosts.of[index];
    if (host->state == HOST_UP || host->state == HOST_DEPARTS)
        return;
    if (join->build != s->hosts.relay.order.build)
        refuse(s, index, STATUS_INVALID, "it runs another build of coalesced than the leader");
    else if (s->finished || s->closing)
        refuse(s, index, STATUS_SHUTDOWN, "the job is ending");
    else if (join->takes > 0 && !s->config->job->supervise.restart)
        refuse(s, index, STATUS_INVALID,
               "/supervise/restart is false, so no worker of the job can move there");
    else
        admit_host(s, index, join);
    if (host->state == HOST_UP && !s->hosts.awaited && s->stops == 0)
        move_workers(s, index, join->takes);
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
        supervise_lose(s, child, STATUS_INTERNAL, why);
    }
}

static void release_host(struct supervisor *s, uint16_t index)
{
    const struct control_over over = {.exit_code = 0, .text = "this host has left the job"};
    if (s->hosts.of[index].clear_at.ns != MONOTIME_NEVER.ns || load_of(s, index) > 0)
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

static void hear_host(struct supervisor *s, uint16_t host, const struct control_message *message)
{
    switch (message->kind) {
    case CONTROL_JOIN:
        hear_join(s, host, &message->body.join);
        break;
    case CONTROL_DEPART:
        hear_depart(s, host);
        break;
    default: /* a beat */
        break;
    }
}

static void hear(struct supervisor *s, const struct control_relay *head)
{
    if (head->host == HOST_LEADER || head->host >= host_count(s))
        return;
    struct host *host = &s->hosts.of[head->host];
    if (head->worker == CONTROL_NO_WORKER)
        hear_host(s, head->host, &received);
    if (host->state != HOST_UP && host->state != HOST_DEPARTS)
        return;
    host->heard = monotime_now();
    if (head->worker != CONTROL_NO_WORKER)
        hear_worker(s, head, &received);
}

/* The link is dead or stuck: the hosts ask again, through a new one at the same port. */
static void replace_link(struct supervisor *s)
{
    struct error error = {0};
    relay_close(&s->hosts.relay, true);
    for (uint16_t i = 1; i < host_count(s); i++)
        lose_host(s, i, "the leader's link to it has ended");
    if (relay_open(&s->hosts.relay, &s->hosts.relay.order, NULL, &error) != STATUS_OK)
        log_error("no other host can be reached any more: %s", error.text);
}

void supervise_read_hosts(struct supervisor *s)
{
    struct control_relay head;
    enum status status = STATUS_OK;
    if (!has_hosts(s) || s->hosts.relay.pid == 0)
        return;
    for (unsigned i = 0; i < MESSAGES_PER_TURN && status != STATUS_AGAIN; i++) {
        status = relay_receive(&s->hosts.relay, &head, &received);
        if (status == STATUS_PEER_DIED) {
            replace_link(s);
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
    for (uint16_t i = 1; i < host_count(s); i++)
        up += s->hosts.of[i].state == HOST_UP || s->hosts.of[i].state == HOST_DEPARTS;
    if (up == 0)
        replace_link(s);
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
    if (supervise_spawn_all(s, &error) != STATUS_OK)
        supervise_fail(s, error.status, error.text);
    return now;
}

static void beat(struct supervisor *s, struct monotime now)
{
    for (uint16_t i = 1; i < host_count(s); i++)
        if (s->hosts.of[i].state == HOST_UP || s->hosts.of[i].state == HOST_DEPARTS)
            tell_host(s, i, CONTROL_BEAT, NULL, 0);
    s->hosts.beat_due = monotime_add_us(now, RELAY_BEAT_US);
}

struct monotime supervise_check_hosts(struct supervisor *s, struct monotime now)
{
    if (!has_hosts(s))
        return MONOTIME_NEVER;
    if (s->hosts.relay.broken)
        replace_link(s);
    if (!monotime_before(now, s->hosts.beat_due))
        beat(s, now);
    struct monotime next = monotime_earliest(s->hosts.beat_due, start_when_complete(s, now));
    for (uint16_t i = 1; i < host_count(s); i++)
        next = monotime_earliest(next, check_host(s, i, now));
    return next;
}

void supervise_excuse_hosts(struct supervisor *s, struct monotime now)
{
    for (uint16_t i = 1; has_hosts(s) && i < host_count(s); i++)
        s->hosts.of[i].heard = now;
}

int supervise_hosts_fd(const struct supervisor *s)
{
    return has_hosts(s) && s->hosts.relay.pid != 0 ? s->hosts.relay.fd : -1;
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
        log_info("waiting for %u other hosts, at port %u", place->hosts - 1u, port);
    else
        log_info("other hosts may join at port %u", port);
    service_notify("STATUS=waiting for other hosts");
    return STATUS_OK;
}

void supervise_close_hosts(struct supervisor *s)
{
    struct control_over over = {.exit_code = status_exit_code(s->outcome.status)};
    if (!has_hosts(s))
        return;
    snprintf(over.text, sizeof over.text, "%.190s",
             s->outcome.status != STATUS_OK ? s->outcome.text : "the job is over");
    for (uint16_t i = 1; i < host_count(s); i++)
        if (s->hosts.of[i].state == HOST_UP || s->hosts.of[i].state == HOST_DEPARTS)
            tell_host(s, i, CONTROL_OVER, &over, sizeof over);
    relay_close(&s->hosts.relay, false);
    place_close(s->config->place, s->config->dir->real);
    free(s->hosts.of);
    s->hosts.of = NULL;
}
