/* The inference path: from an observer's step request to its reply.
 *
 * A request is checked completely before any of it is used: a bad one costs its sender the session and
 * changes nothing here. Then its rows are copied from the frame into the rollout, once; the policy acts on
 * them there, and the learner reads them there. */
#include "kernels/base/profile.h"
#include "worker/reinforce/agent.h"
#include "worker/reinforce/step_message.h"

#include <string.h>

/* Holds the request as a whole to the episode and to the group's earlier steps. */
static enum status check_request(const struct agent_group *group, const struct rpc_message *m,
                                 struct error *error)
{
    const struct agent *agent = group->seat->agent;
    const uint64_t episode = m->args[0], step = m->args[1];
    if (agent->phase != AGENT_PLAYING || episode != agent->episode)
        return error_set(error, STATUS_INVALID, "step of episode %llu: expected the running episode, %llu",
                         (unsigned long long)episode, (unsigned long long)agent->episode);
    if (group->parked != NULL || (group->waiting != NULL && group->next_step == group->recorded))
        return error_set(error, STATUS_INVALID, "step %llu while step %u is not answered",
                         (unsigned long long)step, group->next_step - 1);
    const uint32_t steps = agent->rollout->config.steps_max + agent->rollout->config.bootstraps;
    if (step != group->next_step || (m->tensor_count > 0 && step >= steps))
        return error_set(error, STATUS_INVALID, "step %llu: expected %u, below %u", (unsigned long long)step,
                         group->next_step, steps);
    return STATUS_OK;
}

/* Holds the rows to the group's environments: ascending, alive. */
static enum status check_rows(const struct agent_group *group, const struct rpc_message *m,
                              struct error *error)
{
    const struct agent *agent = group->seat->agent;
    const bool steps = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS;
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], end = group->first + group->count;
    uint32_t least = group->first;
    if (steps && n != group->count)
        return error_set(error, STATUS_INVALID, "%u rows: expected one for each of %u environments", n,
                         group->count);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t environment = u32_at(m->data[STEP_ENVIRONMENT], i);
        if (environment < least || environment >= end)
            return error_set(error, STATUS_INVALID,
                             "row %u is of environment %u: expected an ascending one of %u..%u", i,
                             environment, least, end - 1);
        if (!agent->alive[environment])
            return error_set(error, STATUS_INVALID, "row %u is of environment %u, whose episode is over", i,
                             environment);
        least = environment + 1;
    }
    return STATUS_OK;
}

/* The flags of environment i of the request, agent by agent. */
static void read_flags(const struct agent *agent, const struct rpc_message *m, uint32_t i,
                       uint8_t flags[ENVIRONMENT_AGENTS_MAX])
{
    const uint32_t agents = agent->world.spec.agents, bytes = step_flags_bytes(&agent->world.spec);
    const uint8_t *rows = m->data[STEP_FLAGS];
    for (uint32_t a = 0; a < agents; a++)
        flags[a] = rows[((size_t)i * agents + a) * bytes];
}

/* At step 0 nothing has ended; agents are absent, and environments may have failed to go on, only where the
 * rollout goes on from the one before. In the mode episode an environment whose episode is over has no rows.
 */
static enum status check_flags(const struct agent *agent, const struct rpc_message *m, struct error *error)
{
    const uint32_t agents = agent->world.spec.agents;
    const bool ends = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS;
    const bool goes_on = agent->worker->job.rollout.begin == JOB_BEGIN_CONTINUE;
    const unsigned first = goes_on ? ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED : 0;
    uint8_t flags[ENVIRONMENT_AGENTS_MAX], all = 0;
    if (ends && m->args[1] > 0)
        return STATUS_OK;
    for (uint32_t i = 0; i < m->tensors[STEP_ENVIRONMENT].dims[0]; i++) {
        read_flags(agent, m, i, flags);
        for (uint32_t a = 0; a < agents; a++)
            all |= flags[a];
        if (m->args[1] == 0 && (all & ~first) != 0)
            return error_set(error, STATUS_INVALID, "environment %u of step 0 has flags %u: expected %u", i,
                             all, all & first);
        if (!ends && (environment_is_over(flags, agents) || (all & ENVIRONMENT_RESTARTED) != 0))
            return error_set(error, STATUS_INVALID,
                             "environment %u of step %llu has flags %u, its episode is over", i,
                             (unsigned long long)m->args[1], all);
    }
    return STATUS_OK;
}

void agent_set_live(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->groups; i++)
        coalescer_set_live(agent->coalescers[i], agent->live[i] * agent->world.spec.agents);
}

/* The group's number: which of the coalescers it has. */
static uint32_t number_of(const struct agent_group *group)
{
    return (uint32_t)(group - group->seat->groups);
}

