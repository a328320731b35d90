/* Steps one group of environments through an episode. Runs on the observer's thread; in a job without
 * observers, on the agent's. */
#include "worker/reinforce/observer_group.h"

#include "kernels/base/profile.h"
#include "worker/environment/environment_spec.h"
#include "worker/reinforce/job_open.h"
#include "worker/reinforce/step_message.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static enum status open_memory(struct observer_group *g, struct error *error)
{
    const size_t n = g->count, rows = g->rows;
    g->indices = calloc(n, sizeof *g->indices);
    g->numbers = calloc(n, sizeof *g->numbers);
    g->over = calloc(n, sizeof *g->over);
    g->ended_rows = calloc(rows, sizeof *g->ended_rows);
    g->observations = g->own_observations = calloc(2 * rows, g->observation_bytes);
    g->rewards = calloc(rows + rows * g->spec->metric_count, sizeof *g->rewards);
    g->flags = calloc(rows, g->flags_bytes);
    if (g->indices == NULL || g->numbers == NULL || g->over == NULL || g->ended_rows == NULL ||
        g->observations == NULL || g->rewards == NULL || g->flags == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu environments", n);
    return STATUS_OK;
}

enum status observer_group_open(struct observer_group *g, const struct job *job, uint32_t number,
                                uint32_t first, uint32_t count, struct error *error)
{
    *g = (struct observer_group){.number = number, .first = first, .count = count};
    const enum status status = job_environments_open(&g->environments, job, first, count, error);
    if (status != STATUS_OK)
        return status;
    g->buffers = environments_buffers(g->environments);
    g->spec = environments_spec(g->environments);
    g->agents = g->spec->agents;
    g->rows = g->count * g->agents;
    g->observation_bytes = environment_space_bytes(&g->spec->observation);
    g->action_bytes = environment_space_bytes(&g->spec->action);
    g->flags_bytes = step_flags_bytes(g->spec);
    return open_memory(g, error);
}

void observer_group_close(struct observer_group *g)
{
    environments_close(g->environments);
    free(g->indices);
    free(g->numbers);
    free(g->over);
    free(g->ended_rows);
    free(g->own_observations);
    free(g->rewards);
    free(g->flags);
}

static size_t round_up(size_t bytes)
{
    return (bytes + WIRE_PLACE_ALIGNMENT - 1) / WIRE_PLACE_ALIGNMENT * WIRE_PLACE_ALIGNMENT;
}

size_t observer_group_lent_bytes(const struct observer_group *g)
{
    const size_t bytes = environments_observation_bytes(g->environments);
    return bytes < RPC_LEND_BYTES ? 0 : 2 * round_up(bytes);
}

void observer_group_lend(struct observer_group *g, void *memory)
{
    environments_place_observations(g->environments, memory);
    free(g->own_observations);
    g->own_observations = NULL;
    g->observations = (char *)memory + round_up(environments_observation_bytes(g->environments));
}

/* ---- asking ---- */

static char *observation_at(const struct observer_group *g, uint32_t row)
{
    return (char *)g->buffers->observation + row * g->observation_bytes;
}

/* The flags of a row at step 0: whether the rollout before has left its agent absent. */
static uint8_t flags_before(const struct observer_group *g, uint32_t row)
{
    return g->continues && !environments_is_over(g->environments, row / g->agents)
               ? g->buffers->flags[row] & ENVIRONMENT_ABSENT
               : 0;
}

/* Rewards, flags and masks of the live rows, then the metrics of those that ended. */
static void gather_outcomes(struct observer_group *g)
{
    const uint32_t metrics = g->spec->metric_count;
    uint8_t *flags = g->flags;
    uint32_t rows = 0;
    if (g->live == g->count && g->step > 0 && g->flags_bytes == 1) {
        rows = g->rows;
        memcpy(g->rewards, g->buffers->reward, rows * sizeof *g->rewards);
        memcpy(flags, g->buffers->flags, rows);
    }
    for (uint32_t i = 0; i < g->live && rows < g->live * g->agents; i++) {
        for (uint32_t a = 0; a < g->agents; a++, rows++, flags += g->flags_bytes) {
            const uint32_t row = g->indices[i] * g->agents + a;
            g->rewards[rows] = g->step > 0 ? g->buffers->reward[row] : 0;
            flags[0] = g->step > 0 ? g->buffers->flags[row] : flags_before(g, row);
            if (g->flags_bytes > 1)
                memcpy(flags + 1, g->buffers->mask + (size_t)row * (g->flags_bytes - 1), g->flags_bytes - 1);
        }
    }
    for (uint32_t i = 0; i < g->ended && metrics > 0; i++)
        memcpy(g->rewards + rows + i * metrics, g->buffers->metrics + (size_t)g->ended_rows[i] * metrics,
               metrics * sizeof *g->rewards);
}

/* The live rows' observations, with the last ones behind them. While all are live they lie so already. */
static const char *gather_observations(struct observer_group *g)
{
    const size_t bytes = g->agents * g->observation_bytes;
    if (g->live == g->count)
        return g->buffers->observation;
    for (uint32_t i = 0; i < g->live; i++)
        memcpy(g->observations + i * bytes, observation_at(g, g->indices[i] * g->agents), bytes);
    memcpy(g->observations + g->live * bytes, observation_at(g, g->rows), g->ended * g->observation_bytes);
    return g->observations;
}

static void scatter_actions(struct observer_group *g, const char *actions)
{
    const size_t bytes = g->agents * g->action_bytes;
    char *action = environments_actions(g->environments);
    if (g->live == g->count) {
        memcpy(action, actions, g->count * bytes);
        return;
    }
    for (uint32_t i = 0; i < g->live; i++)
        memcpy(action + g->indices[i] * bytes, actions + i * bytes, bytes);
}

void observer_group_rows(struct observer_group *g, struct rpc_message *rows)
{
    gather_outcomes(g);
    *rows = (struct rpc_message){
        .args = {g->episode, g->step, g->number},
        .tensor_count = STEP_TENSORS,
        .data = {g->numbers, gather_observations(g), g->rewards, g->flags},
    };
    step_tensors(rows->tensors, g->spec, g->live, g->ended);
}

enum status observer_group_ask(struct observer_group *g, struct rpc *rpc, struct error *error)
{
    struct rpc_message rows;
    observer_group_rows(g, &rows);
    return rpc_call_async(rpc, 0, METHOD_STEP, &rows, MONOTIME_NEVER, &g->answer, error);
}

enum status observer_group_tell_done(const struct observer_group *g, struct rpc *rpc, struct error *error)
{
    const struct rpc_message done = {.args = {g->episode, g->step, g->number}};
    struct future *answer;
    const enum status status = rpc_call_async(rpc, 0, METHOD_STEP, &done, MONOTIME_NEVER, &answer, error);
    if (status == STATUS_OK)
        future_release(answer);
    return status;
}

/* ---- stepping ---- */

/* Keeps what run_episode's answer says of the environment after its last step. */
static void note_last(struct observer_group *g, uint32_t index)
{
    const size_t row = (size_t)index * g->agents, metrics = g->spec->metric_count;
    memcpy(g->last.rewards + row, g->buffers->reward + row, g->agents * sizeof *g->last.rewards);
    memcpy(g->last.flags + row, g->buffers->flags + row, g->agents);
    if (metrics > 0)
        memcpy(g->last.metrics + row * metrics, g->buffers->metrics + row * metrics,
               g->agents * metrics * sizeof *g->last.metrics);
    g->last.steps[index] = g->step + 1;
}

/* Keeps the last observations of the environment's rows that have ended, which a reset overwrites. */
static void note_ended(struct observer_group *g, uint32_t index)
{
    for (uint32_t row = index * g->agents; row < (index + 1) * g->agents; row++) {
        if (!step_ended(g->buffers->flags[row]))
            continue;
        memcpy(observation_at(g, g->rows + g->ended), observation_at(g, row), g->observation_bytes);
        g->ended_rows[g->ended++] = row;
    }
}

/* The flags of all of the environment's rows. */
static uint8_t all_flags(const struct observer_group *g, uint32_t index)
{
    const uint8_t *flags = g->buffers->flags + (size_t)index * g->agents;
    uint8_t all = flags[0];
    for (uint32_t a = 1; a < g->agents; a++)
        all |= flags[a];
    return all;
}

/* Environments that the step ended leave in `episode` mode, and are reset in `steps` mode. */
static enum status handle_ended(struct observer_group *g, struct error *error)
{
    const bool until_over = g->steps == 0, is_last = g->step + 1 == g->steps;
    uint32_t kept = 0, over = 0;
    g->ended = 0;
    for (uint32_t i = 0; i < g->live; i++) {
        const uint32_t index = g->indices[i];
        const uint8_t flags = all_flags(g, index);
        const bool is_over = flags != 0 && environments_is_over(g->environments, index);
        const bool leaves = until_over && (is_over || (flags & ENVIRONMENT_RESTARTED) != 0);
        if ((leaves || is_last) && g->last.rewards != NULL)
            note_last(g, index);
        if (is_over)
            g->over[over++] = index;
        if (leaves)
            continue;
        if (flags != 0)
            note_ended(g, index);
        g->indices[kept] = index;
        g->numbers[kept++] = g->first + index;
    }
    g->live = kept;
    if (until_over || over == 0)
        return STATUS_OK;
    return environments_reset(g->environments, over, g->over, g->episode, g->step + 1, error);
}

enum status observer_group_advance(struct observer_group *g, const void *actions, struct error *error)
{
    scatter_actions(g, actions);
    const enum profile_kind before = profile_enter(PROFILE_ENVIRONMENT);
    enum status status =
        environments_step(g->environments, g->live, g->live < g->count ? g->indices : NULL, error);
    if (status == STATUS_OK)
        status = handle_ended(g, error);
    profile_leave(before);
    g->step++;
    return status;
}

/* Steps with the actions of the agent's answer. */
static enum status take_actions(struct observer_group *g, const struct rpc_message *m, struct error *error)
{
    const struct wire_tensor expected = step_action_tensor(g->spec, g->live);
    if (m->tensor_count != 1 || memcmp(&m->tensors[0], &expected, sizeof expected) != 0)
        return error_set(error, STATUS_INVALID, "the agent's answer to step %u: expected %u actions", g->step,
                         g->live * g->agents);
    return observer_group_advance(g, m->data[0], error);
}

static enum status wait_for_actions(struct observer_group *g, struct rpc *rpc, struct error *error)
{
    enum status status = rpc_wait(rpc, g->answer, error);
    if (status == STATUS_OK)
        status = take_actions(g, future_value(g->answer), error);
    future_release(g->answer);
    g->answer = NULL;
    return status;
}

/* Waits for the answer to the closing step, which says nothing. */
static enum status wait_for_close(struct observer_group *g, struct rpc *rpc, struct error *error)
{
    const enum status status = rpc_wait(rpc, g->answer, error);
    future_release(g->answer);
    g->answer = NULL;
    g->closes = false;
    return status;
}

enum status observer_group_step(struct observer_group *g, struct rpc *rpc, struct error *error)
{
    if (g->steps > 0 && g->step == g->steps)
        return wait_for_close(g, rpc, error);
    return wait_for_actions(g, rpc, error);
}

/* ---- an episode ---- */

enum status observer_group_begin(struct observer_group *g, const uint64_t args[WIRE_ARGS],
                                 struct error *error)
{
    g->episode = (uint32_t)args[RUN_NUMBER];
    g->steps = (uint32_t)args[RUN_STEPS];
    g->continues = args[RUN_BEGIN] != BEGIN_RESET;
    g->closes = args[RUN_CLOSES] != 0;
    g->step = 0;
    g->live = g->count;
    g->ended = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        g->indices[i] = i;
        g->numbers[i] = g->first + i;
    }
    if (g->continues)
        return STATUS_OK;
    const enum profile_kind before = profile_enter(PROFILE_ENVIRONMENT);
    const enum status status = environments_reset(g->environments, g->count, NULL, g->episode, 0, error);
    profile_leave(before);
    return status;
}

