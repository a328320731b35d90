/* The states of the environments between two rollouts, where one goes on where the one before ended
 * (/rollout/begin "continue"). Every answer to run_episode carries those of the observer's environments. A
 * successor gets them with its request; the checkpoint holds them for a run that resumes. The agent's thread.
 *
 * States of environments lie behind each other, in order, each behind its length in bytes (uint32). */
#include "worker/environment/environment_spec.h"
#include "worker/reinforce/agent.h"
#include "worker/reinforce/step_message.h"

#include "kernels/base/log.h"

#include <stdlib.h>
#include <string.h>

/* The bytes of the first `count` states of `bytes`; 0: there are not so many. */
static size_t states_of(const char *states, size_t bytes, uint32_t count)
{
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = 0;
        if (bytes - at >= sizeof length)
            memcpy(&length, states + at, sizeof length);
        if (bytes - at < sizeof length || bytes - at - sizeof length < length)
            return 0;
        at += sizeof length + length;
    }
    return at;
}

static bool continues(const struct agent *agent)
{
    return agent->worker->job.rollout.begin == JOB_BEGIN_CONTINUE;
}

bool agent_states_are_good(const struct agent_seat *seat, const struct step_end *end)
{
    return !end->has_states ||
           (continues(seat->agent) &&
            states_of(end->states, end->state_bytes, seat->agent->per_observer) == end->state_bytes);
}

/* Keeps a copy of the seat's states, or none. */
static enum status keep(struct agent_seat *seat, const void *states, size_t bytes, struct error *error)
{
    free(seat->states);
    seat->states = bytes > 0 ? malloc(bytes) : NULL;
    seat->state_bytes = seat->states != NULL ? bytes : 0;
    if (seat->state_bytes < bytes)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the states of observer %u's environments",
                         seat->worker);
    if (bytes > 0)
        memcpy(seat->states, states, bytes);
    return STATUS_OK;
}

void agent_states_keep(struct agent_seat *seat, const struct step_end *end)
{
    struct error why = {0};
    seat->played = true;
    if (keep(seat, end->states, end->state_bytes, &why) != STATUS_OK)
        seat->agent->failure = why;
}

bool agent_states_give(const struct agent_seat *seat, struct rpc_message *m)
{
    const struct agent *agent = seat->agent;
    const bool goes_on = continues(agent) && agent->episode > 1;
    m->args[RUN_BEGIN] = BEGIN_RESET;
    m->args[RUN_CLOSES] = agent->rollout->config.bootstraps;
    if (goes_on && !seat->fresh)
        m->args[RUN_BEGIN] = BEGIN_CONTINUE;
    if (goes_on && seat->fresh && seat->state_bytes > 0) {
        m->args[RUN_BEGIN] = BEGIN_STATES;
        m->tensor_count = 1;
        m->tensors[0] =
            (struct wire_tensor){.dtype = WIRE_U8, .rank = 1, .dims = {(uint32_t)seat->state_bytes}};
        m->data[0] = seat->states;
    }
    return !goes_on || m->args[RUN_BEGIN] != BEGIN_RESET;
}

void agent_states_warn(struct agent *agent, bool can_save)
{
    const bool can_seed = (agent->world.spec.limits & ENVIRONMENT_CANNOT_SEED) == 0;
    const char *loss = environment_loss(can_seed, can_save || !continues(agent));
    if (loss == NULL || agent->warned)
        return;
    log_warning("%s %s", agent->world.name, loss);
    agent->warned = true;
}

void agent_states_forget(struct agent *agent, uint32_t first, uint32_t count)
{
    const uint32_t agents = agent->world.spec.agents;
    episode_returns_forget(&agent->episode_returns, first * agents, count * agents);
    if (agent_is_actor_critic(agent))
        ppo_forget(&agent->ppo, first * agents, count * agents);
}

void agent_states_lost(struct agent_seat *seat)
{
    struct agent *agent = seat->agent;
    const bool is_new = seat->worker > agent->worker->job.observers.count && !seat->played; /* was added */
    if (!is_new)
        agent_states_warn(agent, false);
    agent_states_forget(agent, seat->groups[0].first, agent->per_observer);
}

/* ---- checkpoints ---- */

static bool have_states(const struct agent *agent)
{
    for (uint32_t i = 0; i < job_observers(&agent->worker->job); i++)
        if (agent->seats[i].state_bytes == 0)
            return false;
    return true;
}

/* The bytes of what PPO keeps; 0 of another algorithm. */
static size_t ppo_part(const struct agent *agent)
{
    return agent_is_actor_critic(agent) ? ppo_bytes(&agent->ppo) : 0;
}

enum status agent_states_save(struct agent *agent, char **out, size_t *bytes, struct error *error)
{
    const uint32_t observers = job_observers(&agent->worker->job);
    const size_t returns = episode_returns_bytes(&agent->episode_returns), head = returns + ppo_part(agent);
    const bool has_states = have_states(agent);
    *out = NULL;
    *bytes = 0;
    if (!continues(agent))
        return STATUS_OK;
    *bytes = head;
    for (uint32_t i = 0; i < observers && has_states; i++)
        *bytes += agent->seats[i].state_bytes;
    const size_t own = agent->own != NULL ? agent_own_save(agent, NULL, 0) : 0;
    *bytes += own;
    *out = malloc(*bytes);
    if (*out == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environments' states in a checkpoint");
    episode_returns_write(&agent->episode_returns, *out);
    if (head > returns)
        ppo_write(&agent->ppo, *out + returns);
    char *at = *out + head;
    for (uint32_t i = 0; i < observers && has_states; at += agent->seats[i++].state_bytes)
        memcpy(at, agent->seats[i].states, agent->seats[i].state_bytes);
    if (own > 0)
        agent_own_save(agent, at, own);
    return STATUS_OK;
}

/* Reads the sums behind which the states lie. Answers how many bytes they have; 0: they are not this job's.
 */
static size_t load_sums(struct agent *agent, const char *from, size_t bytes)
{
    const size_t returns = episode_returns_read(&agent->episode_returns, from, bytes);
    if (returns == 0 || !agent_is_actor_critic(agent))
        return returns;
    const size_t ppo = ppo_read(&agent->ppo, from + returns, bytes - returns);
    return ppo > 0 ? returns + ppo : 0;
}

/* Observers beyond those that have states begin anew; states of observers that the job has no more are left.
 */
static enum status load_seats(struct agent *agent, const char *from, size_t bytes, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < job_observers(&agent->worker->job) && bytes > 0 && status == STATUS_OK; i++) {
        const size_t mine = states_of(from, bytes, agent->per_observer);
        if (mine == 0)
            return error_set(error, STATUS_INVALID,
                             "it does not hold the states of observer %u's environments", i + 1);
        status = keep(&agent->seats[i], from, mine, error);
        from += mine;
        bytes -= mine;
    }
    return status;
}

enum status agent_states_load(struct agent *agent, const char *from, size_t bytes, struct error *error)
{
    if (!continues(agent) || bytes == 0)
        return STATUS_OK;
    const size_t sums = load_sums(agent, from, bytes);
    if (sums == 0)
        return error_set(error, STATUS_INVALID, "its environments%s are not those of this job",
                         agent_is_actor_critic(agent) ? ", or its /algorithm/stats_window_size," : "");
    if (agent->own == NULL)
        return load_seats(agent, from + sums, bytes - sums, error);
    return bytes > sums ? agent_own_load(agent, from + sums, bytes - sums, error) : STATUS_OK;
}
