/* The agent's use of the saver (worker/checkpoint/checkpoint_saver.h). The agent's thread.
 *
 * A checkpoint is taken between two episodes. It is written from a copy of the policy's values, so that the
 * next episode is played and learned from meanwhile. Everything else that an episode depends on is a function
 * of (seed, episode), but for environments that go on where the episode before has left them: agent_states.c.
 */
#include "kernels/base/profile.h"
#include "worker/reinforce/agent.h"
#include "worker/reinforce/policy_shape.h"

#include <math.h>
#include <stdlib.h>

static struct checkpoint_values agent_checkpoint_values(const struct agent *agent)
{
    return (struct checkpoint_values){.params = agent->values.params, .moments = agent->values.moments};
}

/* ---- resuming ---- */

static enum status agent_check_counters(const char *path, const struct checkpoint_counters *counters,
                                        struct error *error)
{
    const int measure = counters->score.measure;
    if ((measure == CHECKPOINT_RUNNING_REWARD || measure == CHECKPOINT_EVALUATION_REWARD) &&
        counters->trainers == 1)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.300s comes from a job of another kind: expected one of the kind \"reinforce\"", path);
}

static enum status resume_states(struct agent *agent, struct path path, struct error *error)
{
    struct error why;
    char *states;
    size_t bytes;
    enum status status = checkpoint_environments(path, &states, &bytes, error);
    if (status == STATUS_OK && (status = agent_states_load(agent, states, bytes, &why)) != STATUS_OK)
        error_set(error, status, "%.300s: %s", path.text, why.text);
    free(states);
    return status;
}

static enum status agent_resume(struct agent *agent, struct error *error)
{
    const struct path path = worker_resume_path(agent->worker);
    const struct checkpoint_values values = agent_checkpoint_values(agent);
    struct checkpoint_counters counters;
    enum status status = checkpoint_facts(path, &counters, NULL, error);
    if (status == STATUS_OK)
        status = agent_check_counters(path.text, &counters, error);
    if (status == STATUS_OK)
        status = checkpoint_load(path, &values, error);
    if (status == STATUS_OK)
        status = resume_states(agent, path, error);
    if (status != STATUS_OK)
        return status;
    agent->values.steps = counters.steps[0];
    agent->episode = counters.update;
    agent->running_reward = counters.running_reward;
    if (counters.score.measure == CHECKPOINT_EVALUATION_REWARD)
        agent->evaluated = counters.score.value;
    return policy_restore(agent->policy, &agent->values, error);
}

/* ---- opening and closing ---- */

enum status agent_checkpoint_open(struct agent *agent, struct error *error)
{
    const struct worker *worker = agent->worker;
    const struct policy_config policy = policy_config_of(&worker->job, &agent->world.spec);
    enum status status = policy_values_open(&agent->values, &policy, error);
    if (status == STATUS_OK && worker_resumes(worker))
        status = agent_resume(agent, error);
    if (status != STATUS_OK)
        return status;
    const struct checkpoint_saver_config config = {.run_dir = worker_run_dir(worker),
                                                   .job = &worker->job,
                                                   .rpc = agent->rpc,
                                                   .publishes = true,
                                                   .saved = agent->episode,
                                                   .again = worker_goes_on(worker),
                                                   .published = worker_report_saved};
    return checkpoint_saver_open(&agent->saver, &config, error);
}

void agent_checkpoint_close(struct agent *agent)
{
    checkpoint_saver_close(&agent->saver);
    policy_values_close(&agent->values);
    free(agent->saved_states);
}

/* ---- taking ---- */

/* What a checkpoint of now is judged by. */
static struct checkpoint_score score_of(const struct agent *agent)
{
    if (isnan(agent->evaluated))
        return (struct checkpoint_score){CHECKPOINT_RUNNING_REWARD, agent->running_reward};
    return (struct checkpoint_score){CHECKPOINT_EVALUATION_REWARD, agent->evaluated};
}

/* With evaluations, the checkpoints behind them compete. With /checkpoint/every, the checkpoints that compete
 * to be the best are the same in all equal runs: those at its multiples and at the job's end, not those by
 * the clock or at a stop. Without it, all compete. */
static bool agent_checkpoint_competes(const struct agent *agent, bool last)
{
    const struct job *job = &agent->worker->job;
    if (agent->evaluator != NULL)
        return agent_evaluates(agent);
    return !job->checkpoint.has_every || agent->episode % job->checkpoint.every == 0 ||
           (last && agent->end != CONTROL_END_STOPPED);
}

enum status agent_checkpoint_begin(struct agent *agent, bool last, struct error *error)
{
    const struct checkpoint_score score = score_of(agent);
    const bool judged = agent_evaluates(agent) && agent->worker->job.checkpoint.best;
    const bool idle = agent->saver.state == CHECKPOINT_IDLE;
    if (!(judged && (!idle || checkpoint_saver_improves(&agent->saver, &score))) &&
        !checkpoint_saver_due(&agent->saver, agent->episode, last || agent->worker->save))
        return STATUS_OK;
    if (!idle)
        return STATUS_AGAIN;
    struct checkpoint_values values = agent_checkpoint_values(agent);
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    enum status status = policy_save(agent->policy, &agent->values, error);
    free(agent->saved_states);
    agent->saved_states = NULL;
    if (status == STATUS_OK)
        status = agent_states_save(agent, &agent->saved_states, &values.environments_bytes, error);
    profile_leave(before);
    if (status != STATUS_OK)
        return status;
    values.environments = agent->saved_states;
    const struct checkpoint_saving saving = {.counters = {.update = agent->episode,
                                                          .trainers = 1,
                                                          .steps = {agent->values.steps},
                                                          .score = score,
                                                          .running_reward = agent->running_reward},
                                             .values = values,
                                             .asked = agent->worker->save,
                                             .competes = agent_checkpoint_competes(agent, last)};
    worker_keep_place(agent->worker);
    agent->worker->save = false;
    checkpoint_saver_begin(&agent->saver, &saving);
    return STATUS_OK;
}

enum status agent_checkpoint_advance(struct agent *agent, struct error *error)
{
    const struct run_place *place = worker_kept_place(agent->worker);
    const enum status status = checkpoint_saver_advance(&agent->saver, place, error);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}
