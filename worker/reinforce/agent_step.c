/* The inference path: from an observer's step request to its reply.
 *
 * A request is checked completely before any of it is used: a bad one costs its sender the session and
 * changes nothing here. Then its rows are copied from the frame into the rollout, once; the policy acts on
 * them there, and the learner reads them there. */
#include "worker/reinforce/agent.h"

#include <math.h>
#include <string.h>

enum { RETURN_REWARD, RETURN_FLAGS, RETURN_LENGTH };

static uint32_t u32_at(const void *data, uint32_t i)
{
    uint32_t value;
    memcpy(&value, (const char *)data + i * sizeof value, sizeof value);
    return value;
}

static float f32_at(const void *data, uint32_t i)
{
    float value;
    memcpy(&value, (const char *)data + i * sizeof value, sizeof value);
    return value;
}

static uint8_t u8_at(const void *data, uint32_t i)
{
    return ((const uint8_t *)data)[i];
}

static bool all_finite(const void *data, size_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!isfinite(f32_at(data, i)))
            return false;
    return true;
}

/* Holds the request as a whole to the episode and to the observer's earlier steps. */
static enum status check_request(const struct agent_seat *seat, const struct rpc_message *m,
                                 struct error *error)
{
    const struct agent *agent = seat->agent;
    uint64_t episode = m->args[0], step = m->args[1];
    if (agent->phase != AGENT_PLAYING || episode != agent->episode)
        return error_set(error, STATUS_INVALID, "step of episode %llu: expected the running episode, %llu",
                         (unsigned long long)episode, (unsigned long long)agent->episode);
    if (seat->parked != NULL || (seat->waiting && seat->next_step == seat->recorded))
        return error_set(error, STATUS_INVALID, "step %llu while step %u is not answered",
                         (unsigned long long)step, seat->next_step - 1);
    if (step != seat->next_step || step >= agent->rollout->steps_max)
        return error_set(error, STATUS_INVALID, "step %llu: expected %u, below %u", (unsigned long long)step,
                         seat->next_step, agent->rollout->steps_max);
    return STATUS_OK;
}

/* Holds the rows to the observer's environments: ascending, alive, finite. */
static enum status check_rows(const struct agent_seat *seat, const struct rpc_message *m, struct error *error)
{
    const struct agent *agent = seat->agent;
    const bool steps = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS;
    const uint32_t rows = m->tensors[TENSOR_ENVIRONMENT].dims[0], end = seat->first + agent->per_observer;
    const uint8_t flags_allowed = m->args[1] > 0 && steps ? ENVIRONMENT_FLAGS : 0;
    uint32_t least = seat->first;
    if (steps && rows != agent->per_observer)
        return error_set(error, STATUS_INVALID, "%u rows: expected one for each of %u environments", rows,
                         agent->per_observer);
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t environment = u32_at(m->data[TENSOR_ENVIRONMENT], i);
        const uint8_t flags = u8_at(m->data[TENSOR_FLAGS], i);
        if (environment < least || environment >= end)
            return error_set(error, STATUS_INVALID,
                             "row %u is of environment %u: expected an ascending one of %u..%u", i,
                             environment, least, end - 1);
        if (!agent->alive[environment])
            return error_set(error, STATUS_INVALID, "row %u is of environment %u, whose episode is over", i,
                             environment);
        if ((flags & ~flags_allowed) != 0)
            return error_set(error, STATUS_INVALID, "row %u has flags %u: expected a subset of %u", i, flags,
                             flags_allowed);
        least = environment + 1;
    }
    if (!all_finite(m->data[TENSOR_OBSERVATION], (size_t)rows * CARTPOLE_STATE_SIZE) ||
        !all_finite(m->data[TENSOR_REWARD], rows))
        return error_set(error, STATUS_INVALID, "an observation or reward that is not finite");
    return STATUS_OK;
}

