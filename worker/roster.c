/* The table of workers by kind of job. Pure; any process. */
#include "worker/roster.h"

#include "worker/net/wire.h"

#include <assert.h>

struct roster roster_of(const struct job *job)
{
    const bool is_parallel = job->kind == JOB_MODEL_PARALLEL;
    const uint32_t servers = job->server.count, clients = job_trainers(job);
    if (job->kind == JOB_REINFORCE)
        return (struct roster){.servers = 1,
                               .clients = job_observers(job),
                               .listeners = 1,
                               .server_role = WIRE_ROLE_AGENT,
                               .client_role = WIRE_ROLE_OBSERVER,
                               .segments = job_observers(job) <= ROSTER_OBSERVERS_WITH_SEGMENTS,
                               .replaceable = 1};
    return (struct roster){.servers = servers,
                           .clients = clients,
                           .listeners = is_parallel ? servers + clients - 1 : servers,
                           .server_role = WIRE_ROLE_PSERVER,
                           .client_role = WIRE_ROLE_TRAINER,
                           .segments = job->transport == JOB_TRANSPORT_SHARED,
                           .lead = is_parallel ? (uint16_t)servers : 0,
                           .replaceable = is_parallel ? servers + clients : servers};
}

void roster_roles(const struct roster *roster, uint8_t roles[ROSTER_WORKERS_MAX])
{
    assert(roster_workers(roster) <= ROSTER_WORKERS_MAX);
    for (uint32_t i = 0; i < roster_workers(roster); i++)
        roles[i] = roster_role(roster, (uint16_t)i);
}
