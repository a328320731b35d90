/* What may go into a plug-in's step, and what must come back. Each check first looks at all rows at once;
 * only what is wrong is looked for row by row, to be named. */
#include "worker/environment/environments_internal.h"

#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status environments_fail(const struct environments *environments, uint32_t row, enum status status,
                              struct error *error, const char *format, ...)
{
    const struct environments_config *config = &environments->config;
    const uint32_t agents = environments->spec->agents;
    char sentence[256], of[32] = "";
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    if (agents > 1)
        snprintf(of, sizeof of, ", agent %" PRIu32, row % agents);
    return error_set(error, status, "%.100s: environment %" PRIu32 "%s: %s", config->name,
                     config->first + row / agents, of, sentence);
}

/* The first row of environment number i of the list. */
static uint32_t row_at(const struct environments *environments, const uint32_t *which, uint32_t i)
{
    return environments_at(which, i) * environments->spec->agents;
}

/* ---- actions ---- */

static bool choices_are_good(const struct environment_space *space, const int32_t *action, size_t elements)
{
    bool good = true;
    for (size_t i = 0; i < elements; i++)
        good &= (uint32_t)action[i] < space->choices[i];
    return good;
}

/* The same for `rows` actions of one element. */
static bool column_is_good(const struct environment_space *space, const int32_t *action, uint32_t rows)
{
    const uint32_t choices = space->choices[0];
    uint32_t bad = 0;
    for (uint32_t row = 0; row < rows; row++)
        bad += (uint32_t)action[row] >= choices;
    return bad == 0;
}

static bool numbers_are_good(const struct environment_space *space, const float *action, size_t elements)
{
    bool good = true;
    for (size_t i = 0; i < elements; i++)
        good &= action[i] >= (float)space->low[i] && action[i] <= (float)space->high[i];
    return good;
}

static enum status explain_action(const struct environments *e, uint32_t row, struct error *error)
{
    const struct environment_space *space = &e->spec->action;
    const size_t elements = environment_space_elements(space);
    const int32_t *choice = (const int32_t *)e->action + row * elements;
    const float *number = (const float *)e->action + row * elements;
    for (size_t i = 0; i < elements; i++) {
        if (space->choices != NULL && (uint32_t)choice[i] >= space->choices[i])
            return environments_fail(e, row, STATUS_INVALID, error,
                                     "element %zu of its action is %" PRId32 ": expected 0..%" PRIu32, i,
                                     choice[i], space->choices[i] - 1);
        if (space->choices == NULL &&
            !(number[i] >= (float)space->low[i] && number[i] <= (float)space->high[i]))
            return environments_fail(e, row, STATUS_INVALID, error,
                                     "element %zu of its action is %.9g: expected %.9g..%.9g", i,
                                     (double)number[i], space->low[i], space->high[i]);
    }
    return STATUS_OK;
}

enum status environments_check_actions(const struct environments *e, uint32_t n, const uint32_t *which,
                                       struct error *error)
{
    const struct environment_space *space = &e->spec->action;
    const uint32_t agents = e->spec->agents;
    const size_t elements = environment_space_elements(space);
    if (which == NULL && space->choices != NULL && elements == 1 &&
        column_is_good(space, e->action, n * agents))
        return STATUS_OK;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = row_at(e, which, i), end = row + agents; row < end; row++)
            if (space->choices != NULL
                    ? !choices_are_good(space, (const int32_t *)e->action + row * elements, elements)
                    : !numbers_are_good(space, (const float *)e->action + row * elements, elements))
                return explain_action(e, row, error);
    return STATUS_OK;
}

/* ---- flags ---- */

static enum status check_row_flags(const struct environments *e, uint32_t row, struct error *error)
{
    const unsigned flags = e->buffers.flags[row];
    const unsigned ended = flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED);
    if ((flags & ~(unsigned)ENVIRONMENT_STEP_FLAGS) != 0)
        return environments_fail(e, row, STATUS_CORRUPT, error,
                                 "its flags are %#x, which has bits without a meaning", flags);
    if ((flags & ENVIRONMENT_RESTARTED) != 0 && ended == 0)
        return environments_fail(e, row, STATUS_CORRUPT, error,
                                 "its flags say RESTARTED, and neither TERMINATED nor TRUNCATED");
    if ((flags & ENVIRONMENT_ABSENT) != 0 && ended != 0)
        return environments_fail(e, row, STATUS_CORRUPT, error, "its flags say ABSENT, and an end");
    return STATUS_OK;
}

