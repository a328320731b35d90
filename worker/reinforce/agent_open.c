/* Opens what the agent needs, in the order in which one needs another, and closes all of it. */
#include "worker/reinforce/agent.h"

#include "kernels/base/log.h"
#include "kernels/kernels.h"
#include "worker/device.h"
#include "worker/reinforce/policy_shape.h"
#include "worker/roster.h"

#include <stdlib.h>

static const struct rpc_method methods[] = {
    {.method = METHOD_STEP,
     .callers = WIRE_ROLE_OBSERVER,
     .tensor_count = 4,
     .tensors = {{.dtype = WIRE_U32, .rank = 1},
                 {.dtype = WIRE_F32, .rank = 2, .dims = {0, 4}},
                 {.dtype = WIRE_F32, .rank = 1},
                 {.dtype = WIRE_U8, .rank = 1}},
     .handler = agent_step},
};

static void observer_joined(void *context, uint16_t worker)
{
    struct agent *agent = context;
    (void)worker;
    agent->joined++;
}

static void observer_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct agent *agent = context;
    agent->joined--;
    if (why == STATUS_INVALID)
        log_warning("observer %u left: %s", worker, text);
}

static enum status open_memory(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    uint32_t observers = job->observers.count, environments = agent->environments;
    agent->seats = calloc(observers, sizeof *agent->seats);
    agent->alive = calloc(environments, 1);
    agent->batch.row = calloc(environments, sizeof *agent->batch.row);
    agent->batch.environment = calloc(environments, sizeof *agent->batch.environment);
    agent->batch.step = calloc(environments, sizeof *agent->batch.step);
    agent->batch.actions = calloc(environments, 1);
    if (agent->seats == NULL || agent->alive == NULL || agent->batch.row == NULL ||
        agent->batch.environment == NULL || agent->batch.step == NULL || agent->batch.actions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", environments);
    for (uint32_t i = 0; i < observers; i++)
        agent->seats[i] = (struct agent_seat){
            .agent = agent, .worker = (uint16_t)(i + 1), .first = i * agent->per_observer};
    return STATUS_OK;
}

static enum status open_policy(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    uint32_t steps = job->rollout.mode == JOB_ROLLOUT_STEPS ? job->rollout.steps : CARTPOLE_STEPS_MAX;
    struct policy_config policy = {
        .shape = policy_shape_of(job),
        .dropout = job->policy.dropout,
        .seed = job->seed,
        .adam = {.lr = job->optimizer.lr,
                 .beta1 = job->optimizer.beta1,
                 .beta2 = job->optimizer.beta2,
                 .epsilon = job->optimizer.epsilon},
        .environments = agent->environments,
        .rows_max = agent->environments * steps,
        .one_size = job->coalesce.mode == JOB_COALESCE_BARRIER,
    };
    enum status status = policy_new(&agent->policy, &policy, agent->backend, error);
    if (status != STATUS_OK)
        return status;
    return rollout_new(&agent->rollout, agent->environments, steps, CARTPOLE_STATE_SIZE,
                       mlp_mask_words(&policy.shape), error);
}

static enum status open_coalescer(struct agent *agent, struct error *error)
{
    static const enum coalescer_mode modes[] = {[JOB_COALESCE_OFF] = COALESCER_OFF,
                                                [JOB_COALESCE_BARRIER] = COALESCER_BARRIER,
                                                [JOB_COALESCE_DYNAMIC] = COALESCER_DYNAMIC};
    const struct job *job = &agent->worker->job;
    struct coalescer_config config = {.mode = modes[job->coalesce.mode],
                                      .slots_max = job->observers.count,
                                      .max_batch = job->coalesce.max_batch,
                                      .max_delay_us = job->coalesce.max_delay_us,
                                      .launch = agent_launch,
                                      .context = agent};
    if (coalescer_new(&agent->coalescer, &config) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the coalescer");
    return STATUS_OK;
}

static enum status open_rpc(struct agent *agent, struct error *error)
{
    struct worker *worker = agent->worker;
    const struct rpc_config config = {.pending_max = worker->job.observers.count,
                                      .incoming_max = 2 * worker->job.observers.count + 16,
                                      .rows_max = agent->per_observer,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = agent,
                                      .joined = observer_joined,
                                      .left = observer_left};
    return worker_open_rpc(worker, &config, &agent->rpc, error);
}

enum status agent_open(struct agent *agent, struct worker *worker, struct error *error)
{
    const struct job *job = &worker->job;
    agent->worker = worker;
    agent->per_observer = job->observers.environments;
    agent->environments = job->observers.count * agent->per_observer;
    agent->returns = (struct returns_config){
        .gamma = job->returns.gamma,
        .normalize = job->returns.normalize,
        .scale = job->loss.reduction == JOB_REDUCTION_SUM ? 1.0 : 1.0 / agent->environments};
    enum status status = open_memory(agent, error);
    if (status == STATUS_OK)
        status = device_open_gpu(&agent->backend, &worker->job, error);
    if (status == STATUS_OK)
        status = open_policy(agent, error);
    if (status == STATUS_OK)
        status = open_coalescer(agent, error);
    if (status == STATUS_OK)
        status = open_rpc(agent, error);
    if (status == STATUS_OK)
        status = agent_checkpoint_open(agent, error);
    if (status == STATUS_OK)
        status = worker_attach(worker, agent->rpc);
    return status;
}

void agent_drop_request(void *context, void *request)
{
    (void)context;
    rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
}

void agent_close(struct agent *agent)
{
    enum { LINGER_MS = 200 };
    if (agent->coalescer != NULL)
        coalescer_clear(agent->coalescer, agent_drop_request);
    agent_checkpoint_close(agent);
    rpc_free(agent->rpc, "the job is over", LINGER_MS);
    agent->worker->rpc = NULL;
    coalescer_free(agent->coalescer);
    rollout_free(agent->rollout);
    policy_free(agent->policy);
    backend_close(agent->backend);
    free(agent->seats);
    free(agent->alive);
    free(agent->batch.row);
    free(agent->batch.environment);
    free(agent->batch.step);
    free(agent->batch.actions);
}