/* An environment of this observer that sends no row any more has ended its episode. */
static void retire_absent(struct agent_seat *seat, const struct rpc_message *m)
{
    struct agent *agent = seat->agent;
    uint32_t rows = m->tensors[TENSOR_ENVIRONMENT].dims[0], i = 0;
    if (rows == agent->per_observer)
        return;
    for (uint32_t e = seat->first; e < seat->first + agent->per_observer; e++) {
        if (i < rows && u32_at(m->data[TENSOR_ENVIRONMENT], i) == e) {
            i++;
        } else if (agent->alive[e]) {
            agent->alive[e] = 0;
            agent->live--;
        }
    }
    coalescer_set_live(agent->coalescer, agent->live);
}

/* Writes what the previous step earned and what this step shows into the rollout. */
static void store_rows(struct agent_seat *seat, const struct rpc_message *m)
{
    struct rollout *rollout = seat->agent->rollout;
    size_t observation_bytes = rollout->observation_size * sizeof(float);
    uint32_t step = (uint32_t)m->args[1];
    const char *observations = m->data[TENSOR_OBSERVATION];
    for (uint32_t i = 0; i < m->tensors[TENSOR_ENVIRONMENT].dims[0]; i++) {
        uint32_t environment = u32_at(m->data[TENSOR_ENVIRONMENT], i);
        uint32_t row = rollout_row(rollout, step, environment);
        memcpy(rollout->observations + (size_t)row * rollout->observation_size,
               observations + i * observation_bytes, observation_bytes);
        if (step > 0) {
            rollout->rewards[row - rollout->environments] = f32_at(m->data[TENSOR_REWARD], i);
            rollout->flags[row - rollout->environments] = u8_at(m->data[TENSOR_FLAGS], i);
        }
        rollout->lengths[environment] = step + 1;
    }
}

void agent_step(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct agent *agent = context;
    struct agent_seat *seat = &agent->seats[rpc_request_source(request) - 1];
    struct error why;
    if (agent->worker->hurry) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    enum status status = check_request(seat, message, &why);
    if (status == STATUS_OK && seat->next_step < seat->recorded) {
        agent_replay_step(seat, request, message);
        return;
    }
    if (status != STATUS_OK || check_rows(seat, message, &why) != STATUS_OK) {
        rpc_reject(request, "%s", why.text);
        return;
    }
    uint32_t rows = message->tensors[TENSOR_ENVIRONMENT].dims[0];
    if (coalescer_add(agent->coalescer, request, rows, monotime_now()) != STATUS_OK) {
        rpc_fail(request, STATUS_BUSY, "more requests than environments");
        return;
    }
    store_rows(seat, message);
    retire_absent(seat, message);
    seat->waiting = true;
    seat->recorded = ++seat->next_step;
}

/* Fills the batch's arrays from `begin` on with the rows of one request. */
static void gather_rows(struct agent *agent, const struct rpc_message *m, uint32_t begin)
{
    uint32_t step = (uint32_t)m->args[1];
    for (uint32_t i = 0; i < m->tensors[TENSOR_ENVIRONMENT].dims[0]; i++) {
        uint32_t environment = u32_at(m->data[TENSOR_ENVIRONMENT], i);
        agent->batch.environment[begin + i] = environment;
        agent->batch.step[begin + i] = step;
        agent->batch.row[begin + i] = rollout_row(agent->rollout, step, environment);
    }
}

void agent_reply(struct agent *agent, struct rpc_request *request)
{
    const struct rpc_message *m = rpc_request_message(request);
    const uint32_t rows = m->tensors[TENSOR_ENVIRONMENT].dims[0], step = (uint32_t)m->args[1];
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t environment = u32_at(m->data[TENSOR_ENVIRONMENT], i);
        agent->batch.actions[i] = agent->rollout->actions[rollout_row(agent->rollout, step, environment)];
    }
    struct rpc_message actions = {.tensor_count = 1,
                                  .tensors = {{.dtype = WIRE_U8, .rank = 1, .dims = {rows}}},
                                  .data = {agent->batch.actions}};
    rpc_reply(request, &actions);
}

