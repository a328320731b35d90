/* An observer that died, and its successor. The successor plays the episode from its first step: environments
 * are functions of the job's seed, and the agent gives it the actions that it gave to the predecessor. So its
 * steps come out as recorded, until it is where the predecessor stopped. */
#include "worker/reinforce/agent.h"

#include <string.h>

/* ---- asking ---- */

static void seat_drop_parked(struct agent_seat *seat, enum status status, const char *why)
{
    if (seat->parked != NULL)
        rpc_fail(seat->parked, status, "%s", why);
    seat->parked = NULL;
}

enum status agent_call_observer(struct agent_seat *seat, struct error *error)
{
    struct agent *agent = seat->agent;
    const struct job *job = &agent->worker->job;
    const uint64_t steps = job->rollout.mode == JOB_ROLLOUT_STEPS ? job->rollout.steps : 0;
    const struct rpc_message message = {.args = {agent->episode, steps}};
    future_release(seat->called);
    seat->called = NULL;
    seat->next_step = 0;
    seat_drop_parked(seat, STATUS_PEER_DIED, "the observer that sent it is gone");
    seat->lost = !rpc_reaches(agent->rpc, seat->worker);
    agent->lost += seat->lost;
    if (seat->lost)
        return STATUS_OK;
    return rpc_call_then(agent->rpc, seat->worker, METHOD_RUN_EPISODE, &message, MONOTIME_NEVER,
                         agent_returned, seat, &seat->called, error);
}

enum status agent_call_successors(struct agent *agent, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; agent->lost > 0 && i < agent->worker->job.observers.count; i++) {
        struct agent_seat *seat = &agent->seats[i];
        if (!seat->lost || !rpc_reaches(agent->rpc, seat->worker) || status != STATUS_OK)
            continue;
        agent->lost--;
        status = agent_call_observer(seat, error);
    }
    return status;
}

/* ---- steps ---- */

/* Whether row i of the request repeats the recorded row of this environment: its observation, and the reward
 * and the flags of the step before. */
static bool is_same_row(const struct agent_seat *seat, const struct rpc_message *m, uint32_t i,
                        uint32_t environment)
{
    const struct rollout *rollout = seat->agent->rollout;
    const size_t bytes = rollout->observation_size * sizeof(float);
    const uint32_t row = rollout_row(rollout, (uint32_t)m->args[1], environment);
    const float *recorded = rollout->observations + (size_t)row * rollout->observation_size;
    uint32_t number;
    float reward;
    memcpy(&number, (const char *)m->data[TENSOR_ENVIRONMENT] + i * sizeof number, sizeof number);
    memcpy(&reward, (const char *)m->data[TENSOR_REWARD] + i * sizeof reward, sizeof reward);
    if (number != environment ||
        memcmp((const char *)m->data[TENSOR_OBSERVATION] + i * bytes, recorded, bytes) != 0)
        return false;
    const uint32_t before = row - rollout->environments;
    return m->args[1] == 0 || (reward == rollout->rewards[before] &&
                               ((const uint8_t *)m->data[TENSOR_FLAGS])[i] == rollout->flags[before]);
}

/* Whether the request's rows are those that are recorded of its step. */
static bool is_same_step(const struct agent_seat *seat, const struct rpc_message *m)
{
    const struct agent *agent = seat->agent;
    const uint32_t rows = m->tensors[TENSOR_ENVIRONMENT].dims[0];
    uint32_t i = 0;
    for (uint32_t e = seat->first; e < seat->first + agent->per_observer; e++) {
        if (agent->rollout->lengths[e] <= m->args[1])
            continue;
        if (i == rows || !is_same_row(seat, m, i, e))
            return false;
        i++;
    }
    return i == rows;
}

void agent_replay_step(struct agent_seat *seat, struct rpc_request *request,
                       const struct rpc_message *message)
{
    if (!is_same_step(seat, message)) {
        rpc_reject(request,
                   "step %llu of episode %llu, played again after a death, is another one: expected the same "
                   "observations and rewards after the same actions",
                   (unsigned long long)message->args[1], (unsigned long long)seat->agent->episode);
        return;
    }
    seat->next_step++;
    if (seat->waiting && seat->next_step == seat->recorded)
        seat->parked = request;
    else
        agent_reply(seat->agent, request);
}

void agent_release_parked(struct agent_seat *seat)
{
    if (seat->parked != NULL)
        agent_reply(seat->agent, seat->parked);
    seat->parked = NULL;
}

void agent_drop_parked(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->worker->job.observers.count; i++)
        seat_drop_parked(&agent->seats[i], STATUS_SHUTDOWN, "the job is ending");
}
