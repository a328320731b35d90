/* The end of a rollout: an observer's answer to run_episode, with what the last step of each row earned and
 * ended. The agent's thread. */
#include "worker/reinforce/agent.h"
#include "worker/reinforce/step_message.h"

/* How many floats the answer has: a reward of each row, then the metrics of each row that has ended. */
static uint32_t return_floats(const struct agent *agent, const uint8_t *flags, uint32_t rows)
{
    uint32_t ended = 0;
    for (uint32_t i = 0; i < rows; i++)
        ended += step_ended(flags[i]);
    return rows + ended * agent->world.spec.metric_count;
}

/* Whether the answer to run_episode has tensors of other forms than this: rewards and metrics, flags of each
 * row, the steps of each environment; states, if the job wants them. */
static bool is_misshapen(const struct agent_seat *seat, const struct rpc_message *m)
{
    static const uint8_t dtypes[] = {
        [RETURN_REWARD] = WIRE_F32, [RETURN_FLAGS] = WIRE_U8, [RETURN_LENGTH] = WIRE_U32};
    const struct agent *agent = seat->agent;
    const uint32_t rows = agent->per_observer * agent->world.spec.agents;
    for (int t = 0; t < RETURN_STATES; t++)
        if (m->tensors[t].dtype != dtypes[t] || m->tensors[t].rank != 1)
            return true;
    if (m->tensors[RETURN_FLAGS].dims[0] != rows || m->tensors[RETURN_LENGTH].dims[0] != agent->per_observer)
        return true;
    const uint32_t floats = return_floats(agent, m->data[RETURN_FLAGS], rows);
    return m->tensors[RETURN_REWARD].dims[0] != floats ||
           !environment_floats_are_finite(m->data[RETURN_REWARD], floats) ||
           (m->tensor_count != RETURN_STATES && !agent_states_are_good(seat, m));
}

/* The first environment of the seat. */
static uint32_t first_of(const struct agent_seat *seat)
{
    return seat->groups[0].first;
}

/* Whether environment i's end is another than its steps announced. */
static bool is_bad_end(const struct agent_seat *seat, const struct rpc_message *m, uint32_t i)
{
    const struct agent *agent = seat->agent;
    const uint32_t agents = agent->world.spec.agents, length = u32_at(m->data[RETURN_LENGTH], i);
    const uint8_t *flags = (const uint8_t *)m->data[RETURN_FLAGS] + (size_t)i * agents;
    uint8_t all = 0;
    for (uint32_t a = 0; a < agents; a++)
        all |= flags[a];
    const bool ended = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS
                           ? length == agent->rollout->config.steps_max
                           : environment_is_over(flags, agents) || (all & ENVIRONMENT_RESTARTED) != 0;
    return length == 0 || length != agent->rollout->lengths[(first_of(seat) + i) * agents] || !ended ||
           (all & ~ENVIRONMENT_STEP_FLAGS) != 0;
}

static enum status check_return(const struct agent_seat *seat, const struct rpc_message *m)
{
    const struct agent *agent = seat->agent;
    for (uint32_t i = 0; i < agent->groups; i++) {
        if (agent->worker->job.rollout.mode != JOB_ROLLOUT_STEPS)
            agent_replay_end(&seat->groups[i]);
        if (seat->groups[i].waiting != NULL || seat->groups[i].next_step != seat->groups[i].recorded)
            return STATUS_INVALID;
    }
    if (is_misshapen(seat, m))
        return STATUS_INVALID;
    for (uint32_t i = 0; i < agent->per_observer; i++)
        if (is_bad_end(seat, m, i))
            return STATUS_INVALID;
    return STATUS_OK;
}

/* Stores what the last step of each row earned, ended and reports. */
static void take_return(struct agent_seat *seat, const struct rpc_message *m)
{
    struct agent *agent = seat->agent;
    struct rollout *rollout = agent->rollout;
    const uint32_t agents = agent->world.spec.agents, rows = agent->per_observer * agents;
    const char *metrics = (const char *)m->data[RETURN_REWARD] + rows * sizeof(float);
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t column = first_of(seat) * agents + i;
        const uint32_t row = rollout_row(rollout, rollout->lengths[column] - 1, column);
        rollout->rewards[row] = f32_at(m->data[RETURN_REWARD], i);
        rollout->flags[row] = ((const uint8_t *)m->data[RETURN_FLAGS])[i];
        if (agent->metrics.count > 0 && step_ended(rollout->flags[row])) {
            if (!rollout->config.bootstraps) /* else the closing step has brought them */
                episode_metrics_add(&agent->metrics, column, metrics);
            metrics += agent->metrics.count * sizeof(float);
        }
    }
    for (uint32_t i = 0; i < agent->groups; i++)
        agent_retire_group(&seat->groups[i]);
}

void agent_returned(struct future *future, void *arg)
{
    struct agent_seat *seat = arg;
    struct agent *agent = seat->agent;
    seat->returned = future_status(future);
    if (seat->returned == STATUS_OK && check_return(seat, future_value(future)) != STATUS_OK) {
        rpc_reject_worker(agent->rpc, seat->worker, "its answer to run_episode does not match its steps");
        seat->returned = STATUS_PEER_DIED;
    }
    if (seat->returned == STATUS_OK) {
        take_return(seat, future_value(future));
        agent_states_keep(seat, future_value(future));
    }
    seat->lost = seat->returned == STATUS_PEER_DIED;
    if (seat->lost)
        agent->lost++;
    else
        agent->playing--;
}
