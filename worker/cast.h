/* Who plays in a job: how many workers of which role, and their numbers.
 *
 * Servers have the numbers 0 to servers - 1, their clients follow. Each worker dials every server below it:
 * a client all of them, a server those with lower numbers. Pure; both the supervisor and the workers ask. */
#ifndef WORKER_CAST_H
#define WORKER_CAST_H

#include "worker/job/job.h"

enum { CAST_WORKERS_MAX = JOB_SERVERS_MAX + 1024 }; /* the most that a job file can ask for */

struct cast {
    uint32_t servers, clients;
    uint8_t server_role, client_role; /* enum wire_role */
    bool segments;                    /* every worker has a segment (worker/segment.h) */
    uint16_t lead;                    /* who says FINISHED, and is told to drain */
};

/* reinforce: 1 agent, observers.count observers. parameter-server: server.count pservers, trainers.count
 * trainers; segments where the transport is shared. model-parallel: the same, led by the first trainer; in
 * the other kinds server 0 leads. */
struct cast cast_of(const struct job *job);

static inline uint32_t cast_workers(const struct cast *cast)
{
    return cast->servers + cast->clients;
}

static inline uint8_t cast_role(const struct cast *cast, uint16_t worker)
{
    return worker < cast->servers ? cast->server_role : cast->client_role;
}

/* Fills (servers + clients) roles by worker number: struct rpc_config's roster. */
void cast_roster(const struct cast *cast, uint8_t roster[CAST_WORKERS_MAX]);

#endif
