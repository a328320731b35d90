/* Chooses the host of each worker. Supervisor process; its only thread; no lock. */
#include "daemon/supervise/placement.h"

enum { DEATHS_ON_A_HOST = 2 }; /* in a row; then the worker is tried elsewhere */

unsigned placement_load(const struct placement *p, uint16_t host)
{
    unsigned load = 0;
    for (unsigned i = 0; i < p->count; i++)
        load += child_lives(&p->children[i]) && p->children[i].host == host;
    return load;
}

uint32_t placement_own_clients(const struct placement *p)
{
    return p->roster->clients - p->job->added;
}

/* Whether clients may run beside the leader. */
static bool leader_takes_clients(const struct placement *p)
{
    return p->job->hosts.clients == JOB_SPREAD_EVEN;
}

static bool may_run(const struct placement *p, uint16_t host, bool leader_too)
{
    return (host != HOST_LEADER || leader_too) && hosts_can_run(p->hosts, host);
}

/* The host of share `share` of `shares`, among the hosts that are up and with which the job began. */
static uint16_t spread(const struct placement *p, uint32_t share, uint32_t shares, bool leader_too)
{
    uint16_t up[HOSTS_MAX];
    uint32_t count = 0;
    for (uint16_t i = 0; i < hosts_at_start(p->hosts); i++)
        if (may_run(p, i, leader_too))
            up[count++] = i;
    return count == 0 ? HOST_LEADER : up[(uint64_t)share * count / shares];
}

/* The host on which a client starts in a new generation: the one that brings it, or its share of the job's
 * own hosts. */
static uint16_t place_client(const struct placement *p, uint32_t client)
{
    const uint32_t own = placement_own_clients(p);
    if (client < own)
        return spread(p, client, own, leader_takes_clients(p));
    client -= own;
    for (uint16_t i = 1; i < hosts_count(p->hosts); i++) {
        if (client < hosts_brings(p->hosts, i))
            return i;
        client -= hosts_brings(p->hosts, i);
    }
    return HOST_LEADER;
}

/* `not_there`: a host that is left out; HOST_LEADER: none is. */
static uint16_t least_loaded(const struct placement *p, bool leader_too, uint16_t not_there)
{
    uint16_t best = HOST_LEADER;
    unsigned least = leader_too ? placement_load(p, HOST_LEADER) : UINT32_MAX;
    for (uint16_t i = 1; i < hosts_count(p->hosts); i++) {
        const unsigned load = placement_load(p, i);
        if (!hosts_can_run(p->hosts, i) || load >= least || i == not_there)
            continue;
        best = i;
        least = load;
    }
    return best;
}

uint16_t placement_choose_host(const struct placement *p, const struct child *child, uint16_t worker)
{
    const struct job *job = p->job;
    const bool leader_too = leader_takes_clients(p);
    if (hosts_count(p->hosts) == 1)
        return HOST_LEADER;
    if (worker < p->roster->servers)
        return job->hosts.servers == JOB_SERVERS_EVEN && job->kind != JOB_REINFORCE
                   ? spread(p, worker, p->roster->servers, true)
                   : HOST_LEADER;
    if (child->moves_to != HOST_LEADER && hosts_can_run(p->hosts, child->moves_to))
        return child->moves_to;
    if (child->start.generation != p->generation) /* the first start in this generation */
        return place_client(p, worker - p->roster->servers);
    if (child->host != HOST_LEADER && child->deaths >= DEATHS_ON_A_HOST)
        return least_loaded(p, true, child->host);
    return may_run(p, child->host, leader_too) ? child->host : least_loaded(p, leader_too, HOST_LEADER);
}

struct child *placement_choose_mover(const struct placement *p, uint16_t to)
{
    struct child *mover = NULL;
    unsigned most = 0;
    for (unsigned i = p->roster->replaceable; i < p->count; i++) {
        struct child *child = &p->children[i];
        const unsigned load = placement_load(p, child->host);
        if (child->host == to || !child_is_heard(child) || load <= most)
            continue;
        mover = child;
        most = load;
    }
    return mover;
}

uint32_t placement_fair_share(const struct placement *p, uint16_t host)
{
    const bool leader_too = leader_takes_clients(p);
    const uint16_t at_start = hosts_at_start(p->hosts);
    uint32_t hosts = 0;
    for (uint16_t i = 0; i < at_start; i++)
        hosts += may_run(p, i, leader_too);
    return hosts > 0 && host < at_start && may_run(p, host, leader_too) ? placement_own_clients(p) / hosts
                                                                        : 0;
}
