/* The roster: the workers of a job, their roles and their numbers.
 *
 * Servers have the numbers 0 to servers - 1, their clients follow. Each worker dials every server below it:
 * a client all of them, a server those with lower numbers. Pure; both the supervisor and the workers ask. */
#ifndef WORKER_ROSTER_H
#define WORKER_ROSTER_H

#include "worker/job/job.h"

enum { ROSTER_WORKERS_MAX = JOB_SERVERS_MAX + 1024 }; /* the most that a job file can ask for */

struct roster {
    uint32_t servers, clients;
    uint8_t server_role, client_role; /* enum wire_role */
    bool segments;                    /* every worker has a segment (worker/net/segment.h) */
    uint16_t lead;                    /* who says FINISHED, and is told to drain */
};

/* reinforce: 1 agent, observers.count observers. parameter-server: server.count pservers, trainers.count
 * trainers; segments where the transport is shared. model-parallel: the same, led by the first trainer; in
 * the other kinds server 0 leads. */
struct roster roster_of(const struct job *job);

static inline uint32_t roster_workers(const struct roster *roster)
{
    return roster->servers + roster->clients;
}

static inline uint8_t roster_role(const struct roster *roster, uint16_t worker)
{
    return worker < roster->servers ? roster->server_role : roster->client_role;
}

/* Fills (servers + clients) roles by worker number: struct rpc_config's roster. */
void roster_roles(const struct roster *roster, uint8_t roles[ROSTER_WORKERS_MAX]);

#endif
