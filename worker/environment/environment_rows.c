/* The checks of rows, one function each. A check of many rows first looks at all of them at once; only what
 * is wrong is looked for row by row, to be named. */
#include "worker/environment/environment_rows.h"

#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct environment_rows environment_rows_of(const struct environment_spec *spec,
                                            const struct environment_buffers *buffers, uint32_t first)
{
    return (struct environment_rows){.spec = spec,
                                     .buffers = buffers,
                                     .first = first,
                                     .elements = environment_space_elements(&spec->observation),
                                     .action_elements = environment_space_elements(&spec->action),
                                     .choices = spec->has_mask == 1 ? environment_choices(spec) : 0};
}

/* Fails with "environment 7: SENTENCE"; of several agents, "environment 7, agent 1: SENTENCE". */
__attribute__((cold, format(printf, 5, 6))) static enum status row_fails(const struct environment_rows *rows,
                                                                         uint32_t row, enum status status,
                                                                         struct error *error,
                                                                         const char *format, ...)
{
    const uint32_t agents = rows->spec->agents;
    char sentence[256], agent[32] = "";
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    if (agents > 1)
        snprintf(agent, sizeof agent, ", agent %" PRIu32, row % agents);
    return error_set(error, status, "environment %" PRIu32 "%s: %s", rows->first + row / agents, agent,
                     sentence);
}

typedef enum status row_check(const struct environment_rows *rows, uint32_t row, struct error *error);

/* Runs `check` for every row of the listed environments. */
static inline enum status check_each(const struct environment_rows *rows, row_check *check, uint32_t n,
                                     const uint32_t *which, struct error *error)
{
    const uint32_t agents = rows->spec->agents;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = environment_rows_at(which, i) * agents, end = row + agents;
             row < end && status == STATUS_OK; row++)
            status = check(rows, row, error);
    return status;
}

/* ---- actions ---- */

/* Whether `rows` actions of one element are among its choices. */
static bool column_is_good(const struct environment_space *space, const int32_t *action, uint32_t rows)
{
    const uint32_t choices = space->choices[0];
    uint32_t bad = 0;
    for (uint32_t row = 0; row < rows; row++)
        bad += (uint32_t)action[row] >= choices;
    return bad == 0;
}

static enum status check_choices(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const struct environment_space *space = &rows->spec->action;
    const size_t elements = rows->action_elements;
    const int32_t *action = (const int32_t *)rows->buffers->action + row * elements;
    for (size_t i = 0; i < elements; i++)
        if ((uint32_t)action[i] >= space->choices[i])
            return row_fails(rows, row, STATUS_INVALID, error,
                             "element %zu of its action is %" PRId32 ": expected 0..%" PRIu32, i, action[i],
                             space->choices[i] - 1);
    return STATUS_OK;
}

static enum status check_numbers(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const struct environment_space *space = &rows->spec->action;
    const size_t elements = rows->action_elements;
    const float *action = (const float *)rows->buffers->action + row * elements;
    for (size_t i = 0; i < elements; i++)
        if (!(action[i] >= (float)space->low[i] && action[i] <= (float)space->high[i]))
            return row_fails(rows, row, STATUS_INVALID, error,
                             "element %zu of its action is %.9g: expected %.9g..%.9g", i, (double)action[i],
                             space->low[i], space->high[i]);
    return STATUS_OK;
}

enum status environment_rows_check_actions(const struct environment_rows *rows, uint32_t n,
                                           const uint32_t *which, struct error *error)
{
    const struct environment_space *space = &rows->spec->action;
    if (space->choices == NULL)
        return check_each(rows, check_numbers, n, which, error);
    if (which == NULL && rows->action_elements == 1 &&
        column_is_good(space, rows->buffers->action, n * rows->spec->agents))
        return STATUS_OK;
    return check_each(rows, check_choices, n, which, error);
}

/* ---- flags ---- */

static enum status check_row_flags(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const unsigned flags = rows->buffers->flags[row];
    const unsigned ended = flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED);
    if ((flags & ~(unsigned)ENVIRONMENT_STEP_FLAGS) != 0)
        return row_fails(rows, row, STATUS_CORRUPT, error,
                         "its flags are %#x, which has bits without a meaning", flags);
    if ((flags & ENVIRONMENT_RESTARTED) != 0 && ended == 0)
        return row_fails(rows, row, STATUS_CORRUPT, error,
                         "its flags say RESTARTED, and neither TERMINATED nor TRUNCATED");
    if ((flags & ENVIRONMENT_ABSENT) != 0 && ended != 0)
        return row_fails(rows, row, STATUS_CORRUPT, error, "its flags say ABSENT, and an end");
    return STATUS_OK;
}