bool observer_group_save(struct observer_group *g, void *out, size_t capacity, size_t *bytes)
{
    if (!environments_can_save(g->environments))
        return false;
    for (uint32_t i = 0; i < g->count; i++) {
        const size_t left = capacity > *bytes + sizeof(uint32_t) ? capacity - *bytes - sizeof(uint32_t) : 0;
        char *to = left > 0 ? (char *)out + *bytes : NULL;
        const size_t size =
            environments_save(g->environments, i, left > 0 ? to + sizeof(uint32_t) : NULL, left);
        const uint32_t length = (uint32_t)size;
        if (size == 0 || size > UINT32_MAX)
            return false;
        if (size <= left)
            memcpy(to, &length, sizeof length);
        *bytes += sizeof length + size;
    }
    return true;
}

enum status observer_group_load(struct observer_group *g, const void *states, size_t length, size_t *bytes,
                                struct error *error)
{
    enum status status = STATUS_OK;
    *bytes = 0;
    for (uint32_t i = 0; i < g->count && status == STATUS_OK; i++) {
        const char *from = (const char *)states + *bytes;
        uint32_t size = 0;
        if (length - *bytes >= sizeof size)
            memcpy(&size, from, sizeof size);
        if (length - *bytes < sizeof size || length - *bytes - sizeof size < size)
            return error_set(error, STATUS_INVALID, "the saved states end within environment %u",
                             g->first + i);
        status = environments_load(g->environments, i, from + sizeof size, size, error);
        *bytes += sizeof size + size;
    }
    return status;
}

bool observer_group_is_done(const struct observer_group *g)
{
    return g->live == 0 || (g->steps > 0 && g->step == g->steps && !g->closes);
}
