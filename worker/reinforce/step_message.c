/* Makes, checks and decodes the tensors of a step. */
#include "worker/reinforce/step_message.h"

#include "worker/environment/environment_spec.h"

#include <string.h>

void step_tensors(struct wire_tensor tensors[STEP_TENSORS], const struct environment_spec *spec, uint32_t n,
                  uint32_t ended)
{
    const struct environment_space *space = &spec->observation;
    const uint32_t rows = n * spec->agents;
    tensors[STEP_ENVIRONMENT] = (struct wire_tensor){.dtype = WIRE_U32, .rank = 1, .dims = {n}};
    tensors[STEP_OBSERVATION] =
        (struct wire_tensor){.dtype = space->dtype == ENVIRONMENT_U8 ? WIRE_U8 : WIRE_F32,
                             .rank = (uint8_t)(1 + space->rank),
                             .dims = {rows + ended}};
    for (uint32_t i = 0; i < space->rank; i++)
        tensors[STEP_OBSERVATION].dims[1 + i] = space->shape[i];
    tensors[STEP_REWARD] =
        (struct wire_tensor){.dtype = WIRE_F32, .rank = 1, .dims = {rows + ended * spec->metric_count}};
    tensors[STEP_FLAGS] =
        (struct wire_tensor){.dtype = WIRE_U8, .rank = 2, .dims = {rows, step_flags_bytes(spec)}};
}

struct wire_tensor step_action_tensor(const struct environment_spec *spec, uint32_t n)
{
    return (struct wire_tensor){
        .dtype = spec->action.choices != NULL ? WIRE_U32 : WIRE_F32,
        .rank = 2,
        .dims = {n * spec->agents, (uint32_t)environment_space_elements(&spec->action)}};
}

uint32_t step_flags_bytes(const struct environment_spec *spec)
{
    return 1 + (spec->has_mask == 1 ? (uint32_t)environment_choices(spec) : 0);
}

/* ---- checks ---- */

/* The first tensor that is not as expected, in *error. */
static enum status check_tensors(const struct rpc_message *m, const struct wire_tensor *expected,
                                 struct error *error)
{
    static const char *const names[STEP_TENSORS] = {"environments", "observations", "rewards", "flags"};
    for (int i = 0; i < STEP_TENSORS; i++) {
        const struct wire_tensor *got = &m->tensors[i], *want = &expected[i];
        if (memcmp(got, want, sizeof *got) != 0)
            return error_set(
                error, STATUS_INVALID,
                "the %s have dtype %u and shape (%u, %u, %u, %u): expected dtype %u and (%u, %u, %u, %u)",
                names[i], got->dtype, got->dims[0], got->dims[1], got->dims[2], got->dims[3], want->dtype,
                want->dims[0], want->dims[1], want->dims[2], want->dims[3]);
    }
    return STATUS_OK;
}

/* Whether each component of the row's action has a choice, and all bytes are 0 or 1. */
static bool mask_is_good(const uint8_t *mask, const struct environment_spec *spec)
{
    const size_t components = environment_space_elements(&spec->action);
    for (size_t c = 0; c < components; mask += spec->action.choices[c++]) {
        uint32_t allowed = 0;
        for (uint32_t i = 0; i < spec->action.choices[c]; i++) {
            if (mask[i] > 1)
                return false;
            allowed += mask[i];
        }
        if (allowed == 0)
            return false;
    }
    return true;
}

static bool are_zero(const uint8_t *bytes, uint32_t count)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

/* Flags and masks; *ended is how many rows have ended. */
static enum status check_flags(const struct rpc_message *m, const struct environment_spec *spec,
                               uint32_t rows, uint32_t *ended, struct error *error)
{
    const uint32_t bytes = step_flags_bytes(spec);
    const uint8_t *row = m->data[STEP_FLAGS];
    *ended = 0;
    if (bytes == 1 && are_zero(row, rows))
        return STATUS_OK;
    for (uint32_t i = 0; i < rows; i++, row += bytes) {
        if ((row[0] & ~ENVIRONMENT_STEP_FLAGS) != 0)
            return error_set(error, STATUS_INVALID, "row %u has flags %u: expected a subset of %u", i, row[0],
                             ENVIRONMENT_STEP_FLAGS);
        if (bytes > 1 && !mask_is_good(row + 1, spec))
            return error_set(error, STATUS_INVALID,
                             "row %u has an action mask that allows nothing, or with a byte above 1", i);
        *ended += step_ended(row[0]);
    }
    return STATUS_OK;
}

static enum status check_message(const struct rpc_message *m, const struct environment_spec *spec,
                                 uint32_t n_max, struct error *error)
{
    struct wire_tensor expected[STEP_TENSORS];
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], rows = n * spec->agents;
    uint32_t ended = 0;
    if (m->tensor_count != STEP_TENSORS || n == 0 || n > n_max)
        return error_set(
            error, STATUS_INVALID,
            "a step of %u tensors and %u environments: expected %d tensors and 1 to %u environments",
            m->tensor_count, n, STEP_TENSORS, n_max);
    step_tensors(expected, spec, n, 0);
    const struct wire_tensor flags = expected[STEP_FLAGS];
    if (memcmp(&m->tensors[STEP_FLAGS], &flags, sizeof flags) == 0) {
        const enum status status = check_flags(m, spec, rows, &ended, error);
        if (status != STATUS_OK)
            return status;
    }
    step_tensors(expected, spec, n, ended);
    const enum status status = check_tensors(m, expected, error);
    if (status != STATUS_OK)
        return status;
    if (!environment_observations_are_finite(spec, m->data[STEP_OBSERVATION], rows + ended) ||
        !environment_floats_are_finite(m->data[STEP_REWARD], expected[STEP_REWARD].dims[0]))
        return error_set(error, STATUS_INVALID, "an observation or reward that is not finite");
    return STATUS_OK;
}

