/* The table of who plays in which kind of job. Pure; any process. */
#include "worker/cast.h"

#include "worker/net/wire.h"

#include <assert.h>

struct cast cast_of(const struct job *job)
{
    if (job->kind != JOB_REINFORCE)
        return (struct cast){.servers = job->server.count,
                             .clients = job->trainers.count,
                             .server_role = WIRE_ROLE_PSERVER,
                             .client_role = WIRE_ROLE_TRAINER,
                             .segments = job->transport == JOB_TRANSPORT_SHARED,
                             .lead = job->kind == JOB_MODEL_PARALLEL ? (uint16_t)job->server.count : 0};
    return (struct cast){.servers = 1,
                         .clients = job->observers.count,
                         .server_role = WIRE_ROLE_AGENT,
                         .client_role = WIRE_ROLE_OBSERVER};
}

void cast_roster(const struct cast *cast, uint8_t roster[CAST_WORKERS_MAX])
{
    assert(cast_workers(cast) <= CAST_WORKERS_MAX);
    for (uint32_t i = 0; i < cast_workers(cast); i++)
        roster[i] = cast_role(cast, (uint16_t)i);
}
