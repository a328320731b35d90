/* Evaluations: after every so many updates the policy plays whole episodes apart from training: episodes 0 of
 * environments 0, 1, 2 … (player.h), as the command `evaluate` plays them, which finds the same mean in the
 * same checkpoint. Environments in C are in the agent's process. Those in Python are in the observers'
 * processes, and the agent's loop goes on meanwhile (evaluation_shares.h). The agent's thread. */
#include "kernels/base/profile.h"
#include "worker/reinforce/agent.h"
#include "worker/reinforce/evaluation_shares.h"
#include "worker/reinforce/player.h"
#include "worker/reinforce/policy_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct agent_evaluator {
    struct player player;
    struct evaluation_shares shares; // the observers'; of 0, where the player has environments
    struct policy_values values;     // on their way from the agent's policy to the player's
};

/* ---- opening ---- */

static enum status open_player(struct agent *agent, struct error *error)
{
    const struct job *job = &agent->worker->job;
    struct agent_evaluator *evaluator = agent->evaluator;
    if (!job->environment.has_gymnasium && !job->environment.has_class)
        return player_open(&evaluator->player, job, job->evaluation.episodes, error);
    const enum status status =
        player_open_apart(&evaluator->player, job, &agent->world.spec, job->evaluation.episodes, error);
    return status == STATUS_OK
               ? evaluation_shares_open(&evaluator->shares, &evaluator->player, job_observers(job),
                                        !job->evaluation.deterministic, error)
               : status;
}

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
    return status == STATUS_OK ? open_player(agent, error) : status;
}

void agent_evaluate_close(struct agent *agent)
{
    if (agent->evaluator == NULL)
        return;
    evaluation_shares_close(&agent->evaluator->shares);
    player_close(&agent->evaluator->player);
    policy_values_close(&agent->evaluator->values);
    free(agent->evaluator);
}

bool agent_evaluates(const struct agent *agent)
{
    return agent->evaluator != NULL && agent->episode % agent->worker->job.evaluation.every == 0;
}

/* ---- the observers' episodes ---- */

/* The answer to METHOD_RUN_EVALUATION. For rpc_call_then; arg: the seat. An answer that does not match the
 * share's steps costs the observer its session. */
static void share_returned(struct future *future, void *arg)
{
    struct agent_seat *seat = arg;
    struct agent *agent = seat->agent;
    struct evaluation_shares *shares = &agent->evaluator->shares;
    seat->returned = future_status(future);
    if (seat->returned == STATUS_OK &&
        evaluation_shares_end(shares, seat->worker - 1u, future_value(future)) != STATUS_OK) {
        rpc_reject_worker(agent->rpc, seat->worker, "its answer to run_evaluation does not match its steps");
        seat->returned = STATUS_PEER_DIED;
    }
    seat->lost = seat->returned == STATUS_PEER_DIED;
    if (seat->lost)
        agent->lost++;
    else
        agent->playing--;
}

enum status agent_evaluate_call(struct agent_seat *seat, struct error *error)
{
    struct rpc_message message;
    evaluation_shares_begin(&seat->agent->evaluator->shares, seat->worker - 1u, &message);
    return agent_call_seat(seat, METHOD_RUN_EVALUATION, &message, share_returned, error);
}

/* Observers of a share without episodes are not asked. */
static enum status call_observers(struct agent *agent, struct error *error)
{
    const struct evaluation_shares *shares = &agent->evaluator->shares;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < shares->count && status == STATUS_OK; i++) {
        agent->seats[i].returned = STATUS_OK;
        if (shares->of[i].count == 0)
            continue;
        agent->playing++;
        status = agent_evaluate_call(&agent->seats[i], error);
    }
    return status;
}

void agent_evaluate_step(struct agent_seat *seat, struct rpc_request *request, const struct step *s)
{
    struct agent *agent = seat->agent;
    struct evaluation_shares *shares = &agent->evaluator->shares;
    struct rpc_message answer;
    struct error why;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    if (evaluation_shares_check(shares, seat->worker - 1u, s, &why) != STATUS_OK)
        rpc_reject(request, "%s", why.text);
    else if (agent->failure.status == STATUS_OK &&
             evaluation_shares_step(shares, seat->worker - 1u, s, &answer, &agent->failure) == STATUS_OK)
        rpc_reply(request, &answer);
    else
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
    profile_leave(before);
}

/* ---- an evaluation ---- */

/* Plays all episodes in the player's own environments. */
static enum status play(struct agent *agent, policy_progress *progress, struct error *error)
{
    struct player *player = &agent->evaluator->player;
    const bool sampled = !agent->worker->job.evaluation.deterministic;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    enum status status = player_begin(player, 0, player->episodes, error);
    while (status == STATUS_OK && player->alive > 0) {
        status = player_step(player, sampled, error);
        progress(agent);
        if (agent->worker->hurry)
            status = STATUS_SHUTDOWN;
    }
    profile_leave(before);
    return status;
}

enum status agent_evaluate_begin(struct agent *agent, policy_progress *progress, struct error *error)
{
    struct agent_evaluator *evaluator = agent->evaluator;
    enum status status = policy_save(agent->policy, &evaluator->values, error);
    if (status == STATUS_OK)
        status = policy_restore(evaluator->player.policy, &evaluator->values, error);
    if (status != STATUS_OK)
        return status;
    return evaluator->shares.count > 0 ? call_observers(agent, error) : play(agent, progress, error);
}

/* The metric of this name; NaN: there is none. */
static double metric_of(const struct control_metrics *metrics, const char *name)
{
    for (uint32_t i = 0; i < metrics->count; i++)
        if (strcmp(metrics->of[i].name, name) == 0)
            return metrics->of[i].mean;
    return (double)NAN;
}

void agent_evaluate_end(struct agent *agent)
{
    const struct player_summary found = player_summarize(&agent->evaluator->player);
    agent->evaluated = found.mean;
    agent->figures.has_evaluation = true;
    agent->figures.evaluation =
        (struct control_evaluation){.mean_reward = found.mean,
                                    .std_reward = found.deviation,
                                    .mean_ep_length = found.length,
                                    .success_rate = metric_of(&found.metrics, "is_success")};
}