static void retire(struct agent_group *group, uint32_t environment)
{
    struct agent *agent = group->seat->agent;
    agent->live[number_of(group)] -= agent->alive[environment];
    agent->alive[environment] = 0;
}

void agent_retire_group(struct agent_group *group)
{
    for (uint32_t e = group->first; e < group->first + group->count; e++)
        retire(group, e);
    agent_set_live(group->seat->agent);
}

/* An environment of this group that sends no row any more has ended its episode. */
static void retire_absent(struct agent_group *group, const struct rpc_message *m)
{
    uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], i = 0;
    if (n == group->count)
        return;
    for (uint32_t e = group->first; e < group->first + group->count; e++) {
        if (i < n && u32_at(m->data[STEP_ENVIRONMENT], i) == e)
            i++;
        else
            retire(group, e);
    }
    agent_set_live(group->seat->agent);
}

/* Environments [i, i + the answer) of the request have consecutive numbers. Their rows follow one another in
 * the rollout too, so they are copied in one piece. */
static uint32_t run_at(const struct rpc_message *m, uint32_t i)
{
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], first = u32_at(m->data[STEP_ENVIRONMENT], i);
    uint32_t run = 1;
    while (i + run < n && u32_at(m->data[STEP_ENVIRONMENT], i + run) == first + run)
        run++;
    return run;
}

/* Writes the flags, and the masks behind them, of `rows` rows from `from` on of the request. */
static void store_flags(struct rollout *rollout, const struct rpc_message *m, uint32_t from, uint32_t row,
                        uint32_t rows)
{
    const uint32_t choices = rollout->config.choices;
    const uint8_t *flags = (const uint8_t *)m->data[STEP_FLAGS] + (size_t)from * (1 + choices);
    uint8_t *earlier = m->args[1] == 0 ? rollout->before + row : rollout->flags + row - rollout->columns;
    if (choices == 0)
        memcpy(earlier, flags, rows);
    for (uint32_t i = 0; i < rows && choices > 0; i++, flags += 1 + choices) {
        memcpy(rollout->allowed + (size_t)(row + i) * choices, flags + 1, choices);
        earlier[i] = flags[0];
    }
}

/* Writes what the rows' previous step earned, and what they show now, into the rollout. */
static void store_run(struct rollout *rollout, const struct rpc_message *m, uint32_t from, uint32_t column,
                      uint32_t rows)
{
    const size_t bytes = rollout->config.observation_bytes;
    const uint32_t step = (uint32_t)m->args[1], row = rollout_row(rollout, step, column);
    memcpy(rollout->observations + row * bytes, (const char *)m->data[STEP_OBSERVATION] + from * bytes,
           rows * bytes);
    store_flags(rollout, m, from, row, rows);
    if (step > 0)
        memcpy(rollout->rewards + row - rollout->columns,
               (const char *)m->data[STEP_REWARD] + from * sizeof *rollout->rewards,
               rows * sizeof *rollout->rewards);
    for (uint32_t i = 0; i < rows && step < rollout->config.steps_max; i++)
        rollout->lengths[column + i] = step + 1;
}

static void store_rows(struct agent *agent, const struct rpc_message *m)
{
    const uint32_t agents = agent->world.spec.agents, n = m->tensors[STEP_ENVIRONMENT].dims[0];
    for (uint32_t i = 0, run; i < n; i += run) {
        run = run_at(m, i);
        store_run(agent->rollout, m, i * agents, u32_at(m->data[STEP_ENVIRONMENT], i) * agents, run * agents);
    }
}

/* The metrics of the rows that the step before has ended, which stand behind the rewards. */
static void take_metrics(struct agent *agent, const struct rpc_message *m)
{
    const uint32_t agents = agent->world.spec.agents, metrics = agent->world.spec.metric_count;
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0];
    const char *values = (const char *)m->data[STEP_REWARD] + (size_t)n * agents * sizeof(float);
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    for (uint32_t i = 0; i < n && metrics > 0; i++) {
        read_flags(agent, m, i, flags);
        for (uint32_t a = 0; a < agents; a++)
            if (step_ended(flags[a])) {
                episode_metrics_add(&agent->metrics, u32_at(m->data[STEP_ENVIRONMENT], i) * agents + a,
                                    values);
                values += metrics * sizeof(float);
            }
    }
}

/* Keeps the last observations of the episodes that the step before has truncated. They stand behind the
 * present ones, with those that it has terminated. */
