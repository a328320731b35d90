/* An observer that died, and its successor. The successor plays the episode from its first step: environments
 * are functions of the job's seed, and the agent gives it the actions that it gave to the predecessor. So its
 * steps come out as recorded, until it is where the predecessor stopped. Of environments that cannot be
 * seeded, or cannot go on from a saved state where the job has them go on, the recorded rows are forgotten,
 * and the successor's take their place. */
#include "worker/reinforce/agent.h"
#include "worker/reinforce/step_message.h"

#include <string.h>

/* ---- asking ---- */

static void drop_parked(struct agent_group *group, enum status status, const char *why)
{
    if (group->parked != NULL)
        rpc_fail(group->parked, status, "%s", why);
    group->parked = NULL;
}

/* The group's rows of this episode are forgotten, and all of its environments live. A request of the
 * predecessor that still waits is acted on and dropped; the row that it was of is written again. */
static void forget_rows(struct agent_group *group)
{
    struct agent *agent = group->seat->agent;
    const uint32_t agents = agent->world.spec.agents;
    memset(agent->rollout->lengths + group->first * agents, 0,
           group->count * agents * sizeof *agent->rollout->lengths);
    episode_metrics_clear(&agent->metrics, group->first * agents, group->count * agents);
    for (uint32_t e = group->first; e < group->first + group->count; e++) {
        agent->live[group - group->seat->groups] += !agent->alive[e];
        agent->alive[e] = 1;
    }
    rollout_forget_last(agent->rollout, group->first * agents, group->count * agents);
    group->recorded = 0;
    group->waiting = false;
    agent_set_live(agent);
}

enum status agent_call_seat(struct agent_seat *seat, enum wire_method method,
                            const struct rpc_message *message, future_then_function *then,
                            struct error *error)
{
    struct agent *agent = seat->agent;
    enum status status = STATUS_OK;
    future_release(seat->called);
    seat->called = NULL;
    seat->lost = !seat->described;
    if (!seat->lost)
        status = rpc_call_then(agent->rpc, seat->worker, method, message, MONOTIME_NEVER, then, seat,
                               &seat->called, error);
    if (status == STATUS_NOT_FOUND) { /* it is dead: the next turn ends its session */
        seat->lost = true;
        status = STATUS_OK;
    }
    agent->lost += seat->lost;
    return status;
}

enum status agent_call_observer(struct agent_seat *seat, struct error *error)
{
    struct agent *agent = seat->agent;
    const struct job *job = &agent->worker->job;
    const uint64_t steps = job->rollout.mode == JOB_ROLLOUT_STEPS ? job->rollout.steps : 0;
    struct rpc_message message = {.args = {[RUN_NUMBER] = agent->episode, [RUN_STEPS] = steps}};
    const bool has_lost = !agent_states_give(seat, &message);
    for (uint32_t i = 0; i < agent->groups; i++) {
        if (has_lost || (agent->world.spec.limits & ENVIRONMENT_CANNOT_SEED) != 0)
            forget_rows(&seat->groups[i]);
        seat->groups[i].next_step = 0;
        drop_parked(&seat->groups[i], STATUS_PEER_DIED, "the observer that sent it is gone");
    }
    const enum status status = agent_call_seat(seat, METHOD_RUN_EPISODE, &message, agent_returned, error);
    if (status != STATUS_OK || seat->lost)
        return status;
    if (has_lost)
        agent_states_lost(seat);
    seat->fresh = false;
    return status;
}

enum status agent_call_successors(struct agent *agent, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; agent->lost > 0 && i < job_observers(&agent->worker->job); i++) {
        struct agent_seat *seat = &agent->seats[i];
        if (!seat->lost || !seat->described || status != STATUS_OK)
            continue;
        agent->lost--;
        status = agent->phase == AGENT_EVALUATING ? agent_evaluate_call(seat, error)
                                                  : agent_call_observer(seat, error);
    }
    return status;
}

/* ---- steps ---- */

/* Whether row `from` of the request repeats the recorded row of this column: its observation and mask, and
 * the reward and the flags of the step before. */
static bool is_same_row(const struct rollout *rollout, const struct rpc_message *m, uint32_t from,
                        uint32_t column)
{
    const struct rollout_config *config = &rollout->config;
    const uint32_t row = rollout_row(rollout, (uint32_t)m->args[1], column);
    const char *observation = (const char *)m->data[STEP_OBSERVATION] + from * config->observation_bytes;
    const uint8_t *flags = (const uint8_t *)m->data[STEP_FLAGS] + (size_t)from * (1 + config->choices);
    if (memcmp(observation, rollout->observations + row * config->observation_bytes,
               config->observation_bytes) != 0 ||
        (config->choices > 0 &&
         memcmp(flags + 1, rollout->allowed + (size_t)row * config->choices, config->choices) != 0))
        return false;
    if (m->args[1] == 0)
        return flags[0] == rollout->before[column];
    return f32_at(m->data[STEP_REWARD], from) == rollout->rewards[row - rollout->columns] &&
           flags[0] == rollout->flags[row - rollout->columns];
}

/* Whether the request's rows are those that are recorded of its step. */
static bool is_same_step(const struct agent_group *group, const struct rpc_message *m)
{
    const struct agent *agent = group->seat->agent;
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], agents = agent->world.spec.agents;
    uint32_t i = 0;
    for (uint32_t e = group->first; e < group->first + group->count; e++) {
        if (agent->rollout->lengths[e * agents] <= m->args[1] &&
            m->args[1] < agent->rollout->config.steps_max)
            continue;
        if (i == n || u32_at(m->data[STEP_ENVIRONMENT], i) != e)
            return false;
        for (uint32_t a = 0; a < agents; a++)
            if (!is_same_row(agent->rollout, m, i * agents + a, e * agents + a))
                return false;
        i++;
    }
    return i == n;
}

void agent_replay_step(struct agent_group *group, struct rpc_request *request,
                       const struct rpc_message *message)
{
    if (!is_same_step(group, message)) {
        rpc_reject(request,
                   "step %llu of episode %llu, played again after a death, is another one: expected the same "
                   "observations and rewards after the same actions",
                   (unsigned long long)message->args[1], (unsigned long long)group->seat->agent->episode);
        return;
    }
    group->next_step++;
    if (group->waiting && group->next_step == group->recorded)
        group->parked = request;
    else
        agent_reply(group->seat->agent, request);
}

void agent_release_parked(struct agent_group *group)
{
    if (group->parked != NULL)
        agent_reply(group->seat->agent, group->parked);
    group->parked = NULL;
}

void agent_drop_parked(struct agent *agent)
{
    for (uint32_t i = 0; i < job_observers(&agent->worker->job) * agent->groups; i++)
        drop_parked(&agent->all[i], STATUS_SHUTDOWN, "the job is ending");
}
