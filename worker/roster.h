/* The roster: the workers of a job, their roles, their numbers, and which of them have sessions.
 *
 * Servers have the numbers 0 to servers - 1, their clients follow. The workers 0 to listeners - 1 bind, and
 * every worker dials all of them that have lower numbers than its own. So two workers have a session when the
 * lower of the two listens. Pure; used by the supervisor and the workers. */
#ifndef WORKER_ROSTER_H
#define WORKER_ROSTER_H

#include "worker/job/job.h"

enum {
    ROSTER_WORKERS_MAX = JOB_SERVERS_MAX + 1024, /* the most that a job file can ask for */
    ROSTER_LISTENERS_MAX = JOB_SERVERS_MAX + JOB_TRAINERS_MAX - 1,
    ROSTER_OBSERVERS_WITH_SEGMENTS = 64, /* each worker holds a descriptor of each segment */
};

struct roster {
    uint32_t servers, clients;
    uint32_t listeners;               /* how many workers bind: those of the lowest numbers */
    uint8_t server_role, client_role; /* enum wire_role */
    bool segments;                    /* every worker has a segment (worker/net/segment.h) */
    uint16_t lead;                    /* the worker that reports FINISHED and gets the order to drain */
    uint32_t replaceable; /* a worker of this number or a higher one owns no parameters: a successor can take
                             its place while the others go on */
};

/* reinforce: 1 agent, job_observers observers; only the agent listens; segments for up to
 * ROSTER_OBSERVERS_WITH_SEGMENTS observers. parameter-server: server.count
 * pservers, job_trainers trainers; the pservers listen; segments where the transport is shared.
 * model-parallel: the same workers, led by the first trainer, and all but the last one listen. In the other
 * kinds server 0 leads. Observers are replaceable, and the trainers of a parameter-server job. */
struct roster roster_of(const struct job *job);

static inline uint32_t roster_workers(const struct roster *roster)
{
    return roster->servers + roster->clients;
}

static inline uint8_t roster_role(const struct roster *roster, uint16_t worker)
{
    return worker < roster->servers ? roster->server_role : roster->client_role;
}

/* How many workers `worker` dials: those of the numbers 0 to this - 1. */
static inline uint32_t roster_dialed(const struct roster *roster, uint16_t worker)
{
    return worker < roster->listeners ? worker : roster->listeners;
}

/* Fills (servers + clients) roles by worker number: struct rpc_config's roster. */
void roster_roles(const struct roster *roster, uint8_t roles[ROSTER_WORKERS_MAX]);

#endif