static enum status check_environment_flags(const struct environments *e, uint32_t index, struct error *error)
{
    const uint32_t agents = e->spec->agents, first = index * agents;
    unsigned common = ENVIRONMENT_ABSENT;
    for (uint32_t row = first; row < first + agents; row++) {
        const enum status status = check_row_flags(e, row, error);
        if (status != STATUS_OK)
            return status;
        common &= e->buffers.flags[row];
    }
    return common == 0 ? STATUS_OK
                       : environments_fail(e, first, STATUS_CORRUPT, error,
                                           "no agent is present: expected an end in the step before");
}

enum status environments_check_flags(const struct environments *e, uint32_t n, const uint32_t *which,
                                     struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++)
        status = check_environment_flags(e, environments_at(which, i), error);
    return status;
}

/* ---- numbers ---- */

/* `of` is "the observation"; the values are those of `row`. */
static enum status check_values(const struct environments *e, uint32_t row, const char *of,
                                const float *values, size_t count, struct error *error)
{
    if (environment_floats_are_finite(values, count))
        return STATUS_OK;
    size_t i = 0;
    while (isfinite(values[i]))
        i++;
    return environments_fail(e, row, STATUS_CORRUPT, error, "element %zu of its %s is %g", i, of,
                             (double)values[i]);
}

static enum status check_metrics(const struct environments *e, uint32_t row, struct error *error)
{
    const size_t count = e->spec->metric_count;
    if (count == 0 || (e->buffers.flags[row] & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) == 0)
        return STATUS_OK;
    return check_values(e, row, "metrics", e->buffers.metrics + row * count, count, error);
}

enum status environments_check_step(const struct environments *e, uint32_t n, const uint32_t *which,
                                    struct error *error)
{
    const uint32_t agents = e->spec->agents;
    enum status status = STATUS_OK;
    if (which == NULL && e->spec->metric_count == 0 &&
        environment_floats_are_finite(e->buffers.reward, (size_t)n * agents))
        return STATUS_OK;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = row_at(e, which, i), end = row + agents; row < end && status == STATUS_OK;
             row++) {
            status = check_values(e, row, "reward", &e->buffers.reward[row], 1, error);
            if (status == STATUS_OK)
                status = check_metrics(e, row, error);
        }
    return status;
}

/* ---- observations and masks ---- */

static enum status check_mask(const struct environments *e, uint32_t row, struct error *error)
{
    const struct environment_space *action = &e->spec->action;
    const uint8_t *mask = e->buffers.mask + row * e->choices;
    const size_t elements = environment_space_elements(action);
    for (size_t element = 0; element < elements; mask += action->choices[element++]) {
        unsigned allowed = 0, all = 0;
        for (uint32_t choice = 0; choice < action->choices[element]; choice++) {
            allowed += mask[choice];
            all |= mask[choice];
        }
        if (all > 1)
            return environments_fail(e, row, STATUS_CORRUPT, error,
                                     "its mask has a byte that is neither 0 nor 1");
        if (allowed == 0)
            return environments_fail(e, row, STATUS_CORRUPT, error,
                                     "its mask allows no choice of element %zu", element);
    }
    return STATUS_OK;
}

static enum status check_row_state(const struct environments *e, uint32_t row, struct error *error)
{
    const float *observation = (const float *)e->buffers.observation + row * e->elements;
    enum status status = STATUS_OK;
    if (e->spec->observation.dtype == ENVIRONMENT_F32)
        status = check_values(e, row, "observation", observation, e->elements, error);
    return status == STATUS_OK && e->choices > 0 ? check_mask(e, row, error) : status;
}

enum status environments_check_state(const struct environments *e, uint32_t n, const uint32_t *which,
                                     struct error *error)
{
    const uint32_t agents = e->spec->agents;
    enum status status = STATUS_OK;
    if (which == NULL && e->choices == 0 &&
        (e->spec->observation.dtype != ENVIRONMENT_F32 ||
         environment_floats_are_finite(e->buffers.observation, (size_t)n * agents * e->elements)))
        return STATUS_OK;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = row_at(e, which, i), end = row + agents; row < end && status == STATUS_OK; row++)
            status = check_row_state(e, row, error);
    return status;
}
