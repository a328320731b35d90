/* Evaluations: after every so many updates the policy plays whole episodes apart from training, in
 * environments of the agent's process. They are episodes 0 of the environments (player.h), as the command
 * `evaluate` plays them: that command finds the same mean in the same checkpoint. The agent's thread. */
#include "worker/reinforce/agent.h"
#include "worker/reinforce/player.h"
#include "worker/reinforce/policy_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct agent_evaluator {
    struct player player;
    struct policy_values values; // on their way from the agent's policy to the player's
};

enum status agent_evaluate_open(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    agent->evaluated = (double)NAN;
    if (!job->evaluation.has_every)
        return STATUS_OK;
    agent->evaluator = calloc(1, sizeof *agent->evaluator);
    if (agent->evaluator == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for evaluations");
    agent->evaluator->player.steps_max = job->evaluation.steps;
    const struct policy_config config = policy_config_of(job, &agent->world.spec);
    const enum status status = policy_values_open(&agent->evaluator->values, &config, error);
    return status == STATUS_OK ? player_open(&agent->evaluator->player, job, job->evaluation.episodes, error)
                               : status;
}

void agent_evaluate_close(struct agent *agent)
{
    if (agent->evaluator == NULL)
        return;
    player_close(&agent->evaluator->player);
    policy_values_close(&agent->evaluator->values);
    free(agent->evaluator);
}

bool agent_evaluates(const struct agent *agent)
{
    return agent->evaluator != NULL && agent->episode % agent->worker->job.evaluation.every == 0;
}

/* The metric of this name; NaN: there is none. */
static double metric_of(const struct control_metrics *metrics, const char *name)
{
    for (uint32_t i = 0; i < metrics->count; i++)
        if (strcmp(metrics->of[i].name, name) == 0)
            return metrics->of[i].mean;
    return (double)NAN;
}

enum status agent_evaluate(struct agent *agent, policy_progress *progress, struct error *error)
{
    struct agent_evaluator *evaluator = agent->evaluator;
    struct player *player = &evaluator->player;
    const bool sampled = !agent->worker->job.evaluation.deterministic;
    enum status status = policy_save(agent->policy, &evaluator->values, error);
    if (status == STATUS_OK)
        status = policy_restore(player->policy, &evaluator->values, error);
    if (status == STATUS_OK)
        status = player_begin(player, 0, player->episodes, error);
    while (status == STATUS_OK && player->alive > 0) {
        status = player_step(player, sampled, error);
        progress(agent);
        if (agent->worker->hurry)
            return STATUS_SHUTDOWN;
    }
    if (status != STATUS_OK)
        return status;
    const struct player_summary found = player_summarize(player);
    agent->evaluated = found.mean;
    agent->figures.has_evaluation = true;
    agent->figures.evaluation =
        (struct control_evaluation){.mean_reward = found.mean,
                                    .std_reward = found.deviation,
                                    .mean_ep_length = found.length,
                                    .success_rate = metric_of(&found.metrics, "is_success")};
    return STATUS_OK;
}
