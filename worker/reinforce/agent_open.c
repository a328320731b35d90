/* Opens what the agent needs, in the order in which one needs another, and closes all of it. */
#include "worker/reinforce/agent.h"

#include "kernels/base/log.h"
#include "kernels/kernels.h"
#include "worker/roster.h"

#include <stdlib.h>

static const struct rpc_method methods[] = {
    {.method = METHOD_DESCRIBE,
     .callers = WIRE_ROLE_OBSERVER,
     .any_tensors = true,
     .handler = agent_describe},
    {.method = METHOD_STEP, .callers = WIRE_ROLE_OBSERVER, .any_tensors = true, .handler = agent_step},
};

static void observer_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct agent *agent = context;
    agent->described -= agent->seats[worker - 1].described;
    agent->seats[worker - 1].described = false;
    if (why == STATUS_INVALID)
        log_warning("observer %u left: %s", worker, text);
}

static void open_groups(struct agent *agent, struct agent_seat *seat)
{
    const struct job *job = &agent->worker->job;
    const uint32_t first = (seat->worker - 1u) * agent->per_observer;
    for (uint32_t i = 0; i < agent->groups; i++) {
        const uint32_t begin = job_group_begin(job, i);
        seat->groups[i] = (struct agent_group){
            .seat = seat, .first = first + begin, .count = job_group_begin(job, i + 1) - begin};
    }
}

static enum status open_seats(struct agent *agent, struct error *error)
{
    const uint32_t observers = job_observers(&agent->worker->job);
    const size_t room = observers > 0 ? observers : 1; /* NULL means no memory */
    agent->seats = calloc(room, sizeof *agent->seats);
    agent->all = calloc(room * agent->groups, sizeof *agent->all);
    agent->alive = calloc(agent->environments, 1);
    agent->live = calloc(agent->groups, sizeof *agent->live);
    if (agent->seats == NULL || agent->all == NULL || agent->alive == NULL || agent->live == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", agent->environments);
    for (uint32_t i = 0; i < observers; i++) {
        agent->seats[i] = (struct agent_seat){
            .agent = agent, .worker = (uint16_t)(i + 1), .groups = agent->all + (size_t)i * agent->groups};
        open_groups(agent, &agent->seats[i]);
    }
    return STATUS_OK;
}

static enum status open_coalescers(struct agent *agent, struct error *error)
{
    static const enum coalescer_mode modes[] = {[JOB_COALESCE_OFF] = COALESCER_OFF,
                                                [JOB_COALESCE_BARRIER] = COALESCER_BARRIER,
                                                [JOB_COALESCE_DYNAMIC] = COALESCER_DYNAMIC};
    const struct job *job = &agent->worker->job;
    const struct coalescer_config config = {.mode = modes[job->coalesce.mode],
                                            .slots_max = job_observers(job),
                                            .max_batch = job->coalesce.max_batch,
                                            .max_delay_us = job->coalesce.max_delay_us,
                                            .launch = agent_launch,
                                            .context = agent,
                                            .stats = &agent->stats};
    agent->coalescers = calloc(agent->groups, sizeof *agent->coalescers);
    enum status status = agent->coalescers != NULL ? STATUS_OK : STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < agent->groups && status == STATUS_OK; i++)
        status = coalescer_new(&agent->coalescers[i], &config);
    return status == STATUS_OK ? status : error_set(error, status, "no memory for the coalescer");
}

static enum status open_rpc(struct agent *agent, struct error *error)
{
    struct worker *worker = agent->worker;
    const struct rpc_config config = {.pending_max = job_observers(&worker->job) + 1,
                                      .incoming_max = 2 * job_observers(&worker->job) * agent->groups + 16,
                                      .rows_max = agent->per_observer,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = agent,
                                      .left = observer_left,
                                      .outbox = roster_of(&worker->job).segments ? &agent->outbox : NULL};
    return worker_open_rpc(worker, &config, &agent->rpc, error);
}

enum status agent_open(struct agent *agent, struct worker *worker, struct error *error)
{
    agent->worker = worker;
    agent->per_observer = worker->job.observers.environments;
    agent->groups = worker->job.observers.groups;
    const uint32_t observers = job_observers(&worker->job);
    agent->environments = (observers > 0 ? observers : 1) * agent->per_observer;
    enum status status = open_seats(agent, error);
    if (status == STATUS_OK)
        status = open_coalescers(agent, error);
    if (status == STATUS_OK)
        status = open_rpc(agent, error);
    if (status == STATUS_OK)
        status = worker_attach(worker, agent->rpc);
    return status;
}

static void drop_request(void *context, void *group)
{
    (void)context;
    rpc_fail(((struct agent_group *)group)->waiting, STATUS_SHUTDOWN, "the job is ending");
}

void agent_drop_waiting(struct agent *agent)
{
    for (uint32_t i = 0; agent->coalescers != NULL && i < agent->groups; i++)
        if (agent->coalescers[i] != NULL)
            coalescer_clear(agent->coalescers[i], drop_request);
}

void agent_close(struct agent *agent)
{
    enum { LINGER_MS = 200 };
    agent_drop_waiting(agent);
    agent_checkpoint_close(agent);
    rpc_free(agent->rpc, "the job is over", LINGER_MS);
    agent->worker->rpc = NULL;
    for (uint32_t i = 0; agent->coalescers != NULL && i < agent->groups; i++)
        coalescer_free(agent->coalescers[i]);
    free(agent->coalescers);
    agent_close_world(agent);
    agent_own_close(agent);
    for (uint32_t i = 0; agent->seats != NULL && i < job_observers(&agent->worker->job); i++)
        free(agent->seats[i].states);
    free(agent->seats);
    free(agent->all);
    free(agent->alive);
    free(agent->live);
}
