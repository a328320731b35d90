/* From an observer's description of its environment to all that depends on it. The agent's thread.
 *
 * The observers load a plug-in's code, so that the code's crash costs an observer. The agent loads the code
 * only where the agent steps environments itself: where the job has no observers, and for evaluations. What
 * the agent knows of the observers' environment is what the description says, and the agent trusts none of
 * it. */
#include "kernels/base/processors.h"
#include "kernels/kernels.h"
#include "worker/reinforce/agent.h"
#include "worker/reinforce/policy_shape.h"

#include <stdlib.h>
#include <string.h>

/* ---- what depends on the environment ---- */

static enum status open_batch(struct agent *agent, struct error *error)
{
    const uint32_t columns = agent->rollout->columns;
    agent->batch.row = calloc(columns, sizeof *agent->batch.row);
    agent->batch.column = calloc(columns, sizeof *agent->batch.column);
    agent->batch.step = calloc(columns, sizeof *agent->batch.step);
    agent->batch.actions = calloc(columns, agent->rollout->config.action_bytes);
    if (agent->batch.row == NULL || agent->batch.column == NULL || agent->batch.step == NULL ||
        agent->batch.actions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u rows", columns);
    return STATUS_OK;
}

/* The most steps that a rollout can have. */
static enum status find_steps(const struct agent *agent, uint32_t *steps, struct error *error)
{
    const struct job *job = &agent->worker->job;
    *steps = job->rollout.mode == JOB_ROLLOUT_STEPS ? job->rollout.steps : agent->world.spec.steps_max;
    if (*steps > 0)
        return STATUS_OK;
    return error_set(
        error, STATUS_INVALID,
        "an episode of %s has no greatest length, and /rollout/mode \"episode\" keeps whole ones: "
        "expected \"steps\"",
        agent->world.name);
}

static enum status open_policy(struct agent *agent, uint32_t steps, struct error *error)
{
    const struct job *job = &agent->worker->job;
    struct policy_config policy = policy_config_of(job, &agent->world.spec);
    policy.environments = agent->environments * agent->world.spec.agents;
    policy.rows_max = policy.environments * steps;
    policy.threads = job->policy.has_threads ? job->policy.threads : processors_count();
    policy.one_size = job->coalesce.mode == JOB_COALESCE_BARRIER;
    const enum status status = policy_open_backend(&agent->backend, &policy, job, error);
    return status == STATUS_OK ? policy_new(&agent->policy, &policy, agent->backend, error) : status;
}

static enum status open_rollout(struct agent *agent, uint32_t steps, struct error *error)
{
    const struct environment_spec *spec = &agent->world.spec;
    const struct rollout_config config = {
        .environments = agent->environments,
        .agents = spec->agents,
        .steps_max = steps,
        .observation_bytes = environment_space_bytes(&spec->observation),
        .action_bytes = environment_space_bytes(&spec->action),
        .choices = spec->has_mask == 1 ? (uint32_t)environment_choices(spec) : 0,
        .dropout_words = policy_dropout_words(agent->policy),
        .bootstraps = agent_is_actor_critic(agent),
    };
    return rollout_new(&agent->rollout, &config, error);
}

static enum status open_world(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    uint32_t steps;
    enum status status = find_steps(agent, &steps, error);
    if (status == STATUS_OK)
        status = open_policy(agent, steps, error);
    if (status == STATUS_OK)
        status = open_rollout(agent, steps, error);
    if (status == STATUS_OK)
        status = open_batch(agent, error);
    if (status == STATUS_OK)
        status = episode_returns_open(&agent->episode_returns, agent->rollout->columns, error);
    if (status == STATUS_OK)
        status = episode_metrics_open(&agent->metrics, &agent->world.spec, agent->rollout->columns, error);
    if (status == STATUS_OK && agent_is_actor_critic(agent))
        status = ppo_open(&agent->ppo, job, agent->rollout, error);
    if (status == STATUS_OK)
        status = agent_evaluate_open(agent, error);
    if (status == STATUS_OK)
        status = agent_checkpoint_open(agent, error);
    if (status == STATUS_OK &&
        (agent->episode > 0 || job->checkpoint.has_every || job->checkpoint.has_every_s))
        agent_states_warn(agent, agent->world.can_save);
    agent->returns =
        (struct returns_config){.gamma = job->returns.gamma,
                                .normalize = job->returns.normalize,
                                .scale = job->loss.reduction == JOB_REDUCTION_SUM
                                             ? 1.0
                                             : 1.0 / (agent->environments * agent->world.spec.agents)};
    return status;
}

void agent_close_world(struct agent *agent)
{
    agent_evaluate_close(agent);
    ppo_close(&agent->ppo);
    episode_returns_close(&agent->episode_returns);
    rollout_free(agent->rollout);
    policy_free(agent->policy);
    backend_close(agent->backend);
    episode_metrics_close(&agent->metrics);
    environment_description_fini(&agent->world);
    free(agent->text);
    free(agent->batch.row);
    free(agent->batch.column);
    free(agent->batch.step);
    free(agent->batch.actions);
}

/* ---- the call ---- */

void agent_report_ready(struct agent *agent)
{
    if (!agent->ready)
        worker_report(CONTROL_READY, NULL, 0);
    agent->ready = true;
}

/* Takes the first description. STATUS_INVALID: it is none; other errors are the job's. */
static enum status take_first(struct agent *agent, const char *text, size_t bytes, struct error *error)
{
    const enum status status = environment_description_read(&agent->world, text, bytes, error);
    if (status == STATUS_OK)
        agent->text = strndup(text, bytes);
    if (status == STATUS_OK && agent->text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environment's description");
    if (status != STATUS_OK)
        environment_description_fini(&agent->world);
    return status;
}

enum status agent_open_world(struct agent *agent, const char *text, size_t bytes, struct error *error)
{
    enum status status = take_first(agent, text, bytes, error);
    if (status == STATUS_OK)
        status = open_world(agent, error);
    if (status == STATUS_OK)
        agent_report_ready(agent);
    return status;
}

/* Whether it is the environment that the agent knows. */
static bool is_same(const struct agent *agent, const char *text, size_t bytes)
{
    return strlen(agent->text) == bytes && memcmp(agent->text, text, bytes) == 0;
}

void agent_describe(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct agent *agent = context;
    struct agent_seat *seat = &agent->seats[rpc_request_source(request) - 1];
    const struct wire_tensor *tensor = &message->tensors[0];
    const char *text = message->data[0];
    struct error why;
    if (message->tensor_count != 1 || tensor->dtype != WIRE_U8 || tensor->rank != 1 || seat->described) {
        rpc_reject(request, "a description: expected one, as a tensor of bytes");
        return;
    }
    if (agent->text == NULL) {
        if (take_first(agent, text, tensor->dims[0], &why) != STATUS_OK) {
            rpc_reject(request, "the description of the environment: %s", why.text);
            return;
        }
        if (open_world(agent, &why) != STATUS_OK)
            agent->failure = why;
    } else if (!is_same(agent, text, tensor->dims[0])) {
        error_set(
            &agent->failure, STATUS_INVALID,
            "observer %u has another environment than an observer before: it describes %.*s, expected %.*s",
            seat->worker, (int)tensor->dims[0] > 150 ? 150 : (int)tensor->dims[0], text, 150, agent->text);
    }
    if (agent->failure.status != STATUS_OK) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    agent_report_ready(agent);
    seat->described = seat->fresh = true;
    agent->described++;
    rpc_reply(request, &(struct rpc_message){0});
}