static void take_last(struct agent *agent, const struct rpc_message *m)
{
    struct rollout *rollout = agent->rollout;
    const uint32_t agents = agent->world.spec.agents, n = m->tensors[STEP_ENVIRONMENT].dims[0];
    const size_t bytes = rollout->config.observation_bytes;
    const char *last = (const char *)m->data[STEP_OBSERVATION] + n * agents * bytes;
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    for (uint32_t i = 0; i < n && rollout->config.bootstraps && m->args[1] > 0; i++) {
        read_flags(agent, m, i, flags);
        for (uint32_t a = 0; a < agents; a++) {
            const uint32_t column = u32_at(m->data[STEP_ENVIRONMENT], i) * agents + a;
            const uint32_t row = rollout_row(rollout, (uint32_t)m->args[1] - 1, column);
            if (!step_ended(flags[a]))
                continue;
            if ((flags[a] & ENVIRONMENT_TERMINATED) == 0 && agent->failure.status == STATUS_OK)
                (void)rollout_add_last(rollout, row, last, &agent->failure);
            last += bytes;
        }
    }
}

/* The environments whose saved states led to another place have been reset. */
static void take_failed(struct agent *agent, const struct rpc_message *m)
{
    const uint32_t agents = agent->world.spec.agents;
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    for (uint32_t i = 0; i < m->tensors[STEP_ENVIRONMENT].dims[0] && m->args[1] == 0; i++) {
        const uint32_t environment = u32_at(m->data[STEP_ENVIRONMENT], i);
        read_flags(agent, m, i, flags);
        for (uint32_t a = 0; a < agents; a++) {
            if ((flags[a] & ENVIRONMENT_FAILED) == 0)
                continue;
            agent->rollout->before[environment * agents + a] &= (uint8_t)~ENVIRONMENT_FAILED;
            agent_states_forget(agent, environment, 1);
            agent_replay_tell(agent, environment, "up to its saved state");
        }
    }
}

/* The group that the request is of. */
static enum status find_group(struct agent *agent, const struct rpc_request *request,
                              struct agent_group **group, struct error *error)
{
    const struct agent_seat *seat = &agent->seats[rpc_request_source(request) - 1];
    const uint64_t number = rpc_request_message(request)->args[2];
    if (!seat->described)
        return error_set(error, STATUS_INVALID, "a step before the environment's description");
    if (number >= agent->groups)
        return error_set(error, STATUS_INVALID, "a step of group %llu: expected one below %u",
                         (unsigned long long)number, agent->groups);
    *group = &seat->groups[number];
    return STATUS_OK;
}

/* STATUS_AGAIN: the step is recorded already. */
static enum status check_step(struct agent_group *group, const struct rpc_message *m, struct error *error)
{
    const struct agent *agent = group->seat->agent;
    enum status status = check_request(group, m, error);
    if (status != STATUS_OK || m->tensor_count == 0)
        return status;
    status = step_check(m, &agent->world.spec, group->count, error);
    if (status == STATUS_OK && agent_replays(group, m))
        return STATUS_AGAIN;
    if (status == STATUS_OK)
        status = check_rows(group, m, error);
    return status == STATUS_OK ? check_flags(agent, m, error) : status;
}

bool agent_is_closing(const struct agent *agent, const struct rpc_message *m)
{
    return m->args[1] == agent->rollout->config.steps_max;
}

void agent_record(struct agent *agent, const struct rpc_message *m)
{
    store_rows(agent, m);
    agent_take_ends(agent, m);
}

void agent_take_ends(struct agent *agent, const struct rpc_message *m)
{
    take_last(agent, m);
    take_metrics(agent, m);
    take_failed(agent, m);
}

/* Puts the request in line, and its rows into the rollout. */
static void take_step(struct agent_group *group, struct rpc_request *request, const struct rpc_message *m)
{
    struct agent *agent = group->seat->agent;
    const uint32_t rows = m->tensors[STEP_ENVIRONMENT].dims[0] * agent->world.spec.agents;
    const bool waits = !agent_is_closing(agent, m);
    if (waits &&
        coalescer_add(agent->coalescers[number_of(group)], request, rows, monotime_now()) != STATUS_OK) {
        rpc_fail(request, STATUS_BUSY, "more requests than environments");
        return;
    }
    group->waiting = waits ? request : NULL;
    agent_record(agent, m);
    retire_absent(group, m);
    group->recorded = ++group->next_step;
    if (!waits)
        agent_reply(agent, request);
}

/* The group's environments are all over, while others of its observer go on: nobody waits for it. */
static void take_end(struct agent_group *group, struct rpc_request *request)
{
    struct agent *agent = group->seat->agent;
    if (agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS) {
        rpc_reject(request, "the end of a group at step %u: expected rows", group->next_step);
        return;
    }
    agent_replay_end(group);
    agent_retire_group(group);
    rpc_reply(request, &(struct rpc_message){0});
}

