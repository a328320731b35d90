/* Where workers run, and where those dial that run on different hosts. Supervisor process; its only thread;
 * no lock. */
#include "daemon/hosts/place.h"
#include "daemon/supervise/supervise_internal.h"

#include <stdio.h>
#include <string.h>

enum { DEATHS_ON_A_HOST = 2 }; /* in a row; then the worker is tried elsewhere */

static bool is_up(const struct supervisor *s, uint16_t host)
{
    return host == HOST_LEADER || (s->hosts.of[host].state == HOST_UP && !s->hosts.of[host].unfit);
}

static bool may_run(const struct supervisor *s, uint16_t host, bool leader_too)
{
    return (host != HOST_LEADER || leader_too) && is_up(s, host);
}

unsigned supervise_load_of(const struct supervisor *s, uint16_t host)
{
    unsigned load = 0;
    for (unsigned i = 0; i < s->count; i++)
        load += child_lives(&s->children[i]) && s->children[i].host == host;
    return load;
}

/* The place of share `share` of `shares` among the hosts that are up and with which the job began. */
static uint16_t spread(const struct supervisor *s, uint32_t share, uint32_t shares, bool leader_too)
{
    uint16_t up[HOSTS_MAX];
    uint32_t count = 0;
    for (uint16_t i = 0; i < s->config->place->hosts; i++)
        if (may_run(s, i, leader_too))
            up[count++] = i;
    return count == 0 ? HOST_LEADER : up[(uint64_t)share * count / shares];
}

/* Where client `client` starts in a new generation: on the host that brings it, or on its share of the job's
 * own hosts. */
static uint16_t place_client(const struct supervisor *s, uint32_t client, bool leader_too)
{
    const uint32_t own = supervise_own_clients(s);
    if (client < own)
        return spread(s, client, own, leader_too);
    client -= own;
    for (uint16_t i = 1; i < supervise_host_count(s); i++) {
        if (client < supervise_brings(s, i))
            return i;
        client -= supervise_brings(s, i);
    }
    return HOST_LEADER;
}

/* `not_there`: a host that is left out; HOST_LEADER: none is. */
static uint16_t least_loaded(const struct supervisor *s, bool leader_too, uint16_t not_there)
{
    uint16_t best = HOST_LEADER;
    unsigned least = leader_too ? supervise_load_of(s, HOST_LEADER) : UINT32_MAX;
    for (uint16_t i = 1; i < supervise_host_count(s); i++) {
        const unsigned load = supervise_load_of(s, i);
        if (!may_run(s, i, false) || load >= least || i == not_there)
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
    if (!supervise_has_hosts(s))
        return HOST_LEADER;
    if (is_server && job->hosts.servers == JOB_SERVERS_EVEN && job->kind != JOB_REINFORCE)
        return spread(s, worker, s->roster.servers, true);
    if (is_server)
        return HOST_LEADER;
    if (child->moves_to != HOST_LEADER && is_up(s, child->moves_to))
        return child->moves_to;
    if (child->start.generation != s->generation) /* the first start in this generation */
        return place_client(s, worker - s->roster.servers, leader_too);
    if (child->host != HOST_LEADER && child->deaths >= DEATHS_ON_A_HOST)
        return least_loaded(s, true, child->host);
    return may_run(s, child->host, leader_too) ? child->host : least_loaded(s, leader_too, HOST_LEADER);
}

enum status supervise_spawn_on(struct supervisor *s, struct child *child, const struct control_start *start,
                               uint16_t host, struct error *error)
{
    const struct spawn_setting setting = {.command = python_worker_command(&s->python_worker, start->role),
                                          .run_fd = s->config->dir->fd,
                                          .segments = &s->segments};
    if (host == HOST_LEADER)
        return child_spawn(child, start, s->job_text, s->job_bytes, &setting, error);
    return child_spawn_far(child, start, s->job_text, s->job_bytes, &s->hosts.relay, host,
                           s->hosts.of[host].name, error);
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
    if (!supervise_has_hosts(s))
        return;
    tell_places(s, child);
    tell_far(s, child);
}

/* The client that moves next: of the host with the most of them. NULL: none can. */
static struct child *choose_mover(struct supervisor *s, uint16_t to)
{
    struct child *mover = NULL;
    unsigned most = 0;
    for (unsigned i = s->roster.replaceable; i < s->count; i++) {
        struct child *child = &s->children[i];
        const unsigned load = supervise_load_of(s, child->host);
        if (child->host == to || !child_is_heard(child) || load <= most)
            continue;
        mover = child;
        most = load;
    }
    return mover;
}

uint32_t supervise_move_to(struct supervisor *s, uint16_t host, uint32_t count)
{
    uint32_t moved = 0;
    for (struct child *child; moved < count && (child = choose_mover(s, host)) != NULL; moved++) {
        char why[2 * CHILD_TITLE_BYTES];
        snprintf(why, sizeof why, "%s moves to host %u (%.40s)", child->name, host, s->hosts.of[host].name);
        child->moves_to = host;
        child->deaths = 0;
        supervise_lose(s, child, STATUS_INTERNAL, why);
    }
    return moved;
}

uint32_t supervise_fair_share(const struct supervisor *s, uint16_t host)
{
    const bool leader_too = s->config->job->hosts.clients == JOB_SPREAD_EVEN;
    uint32_t hosts = 0;
    for (uint16_t i = 0; i < s->config->place->hosts; i++)
        hosts += may_run(s, i, leader_too);
    return hosts > 0 && host < s->config->place->hosts && may_run(s, host, leader_too)
               ? supervise_own_clients(s) / hosts
               : 0;
}