enum status environment_rows_check_flags(const struct environment_rows *rows, uint32_t n,
                                         const uint32_t *which, struct error *error)
{
    const uint32_t agents = rows->spec->agents;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++) {
        const uint32_t first = environment_rows_at(which, i) * agents;
        unsigned common = ENVIRONMENT_ABSENT;
        for (uint32_t row = first; row < first + agents && status == STATUS_OK; row++) {
            status = check_row_flags(rows, row, error);
            common &= rows->buffers->flags[row];
        }
        if (status == STATUS_OK && common != 0)
            status = row_fails(rows, first, STATUS_CORRUPT, error,
                               "no agent is present: expected an end in the step before");
    }
    return status;
}

/* ---- rewards and metrics ---- */

/* `of` is "observation"; the values are those of `row`. */
static enum status check_finite(const struct environment_rows *rows, uint32_t row, const char *of,
                                const float *values, size_t count, struct error *error)
{
    if (environment_floats_are_finite(values, count))
        return STATUS_OK;
    size_t i = 0;
    while (isfinite(values[i]))
        i++;
    return row_fails(rows, row, STATUS_CORRUPT, error,
                     "element %zu of its %s is %g: expected a finite number", i, of, (double)values[i]);
}

enum status environment_row_check_step(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const struct environment_buffers *buffers = rows->buffers;
    const size_t metrics = rows->spec->metric_count;
    const enum status status = check_finite(rows, row, "reward", &buffers->reward[row], 1, error);
    if (status != STATUS_OK || metrics == 0 ||
        (buffers->flags[row] & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) == 0)
        return status;
    return check_finite(rows, row, "metrics", buffers->metrics + row * metrics, metrics, error);
}

enum status environment_rows_check_step(const struct environment_rows *rows, uint32_t n,
                                        const uint32_t *which, struct error *error)
{
    if (which == NULL && rows->spec->metric_count == 0 &&
        environment_floats_are_finite(rows->buffers->reward, (size_t)n * rows->spec->agents))
        return STATUS_OK;
    return check_each(rows, environment_row_check_step, n, which, error);
}

/* ---- observations and masks ---- */

/* Names the mask's first byte that is neither 0 nor 1. */
static enum status explain_mask(const struct environment_rows *rows, uint32_t row, size_t element,
                                const uint8_t *mask, struct error *error)
{
    uint32_t choice = 0;
    while (mask[choice] <= 1)
        choice++;
    return row_fails(rows, row, STATUS_CORRUPT, error,
                     "its mask is %u at choice %" PRIu32 " of element %zu: expected 0 or 1", mask[choice],
                     choice, element);
}

static enum status check_mask(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const struct environment_space *action = &rows->spec->action;
    const uint8_t *mask = rows->buffers->mask + row * rows->choices;
    for (size_t element = 0; element < rows->action_elements; mask += action->choices[element++]) {
        unsigned allowed = 0, all = 0;
        for (uint32_t choice = 0; choice < action->choices[element]; choice++) {
            allowed += mask[choice];
            all |= mask[choice];
        }
        if (all > 1)
            return explain_mask(rows, row, element, mask, error);
        if (allowed == 0)
            return row_fails(rows, row, STATUS_CORRUPT, error, "its mask allows no choice of element %zu",
                             element);
    }
    return STATUS_OK;
}

enum status environment_row_check_state(const struct environment_rows *rows, uint32_t row,
                                        struct error *error)
{
    const float *observation = (const float *)rows->buffers->observation + row * rows->elements;
    enum status status = STATUS_OK;
    if (rows->spec->observation.dtype == ENVIRONMENT_F32)
        status = check_finite(rows, row, "observation", observation, rows->elements, error);
    return status == STATUS_OK && rows->choices > 0 ? check_mask(rows, row, error) : status;
}

enum status environment_rows_check_state(const struct environment_rows *rows, uint32_t n,
                                         const uint32_t *which, struct error *error)
{
    if (which == NULL && rows->choices == 0 &&
        (rows->spec->observation.dtype != ENVIRONMENT_F32 ||
         environment_floats_are_finite(rows->buffers->observation,
                                       (size_t)n * rows->spec->agents * rows->elements)))
        return STATUS_OK;
    return check_each(rows, environment_row_check_state, n, which, error);
}

enum status environment_row_check_bounds(const struct environment_rows *rows, uint32_t row,
                                         struct error *error)
{
    const struct environment_space *space = &rows->spec->observation;
    const uint8_t *bytes = (const uint8_t *)rows->buffers->observation + row * rows->elements;
    const float *numbers = (const float *)rows->buffers->observation + row * rows->elements;
    for (size_t i = 0; (space->low != NULL || space->high != NULL) && i < rows->elements; i++) {
        const double value = space->dtype == ENVIRONMENT_U8 ? bytes[i] : (double)numbers[i];
        const double low = space->low != NULL ? (double)(float)space->low[i] : -INFINITY;
        const double high = space->high != NULL ? (double)(float)space->high[i] : INFINITY;
        if (value < low || value > high)
            return row_fails(rows, row, STATUS_CORRUPT, error,
                             "element %zu of its observation is %.9g: expected %.9g..%.9g", i, value, low,
                             high);
    }
    return STATUS_OK;
}
