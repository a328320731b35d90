/* The end of a rollout: an observer's answer to run_episode, with what the last step of each row earned and
 * ended. The agent's thread. */
#include "worker/reinforce/agent.h"
#include "worker/reinforce/step_message.h"

/* The first environment of the seat. */
static uint32_t first_of(const struct agent_seat *seat)
{
    return seat->groups[0].first;
}

/* Whether environment i's end is another than its steps announced. */
static bool is_bad_end(const struct agent_seat *seat, const struct step_end *end, uint32_t i)
{
    const struct agent *agent = seat->agent;
    const uint32_t agents = end->last.agents, length = end->lengths[i];
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    const uint8_t all = step_all_flags(&end->last, i, flags);
    const bool ended = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS
                           ? length == agent->rollout->config.steps_max
                           : environment_is_over(flags, agents) || (all & ENVIRONMENT_RESTARTED) != 0;
    return length == 0 || length != agent->rollout->lengths[(first_of(seat) + i) * agents] || !ended ||
           (all & ~ENVIRONMENT_STEP_FLAGS) != 0;
}

static enum status check_return(const struct agent_seat *seat, const struct rpc_message *m,
                                struct step_end *end)
{
    const struct agent *agent = seat->agent;
    for (uint32_t i = 0; i < agent->groups; i++) {
        if (agent->worker->job.rollout.mode != JOB_ROLLOUT_STEPS)
            agent_replay_end(&seat->groups[i]);
        if (seat->groups[i].waiting != NULL || seat->groups[i].next_step != seat->groups[i].recorded)
            return STATUS_INVALID;
    }
    if (step_end_decode(end, m, &agent->world.spec, agent->per_observer) != STATUS_OK ||
        !agent_states_are_good(seat, end))
        return STATUS_INVALID;
    for (uint32_t i = 0; i < agent->per_observer; i++)
        if (is_bad_end(seat, end, i))
            return STATUS_INVALID;
    return STATUS_OK;
}

/* Stores what the last step of each row earned, ended and reports. */
static void take_return(struct agent_seat *seat, const struct step_end *end)
{
    struct agent *agent = seat->agent;
    struct rollout *rollout = agent->rollout;
    const message_f32 *metrics = end->last.metrics;
    for (uint32_t i = 0; i < end->last.rows; i++) {
        const uint32_t column = first_of(seat) * end->last.agents + i;
        const uint32_t row = rollout_row(rollout, rollout->lengths[column] - 1, column);
        rollout->rewards[row] = end->last.rewards[i];
        rollout->flags[row] = step_flags(&end->last, i);
        if (agent->metrics.count > 0 && step_ended(rollout->flags[row])) {
            if (!rollout->config.bootstraps) /* else the closing step has brought them */
                episode_metrics_add(&agent->metrics, column, metrics);
            metrics += agent->metrics.count;
        }
    }
    for (uint32_t i = 0; i < agent->groups; i++)
        agent_retire_group(&seat->groups[i]);
}

void agent_returned(struct future *future, void *arg)
{
    struct agent_seat *seat = arg;
    struct agent *agent = seat->agent;
    struct step_end end;
    seat->returned = future_status(future);
    if (seat->returned == STATUS_OK && check_return(seat, future_value(future), &end) != STATUS_OK) {
        rpc_reject_worker(agent->rpc, seat->worker, "its answer to run_episode does not match its steps");
        seat->returned = STATUS_PEER_DIED;
    }
    if (seat->returned == STATUS_OK) {
        take_return(seat, &end);
        agent_states_keep(seat, &end);
    }
    seat->lost = seat->returned == STATUS_PEER_DIED;
    if (seat->lost)
        agent->lost++;
    else
        agent->playing--;
}
