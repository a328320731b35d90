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
static enum status check_request(const struct agent_group *group, const struct step *s, struct error *error)
{
    const struct agent *agent = group->seat->agent;
    if (agent->phase != AGENT_PLAYING || s->episode != agent->episode)
        return error_set(error, STATUS_INVALID, "step of episode %llu: expected the running episode, %llu",
                         (unsigned long long)s->episode, (unsigned long long)agent->episode);
    if (group->parked != NULL || (group->waiting != NULL && group->next_step == group->recorded))
        return error_set(error, STATUS_INVALID, "step %u while step %u is not answered", s->number,
                         group->next_step - 1);
    const uint32_t steps = agent->rollout->config.steps_max + agent->rollout->config.bootstraps;
    if (s->number != group->next_step || (s->count > 0 && s->number >= steps))
        return error_set(error, STATUS_INVALID, "step %u: expected %u, below %u", s->number, group->next_step,
                         steps);
    return STATUS_OK;
}

/* Holds the rows to the group's environments: ascending, alive. */
static enum status check_rows(const struct agent_group *group, const struct step *s, struct error *error)
{
    const struct agent *agent = group->seat->agent;
    const bool steps = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS;
    const uint32_t end = group->first + group->count;
    uint32_t least = group->first;
    if (steps && s->count != group->count)
        return error_set(error, STATUS_INVALID, "%u rows: expected one for each of %u environments", s->count,
                         group->count);
    for (uint32_t i = 0; i < s->count; i++) {
        const uint32_t environment = s->numbers[i];
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

/* At step 0 nothing has ended; agents are absent, and environments may have failed to go on, only where the
 * rollout goes on from the one before. In the mode episode an environment whose episode is over has no rows.
 */
static enum status check_flags(const struct agent *agent, const struct step *s, struct error *error)
{
    const bool ends = agent->worker->job.rollout.mode == JOB_ROLLOUT_STEPS;
    const bool goes_on = agent->worker->job.rollout.begin == JOB_BEGIN_CONTINUE;
    const unsigned first = goes_on ? ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED : 0;
    uint8_t flags[ENVIRONMENT_AGENTS_MAX], all = 0;
    if (ends && s->number > 0)
        return STATUS_OK;
    for (uint32_t i = 0; i < s->count; i++) {
        all |= step_all_flags(s, i, flags);
        if (s->number == 0 && (all & ~first) != 0)
            return error_set(error, STATUS_INVALID, "environment %u of step 0 has flags %u: expected %u", i,
                             all, all & first);
        if (!ends && (environment_is_over(flags, s->agents) || (all & ENVIRONMENT_RESTARTED) != 0))
            return error_set(error, STATUS_INVALID,
                             "environment %u of step %u has flags %u, its episode is over", i, s->number,
                             all);
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
static void retire_absent(struct agent_group *group, const struct step *s)
{
    uint32_t i = 0;
    if (s->count == group->count)
        return;
    for (uint32_t e = group->first; e < group->first + group->count; e++) {
        if (i < s->count && s->numbers[i] == e)
            i++;
        else
            retire(group, e);
    }
    agent_set_live(group->seat->agent);
}

/* The metrics of the rows that the step before has ended. */
static void take_metrics(struct agent *agent, const struct step *s)
{
    const message_f32 *values = s->metrics;
    for (uint32_t i = 0; i < s->rows && agent->metrics.count > 0; i++)
        if (step_ended(step_flags(s, i))) {
            episode_metrics_add(&agent->metrics, s->numbers[i / s->agents] * s->agents + i % s->agents,
                                values);
            values += agent->metrics.count;
        }
}

/* The environments whose saved states led to another place have been reset. */
static void take_failed(struct agent *agent, const struct step *s)
{
    for (uint32_t i = 0; i < s->rows && s->number == 0; i++) {
        const uint32_t environment = s->numbers[i / s->agents];
        if ((step_flags(s, i) & ENVIRONMENT_FAILED) == 0)
            continue;
        agent->rollout->before[environment * s->agents + i % s->agents] &= (uint8_t)~ENVIRONMENT_FAILED;
        agent_states_forget(agent, environment, 1);
        agent_replay_tell(agent, environment, "up to its saved state");
    }
}

/* The group of a step, whose observer has described its environment. */
static enum status find_group(struct agent_seat *seat, const struct step *s, struct agent_group **group,
                              struct error *error)
{
    if (s->group >= seat->agent->groups)
        return error_set(error, STATUS_INVALID, "a step of group %u: expected one below %u", s->group,
                         seat->agent->groups);
    *group = &seat->groups[s->group];
    return STATUS_OK;
}

/* STATUS_AGAIN: the step is recorded already. */
static enum status check_step(struct agent_group *group, const struct step *s, struct error *error)
{
    enum status status = check_request(group, s, error);
    if (status != STATUS_OK || s->count == 0)
        return status;
    if (agent_replays(group, s))
        return STATUS_AGAIN;
    status = check_rows(group, s, error);
    return status == STATUS_OK ? check_flags(group->seat->agent, s, error) : status;
}

void agent_record(struct agent *agent, const struct step *s)
{
    rollout_record(agent->rollout, s);
    agent_take_ends(agent, s);
}

void agent_take_ends(struct agent *agent, const struct step *s)
{
    if (agent->failure.status == STATUS_OK)
        (void)rollout_record_last(agent->rollout, s, &agent->failure);
    take_metrics(agent, s);
    take_failed(agent, s);
}

/* Puts the request in line, and its rows into the rollout. */
static void take_step(struct agent_group *group, struct rpc_request *request, const struct step *s)
{
    struct agent *agent = group->seat->agent;
    const bool waits = !rollout_is_closing(agent->rollout, s);
    if (waits &&
        coalescer_add(agent->coalescers[number_of(group)], group, s->rows, monotime_now()) != STATUS_OK) {
        rpc_fail(request, STATUS_BUSY, "more requests than environments");
        return;
    }
    group->waiting = waits ? request : NULL;
    group->step = *s;
    agent_record(agent, s);
    retire_absent(group, s);
    group->recorded = ++group->next_step;
    if (!waits)
        agent_reply(agent, request, s);
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

/* Decodes the request. During an evaluation it may have as many rows as there are episodes. */
static enum status decode(const struct agent_seat *seat, const struct rpc_message *message, struct step *s,
                          struct error *error)
{
    const struct agent *agent = seat->agent;
    const uint32_t most =
        agent->phase == AGENT_EVALUATING ? agent->worker->job.evaluation.episodes : agent->per_observer;
    if (!seat->described)
        return error_set(error, STATUS_INVALID, "a step before the environment's description");
    return step_decode(s, message, &agent->world.spec, most, error);
}

void agent_step(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct agent *agent = context;
    struct agent_seat *seat = &agent->seats[rpc_request_source(request) - 1];
    struct agent_group *group = NULL;
    struct step step;
    struct error why;
    if (agent->worker->hurry) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    enum status status = decode(seat, message, &step, &why);
    if (status == STATUS_OK && agent->phase == AGENT_EVALUATING) {
        agent_evaluate_step(seat, request, &step);
        return;
    }
    if (status == STATUS_OK)
        status = find_group(seat, &step, &group, &why);
    if (status == STATUS_OK)
        status = check_step(group, &step, &why);
    if (status == STATUS_AGAIN)
        agent_replay_step(group, request, &step);
    else if (status == STATUS_OK && step.count == 0)
        take_end(group, request);
    else if (status == STATUS_OK)
        take_step(group, request, &step);
    else
        rpc_reject(request, "%s", why.text);
}

/* ---- the launch and its replies ---- */

/* Fills the batch's arrays from `begin` on with the rows of one step. */
static void gather_rows(struct agent *agent, const struct step *s, uint32_t begin)
{
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t a = 0; a < s->agents; a++, begin++) {
            const uint32_t column = s->numbers[i] * s->agents + a;
            agent->batch.column[begin] = column;
            agent->batch.step[begin] = s->number;
            agent->batch.row[begin] = rollout_row(agent->rollout, s->number, column);
        }
}

/* The actions of the step's rows, from the rollout to batch.actions, within their bounds. */
static void collect_actions(struct agent *agent, const struct step *s)
{
    const size_t bytes = agent->rollout->config.action_bytes;
    for (uint32_t i = 0, run; i < s->count; i += run) {
        const uint32_t column = s->numbers[i] * s->agents;
        run = step_run(s, i);
        memcpy((char *)agent->batch.actions + i * s->agents * bytes,
               agent->rollout->actions + rollout_row(agent->rollout, s->number, column) * bytes,
               run * s->agents * bytes);
    }
    policy_bound(agent->policy, agent->batch.actions, s->rows);
}

void agent_reply(struct agent *agent, struct rpc_request *request, const struct step *s)
{
    if (rollout_is_closing(agent->rollout, s)) {
        rpc_reply(request, &(struct rpc_message){0});
        return;
    }
    collect_actions(agent, s);
    const struct wire_tensor tensor = step_action_tensor(&agent->world.spec, s->count);
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

enum status agent_act(struct agent *agent, const struct step *s, struct error *error)
{
    gather_rows(agent, s, 0);
    const enum status status = act_on_batch(agent, s->rows, error);
    if (status == STATUS_OK)
        collect_actions(agent, s);
    return status;
}

void agent_launch(void *context, const struct coalescer_slot *slots, size_t count, uint32_t rows)
{
    struct agent *agent = context;
    uint32_t begin = 0;
    for (size_t i = 0; i < count; begin += slots[i++].rows)
        gather_rows(agent, &((const struct agent_group *)slots[i].request)->step, begin);
    const enum status status = act_on_batch(agent, rows, &agent->failure);
    for (size_t i = 0; status != STATUS_OK && i < count; i++)
        rpc_fail(((const struct agent_group *)slots[i].request)->waiting, STATUS_SHUTDOWN,
                 "the job is ending");
    if (status != STATUS_OK)
        return; // agent_run sees the failure
    agent->worker->work += rows;
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    for (size_t i = 0; i < count; i++) {
        struct agent_group *group = slots[i].request;
        if (group->parked != NULL)
            agent_reply(agent, group->parked, &group->step);
        agent_reply(agent, group->waiting, &group->step);
        group->waiting = group->parked = NULL;
    }
    profile_leave(before);
}
