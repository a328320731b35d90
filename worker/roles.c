/* The roles: their names, and the function that runs each in a kind of job. The frame calls a role only
 * through this table. */
#include "worker/worker.h"

#include <string.h>

static const struct role roles[] = {
    {"agent", WIRE_ROLE_AGENT},
    {"observer", WIRE_ROLE_OBSERVER},
    {"pserver", WIRE_ROLE_PSERVER},
    {"trainer", WIRE_ROLE_TRAINER},
};

/* The function that runs a role in a kind of job. */
static const struct {
    int job_kind;
    uint8_t wire;
    role_run *run;
} runs[] = {
    {JOB_REINFORCE, WIRE_ROLE_AGENT, agent_run},
    {JOB_REINFORCE, WIRE_ROLE_OBSERVER, observer_run},
    {JOB_PARAMETER_SERVER, WIRE_ROLE_PSERVER, pserver_run},
    {JOB_PARAMETER_SERVER, WIRE_ROLE_TRAINER, trainer_run},
    {JOB_MODEL_PARALLEL, WIRE_ROLE_PSERVER, parallel_server_run},
    {JOB_MODEL_PARALLEL, WIRE_ROLE_TRAINER, parallel_trainer_run},
};

role_run *role_run_of(uint8_t wire, int job_kind)
{
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        if (runs[i].wire == wire && runs[i].job_kind == job_kind)
            return runs[i].run;
    return NULL;
}

const struct role *role_by_wire(uint8_t wire)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (roles[i].wire == wire)
            return &roles[i];
    return NULL;
}

const struct role *role_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(roles[i].name, name) == 0)
            return &roles[i];
    return NULL;
}