void agent_launch(void *context, const struct coalescer_slot *slots, size_t count, uint32_t rows)
{
    struct agent *agent = context;
    struct rollout *rollout = agent->rollout;
    uint32_t begin = 0;
    for (size_t i = 0; i < count; begin += slots[i++].rows)
        gather_rows(agent, rpc_request_message(slots[i].request), begin);
    struct mlp_batch batch = {.count = rows,
                              .row = agent->batch.row,
                              .observations = rollout->observations,
                              .masks = rollout->masks,
                              .actions = rollout->actions};
    enum status status = policy_act(agent->policy, &batch, rollout->episode, agent->batch.environment,
                                    agent->batch.step, &agent->launch_error);
    for (size_t i = 0; status != STATUS_OK && i < count; i++)
        rpc_fail(slots[i].request, STATUS_SHUTDOWN, "the job is ending");
    if (status != STATUS_OK)
        return; // agent_run sees launch_error
    for (size_t i = 0; i < count; i++) {
        struct agent_seat *seat = &agent->seats[rpc_request_source(slots[i].request) - 1];
        agent_reply(agent, slots[i].request);
        seat->waiting = false;
        agent_release_parked(seat);
    }
}

/* Whether an observer's answer to run_episode has another form than its steps announced. */
static bool is_bad_return(const struct agent_seat *seat, const struct rpc_message *m)
{
    static const uint8_t dtypes[] = {
        [RETURN_REWARD] = WIRE_F32, [RETURN_FLAGS] = WIRE_U8, [RETURN_LENGTH] = WIRE_U32};
    const struct agent *agent = seat->agent;
    if (m->tensor_count != 3)
        return true;
    for (int t = 0; t < 3; t++)
        if (m->tensors[t].dtype != dtypes[t] || m->tensors[t].rank != 1 ||
            m->tensors[t].dims[0] != agent->per_observer)
            return true;
    for (uint32_t i = 0; i < agent->per_observer; i++) {
        uint32_t length = u32_at(m->data[RETURN_LENGTH], i);
        uint8_t flags = u8_at(m->data[RETURN_FLAGS], i);
        bool ended = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS
                         ? length == agent->rollout->steps_max
                         : flags != 0;
        if (length == 0 || length != agent->rollout->lengths[seat->first + i] || !ended ||
            (flags & ~ENVIRONMENT_FLAGS) != 0)
            return true;
    }
    return !all_finite(m->data[RETURN_REWARD], agent->per_observer);
}

static enum status take_return(struct agent_seat *seat, const struct rpc_message *m)
{
    struct agent *agent = seat->agent;
    if (seat->waiting || seat->next_step != seat->recorded || is_bad_return(seat, m))
        return STATUS_INVALID;
    for (uint32_t i = 0; i < agent->per_observer; i++) {
        uint32_t environment = seat->first + i;
        uint32_t row = rollout_row(agent->rollout, agent->rollout->lengths[environment] - 1, environment);
        agent->rollout->rewards[row] = f32_at(m->data[RETURN_REWARD], i);
        agent->rollout->flags[row] = u8_at(m->data[RETURN_FLAGS], i);
        agent->live -= agent->alive[environment];
        agent->alive[environment] = 0;
    }
    coalescer_set_live(agent->coalescer, agent->live);
    return STATUS_OK;
}

void agent_returned(struct future *future, void *arg)
{
    struct agent_seat *seat = arg;
    struct agent *agent = seat->agent;
    seat->returned = future_status(future);
    if (seat->returned == STATUS_OK && take_return(seat, future_value(future)) != STATUS_OK) {
        rpc_reject_worker(agent->rpc, seat->worker, "its answer to run_episode does not match its steps");
        seat->returned = STATUS_PEER_DIED;
    }
    seat->lost = seat->returned == STATUS_PEER_DIED;
    if (seat->lost)
        agent->lost++;
    else
        agent->playing--;
}
