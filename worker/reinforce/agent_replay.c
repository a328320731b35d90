/* An observer that died, and its successor. The successor plays the episode from its first step: environments
 * are functions of the job's seed, and the agent gives it the actions that it gave to the predecessor. So its
 * steps come out as recorded, until it is where the predecessor stopped.
 *
 * A step that comes out as another one is where the record ends: the observer's rows from there on are
 * forgotten, and the successor's take their place. The rows before are the successor's own, to the bit. The
 * draws depend on the step and on what the row shows, so the observer's other environments get the actions
 * that they had. Of environments that cannot be seeded, or cannot go on from a saved state where the job has
 * them go on, all rows are forgotten. */
#include "worker/reinforce/agent.h"
#include "worker/reinforce/step_message.h"

#include "kernels/base/log.h"

#include <stdio.h>
#include <string.h>

/* ---- asking ---- */

static void drop_parked(struct agent_group *group, enum status status, const char *why)
{
    if (group->parked != NULL)
        rpc_fail(group->parked, status, "%s", why);
    group->parked = NULL;
}

/* The group's rows from `step` on are forgotten. Environments that had fewer rows stay over; the others
 * live. */
static void forget_rows(struct agent_group *group, uint32_t step)
{
    struct agent *agent = group->seat->agent;
    const uint32_t number = (uint32_t)(group - group->seat->groups);
    for (uint32_t e = group->first; e < group->first + group->count; e++) {
        if (!rollout_truncate(agent->rollout, e, step))
            continue;
        agent->live[number] += !agent->alive[e];
        agent->alive[e] = 1;
    }
    if (group->waiting != NULL) { /* the predecessor's */
        coalescer_remove(agent->coalescers[number], group);
        rpc_fail(group->waiting, STATUS_PEER_DIED, "the observer that sent it is gone");
    }
    group->waiting = NULL;
    group->recorded = step;
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
    const uint32_t agents = agent->world.spec.agents, first = seat->groups[0].first * agents;
    const uint32_t count = agent->per_observer * agents;
    struct rpc_message message = {.args = {[RUN_NUMBER] = agent->episode, [RUN_STEPS] = steps}};
    const bool has_lost = !agent_states_give(seat, &message);
    for (uint32_t i = 0; i < agent->groups; i++) {
        if (has_lost || (agent->world.spec.limits & ENVIRONMENT_CANNOT_SEED) != 0)
            forget_rows(&seat->groups[i], 0);
        seat->groups[i].next_step = 0;
        drop_parked(&seat->groups[i], STATUS_PEER_DIED, "the observer that sent it is gone");
    }
    rollout_forget_last(agent->rollout, first, count); /* the steps that come bring them again */
    episode_metrics_clear(&agent->metrics, first, count);
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

void agent_replay_tell(struct agent *agent, uint32_t environment, const char *where)
{
    if (!agent->told)
        log_warning(
            "%s: environment %u, played again from the same seed with the same actions, takes another "
            "course %s: it begins anew there; expected CANNOT_SEED (in Python, nondeterministic) of "
            "such environments",
            agent->world.name, environment, where);
    agent->told = true;
}

/* The group's step is recorded, and comes out as another one. The observer's other groups do not go on by
 * their records either: it steps its groups in turn, and a barrier must not wait for one of them alone. */
static void end_record(struct agent_group *group, uint32_t environment, const char *what)
{
    struct agent *agent = group->seat->agent;
    char where[96];
    snprintf(where, sizeof where, "(another %s in step %u of episode %llu)", what, group->next_step,
             (unsigned long long)agent->episode);
    agent_replay_tell(agent, environment, where);
    for (uint32_t i = 0; i < agent->groups; i++) {
        struct agent_group *beside = &group->seat->groups[i];
        if (beside->next_step < beside->recorded)
            forget_rows(beside, beside->next_step);
    }
}

bool agent_replays(struct agent_group *group, const struct step *s)
{
    uint32_t environment = group->first;
    if (group->next_step == group->recorded)
        return false;
    const char *what =
        rollout_compare(group->seat->agent->rollout, s, group->first, group->count, &environment);
    if (what != NULL)
        end_record(group, environment, what);
    return what == NULL;
}

void agent_replay_end(struct agent_group *group)
{
    if (group->next_step < group->recorded)
        end_record(group, group->first, "end");
}

void agent_replay_step(struct agent_group *group, struct rpc_request *request, const struct step *s)
{
    agent_take_ends(group->seat->agent, s);
    group->next_step++;
    if (group->waiting != NULL && group->next_step == group->recorded)
        group->parked = request;
    else
        agent_reply(group->seat->agent, request, s);
}

void agent_drop_parked(struct agent *agent)
{
    for (uint32_t i = 0; i < job_observers(&agent->worker->job) * agent->groups; i++)
        drop_parked(&agent->all[i], STATUS_SHUTDOWN, "the job is ending");
}