/* ---- decoding ---- */

void step_view(struct step *step, const struct rpc_message *m, const struct environment_spec *spec)
{
    const uint32_t n = m->tensors[STEP_ENVIRONMENT].dims[0], rows = n * spec->agents;
    const size_t bytes = environment_space_bytes(&spec->observation);
    const char *observations = m->data[STEP_OBSERVATION];
    const message_f32 *rewards = m->data[STEP_REWARD];
    *step = (struct step){.episode = m->args[0],
                          .number = (uint32_t)m->args[1],
                          .group = (uint32_t)m->args[2],
                          .count = n,
                          .agents = spec->agents,
                          .rows = rows,
                          .ended = m->tensors[STEP_OBSERVATION].dims[0] - rows,
                          .flags_bytes = step_flags_bytes(spec),
                          .observation_bytes = bytes,
                          .numbers = m->data[STEP_ENVIRONMENT],
                          .observations = observations,
                          .last = observations + rows * bytes,
                          .rewards = rewards,
                          .metrics = rewards + rows,
                          .flags = m->data[STEP_FLAGS]};
}

enum status step_decode(struct step *step, const struct rpc_message *m, const struct environment_spec *spec,
                        uint32_t n_max, struct error *error)
{
    const unsigned long long number = m->args[1], group = m->args[2];
    if (number > UINT32_MAX || group > UINT32_MAX)
        return error_set(error, STATUS_INVALID, "step %llu of group %llu: expected numbers up to %u", number,
                         group, UINT32_MAX);
    if (m->tensor_count == 0) {
        *step = (struct step){.episode = m->args[0], .number = (uint32_t)number, .group = (uint32_t)group};
        return STATUS_OK;
    }
    if ((m->lent & ~(1u << STEP_OBSERVATION)) != 0)
        return error_set(
            error, STATUS_INVALID,
            "a step with numbers, flags or rewards in shared memory: only observations may be lent");
    const enum status status = check_message(m, spec, n_max, error);
    if (status != STATUS_OK)
        return status;
    step_view(step, m, spec);
    step->lent = m->lent != 0 && environment_observes_floats(spec) ? spec : NULL;
    return STATUS_OK;
}

enum status step_check_copy(const struct step *step, const void *copy, uint32_t count, struct error *error)
{
    return step->lent == NULL || environment_observations_are_finite(step->lent, copy, count)
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "an observation that its sender has changed is not finite");
}

enum status step_end_decode(struct step_end *end, const struct rpc_message *m,
                            const struct environment_spec *spec, uint32_t n)
{
    const uint32_t rows = n * spec->agents;
    const struct wire_tensor flags = {.dtype = WIRE_U8, .rank = 1, .dims = {rows}};
    const struct wire_tensor lengths = {.dtype = WIRE_U32, .rank = 1, .dims = {n}};
    struct wire_tensor rewards = {.dtype = WIRE_F32, .rank = 1, .dims = {rows}};
    const bool has_states = m->tensor_count == RETURN_STATES + 1;
    const struct wire_tensor *states = &m->tensors[RETURN_STATES];
    if (m->lent != 0 || (!has_states && m->tensor_count != RETURN_STATES) ||
        (has_states && (states->dtype != WIRE_U8 || states->rank != 1)) ||
        memcmp(&m->tensors[RETURN_FLAGS], &flags, sizeof flags) != 0 ||
        memcmp(&m->tensors[RETURN_LENGTH], &lengths, sizeof lengths) != 0)
        return STATUS_INVALID;
    *end = (struct step_end){.last = {.count = n,
                                      .agents = spec->agents,
                                      .rows = rows,
                                      .flags_bytes = 1,
                                      .rewards = m->data[RETURN_REWARD],
                                      .flags = m->data[RETURN_FLAGS]},
                             .lengths = m->data[RETURN_LENGTH],
                             .has_states = has_states,
                             .states = has_states ? m->data[RETURN_STATES] : NULL,
                             .state_bytes = has_states ? states->dims[0] : 0};
    end->last.metrics = end->last.rewards + rows;
    for (uint32_t row = 0; row < rows; row++)
        end->last.ended += step_ended(step_flags(&end->last, row));
    rewards.dims[0] += end->last.ended * spec->metric_count;
    return memcmp(&m->tensors[RETURN_REWARD], &rewards, sizeof rewards) == 0 &&
                   environment_floats_are_finite(m->data[RETURN_REWARD], rewards.dims[0])
               ? STATUS_OK
               : STATUS_INVALID;
}

bool step_is_over(const struct step *step, uint32_t i, uint8_t *all)
{
    uint8_t flags[ENVIRONMENT_AGENTS_MAX];
    *all = 0;
    for (uint32_t a = 0; a < step->agents; a++)
        *all |= flags[a] = step_flags(step, i * step->agents + a);
    return environment_is_over(flags, step->agents) || (*all & ENVIRONMENT_RESTARTED) != 0;
}

uint32_t step_run(const struct step *step, uint32_t i)
{
    uint32_t run = 1;
    while (i + run < step->count && step->numbers[i + run] == step->numbers[i] + run)
        run++;
    return run;
}