void agent_step(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct agent *agent = context;
    struct agent_group *group = NULL;
    struct error why;
    if (agent->worker->hurry) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    if (agent->phase == AGENT_EVALUATING) {
        agent_evaluate_step(&agent->seats[rpc_request_source(request) - 1], request, message);
        return;
    }
    enum status status = find_group(agent, request, &group, &why);
    if (status == STATUS_OK)
        status = check_step(group, message, &why);
    if (status == STATUS_AGAIN)
        agent_replay_step(group, request, message);
    else if (status == STATUS_OK && message->tensor_count == 0)
        take_end(group, request);
    else if (status == STATUS_OK)
        take_step(group, request, message);
    else
        rpc_reject(request, "%s", why.text);
}

/* ---- the launch and its replies ---- */

/* Fills the batch's arrays from `begin` on with the rows of one request. */
static void gather_rows(struct agent *agent, const struct rpc_message *m, uint32_t begin)
{
    const uint32_t step = (uint32_t)m->args[1], agents = agent->world.spec.agents;
    for (uint32_t i = 0; i < m->tensors[STEP_ENVIRONMENT].dims[0]; i++)
        for (uint32_t a = 0; a < agents; a++, begin++) {
            const uint32_t column = u32_at(m->data[STEP_ENVIRONMENT], i) * agents + a;
            agent->batch.column[begin] = column;
            agent->batch.step[begin] = step;
            agent->batch.row[begin] = rollout_row(agent->rollout, step, column);
        }
}

/* The actions of the request's rows, from the rollout to batch.actions, within their bounds. */
static void collect_actions(struct agent *agent, const struct rpc_message *m)
{
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], agents = agent->world.spec.agents;
    const size_t bytes = agent->rollout->config.action_bytes;
    for (uint32_t i = 0, run; i < n; i += run) {
        const uint32_t column = u32_at(m->data[STEP_ENVIRONMENT], i) * agents;
        run = run_at(m, i);
        memcpy((char *)agent->batch.actions + i * agents * bytes,
               agent->rollout->actions + rollout_row(agent->rollout, (uint32_t)m->args[1], column) * bytes,
               run * agents * bytes);
    }
    policy_bound(agent->policy, agent->batch.actions, n * agents);
}

void agent_reply(struct agent *agent, struct rpc_request *request)
{
    const struct rpc_message *m = rpc_request_message(request);
    if (agent_is_closing(agent, m)) {
        rpc_reply(request, &(struct rpc_message){0});
        return;
    }
    collect_actions(agent, m);
    const struct wire_tensor tensor =
        step_action_tensor(&agent->world.spec, m->tensors[STEP_ENVIRONMENT].dims[0]);
    rpc_reply(request,
              &(struct rpc_message){.tensor_count = 1, .tensors = {tensor}, .data = {agent->batch.actions}});
}

/* One pass of the policy over the batch's first `rows` rows. */
static enum status act_on_batch(struct agent *agent, uint32_t rows, struct error *error)
{
    const struct rollout *rollout = agent->rollout;
    const struct policy_rows batch = {.count = rows,
                                      .row = agent->batch.row,
                                      .observations = rollout->observations,
                                      .actions = rollout->actions,
                                      .allowed = rollout->allowed,
                                      .dropout = rollout->masks,
                                      .log_probabilities = rollout->log_probabilities,
                                      .values = rollout->values};
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    const enum status status =
        policy_act(agent->policy, &batch, rollout->episode, agent->batch.column, agent->batch.step, error);
    profile_leave(before);
    return status;
}

enum status agent_act(struct agent *agent, const struct rpc_message *m, struct error *error)
{
    const uint32_t rows = m->tensors[STEP_ENVIRONMENT].dims[0] * agent->world.spec.agents;
    gather_rows(agent, m, 0);
    const enum status status = act_on_batch(agent, rows, error);
    if (status == STATUS_OK)
        collect_actions(agent, m);
    return status;
}

void agent_launch(void *context, const struct coalescer_slot *slots, size_t count, uint32_t rows)
{
    struct agent *agent = context;
    uint32_t begin = 0;
    for (size_t i = 0; i < count; begin += slots[i++].rows)
        gather_rows(agent, rpc_request_message(slots[i].request), begin);
    const enum status status = act_on_batch(agent, rows, &agent->failure);
    for (size_t i = 0; status != STATUS_OK && i < count; i++)
        rpc_fail(slots[i].request, STATUS_SHUTDOWN, "the job is ending");
    if (status != STATUS_OK)
        return; // agent_run sees the failure
    agent->worker->work += rows;
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    for (size_t i = 0; i < count; i++) {
        struct agent_group *group = &agent->seats[rpc_request_source(slots[i].request) - 1]
                                         .groups[rpc_request_message(slots[i].request)->args[2]];
        agent_reply(agent, slots[i].request);
        group->waiting = NULL;
        agent_release_parked(group);
    }
    profile_leave(before);
}
