/* Plays the evaluations: in the player's own environments, or by the observers' shares. The agent's thread.
 */
#include "worker/reinforce/evaluator.h"

#include "kernels/base/profile.h"
#include "worker/model/policy.h"
#include "worker/reinforce/evaluation_shares.h"
#include "worker/reinforce/player.h"
#include "worker/reinforce/policy_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct evaluator {
    const struct worker *worker;
    struct player player;
    struct evaluation_shares shares; /* the observers'; of 0, where the player has environments */
    struct policy_values values;     /* on their way from the agent's policy to the player's */
};

/* ---- opening ---- */

static enum status open_player(struct evaluator *e, const struct environment_spec *spec, struct error *error)
{
    const struct job *job = &e->worker->job;
    if (!job_has_python_environments(job))
        return player_open(&e->player, job, job->evaluation.episodes, error);
    const enum status status = player_open_apart(&e->player, job, spec, job->evaluation.episodes, error);
    return status == STATUS_OK ? evaluation_shares_open(&e->shares, &e->player, job_observers(job),
                                                        !job->evaluation.deterministic, error)
                               : status;
}

enum status evaluator_new(struct evaluator **out, const struct worker *worker,
                          const struct environment_spec *spec, struct error *error)
{
    const struct job *job = &worker->job;
    *out = NULL;
    if (!job->evaluation.has_every)
        return STATUS_OK;
    struct evaluator *e = *out = calloc(1, sizeof *e);
    if (e == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for evaluations");
    e->worker = worker;
    e->player.steps_max = job->evaluation.steps;
    const struct policy_config config = policy_config_of(job, spec);
    const enum status status = policy_values_open(&e->values, &config, error);
    return status == STATUS_OK ? open_player(e, spec, error) : status;
}

void evaluator_free(struct evaluator *e)
{
    if (e == NULL)
        return;
    evaluation_shares_close(&e->shares);
    player_close(&e->player);
    policy_values_close(&e->values);
    free(e);
}

/* ---- the observers' episodes ---- */

/* The answer to run_evaluation. */
static enum status take_share(void *context, uint32_t seat, const struct rpc_message *answer)
{
    struct evaluator *e = context;
    return evaluation_shares_end(&e->shares, seat, answer);
}

enum status evaluator_call(struct evaluator *e, struct seats *seats, uint32_t seat, struct error *error)
{
    struct rpc_message message;
    evaluation_shares_begin(&e->shares, seat, &message);
    return seats_call(seats, seat, METHOD_RUN_EVALUATION, &message, take_share, e, error);
}

/* Observers of a share without episodes are not asked. */
static enum status call_observers(struct evaluator *e, struct seats *seats, struct error *error)
{
    enum status status = STATUS_OK;
    seats_begin_calls(seats);
    for (uint32_t i = 0; i < e->shares.count && status == STATUS_OK; i++)
        if (e->shares.of[i].count > 0)
            status = evaluator_call(e, seats, i, error);
    return status;
}

void evaluator_step(struct evaluator *e, uint32_t seat, struct rpc_request *request, const struct step *step,
                    struct error *failure)
{
    struct rpc_message answer;
    struct error why;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    if (evaluation_shares_check(&e->shares, seat, step, &why) != STATUS_OK)
        rpc_reject(request, "%s", why.text);
    else if (failure->status == STATUS_OK &&
             evaluation_shares_step(&e->shares, seat, step, &answer, failure) == STATUS_OK)
        rpc_reply(request, &answer);
    else
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
    profile_leave(before);
}

/* ---- an evaluation ---- */

/* Plays all episodes in the player's own environments. */
static enum status play(struct evaluator *e, policy_progress *progress, void *context, struct error *error)
{
    struct player *player = &e->player;
    const bool sampled = !e->worker->job.evaluation.deterministic;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    enum status status = player_begin(player, 0, player->episodes, error);
    while (status == STATUS_OK && player->alive > 0) {
        status = player_step(player, sampled, error);
        progress(context);
        if (e->worker->hurry)
            status = STATUS_SHUTDOWN;
    }
    profile_leave(before);
    return status;
}

enum status evaluator_begin(struct evaluator *e, struct policy *policy, struct seats *seats,
                            policy_progress *progress, void *context, struct error *error)
{
    enum status status = policy_save(policy, &e->values, error);
    if (status == STATUS_OK)
        status = policy_restore(e->player.policy, &e->values, error);
    if (status != STATUS_OK)
        return status;
    return e->shares.count > 0 ? call_observers(e, seats, error) : play(e, progress, context, error);
}

/* The metric of this name; NaN: there is none. */
static double metric_of(const struct control_metrics *metrics, const char *name)
{
    for (uint32_t i = 0; i < metrics->count; i++)
        if (strcmp(metrics->of[i].name, name) == 0)
            return metrics->of[i].mean;
    return (double)NAN;
}

struct control_evaluation evaluator_end(const struct evaluator *e)
{
    const struct player_summary found = player_summarize(&e->player);
    return (struct control_evaluation){.mean_reward = found.mean,
                                       .std_reward = found.deviation,
                                       .mean_ep_length = found.length,
                                       .success_rate = metric_of(&found.metrics, "is_success")};
}
