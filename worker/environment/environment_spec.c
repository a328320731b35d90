/* Checks a plug-in's specs against environment.h, and rows against their spec, one function for each part. A
 * check of many rows first looks at all of them at once; only what is wrong is looked for row by row, to be
 * named. */
#include "worker/environment/environment_spec.h"

#include "kernels/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- sizes ---- */

size_t environment_space_elements(const struct environment_space *space)
{
    size_t elements = 1;
    for (uint32_t i = 0; i < space->rank; i++)
        elements *= space->shape[i];
    return elements;
}

size_t environment_space_bytes(const struct environment_space *space)
{
    return environment_space_elements(space) * (space->dtype == ENVIRONMENT_U8 ? 1 : 4);
}

const char *const environment_dtype_names[] = {
    [ENVIRONMENT_U8] = "uint8", [ENVIRONMENT_I32] = "int32", [ENVIRONMENT_F32] = "float32"};

size_t environment_space_show(char *out, size_t size, const struct environment_space *space)
{
    size_t length = (size_t)snprintf(out, size, "%s (", environment_dtype_names[space->dtype]);
    for (uint32_t i = 0; i < space->rank; i++)
        length += (size_t)snprintf(out + length, size - length, "%s%u", i > 0 ? ", " : "", space->shape[i]);
    return length + (size_t)snprintf(out + length, size - length, ")");
}

/* The next multiple of 4. */
static size_t in_words(size_t bytes)
{
    return (bytes + 3) / 4 * 4;
}

size_t environment_part_offset(const struct environment_part *parts, uint32_t part)
{
    size_t offset = 0;
    for (uint32_t i = 0; i < part; i++)
        offset += in_words(environment_space_bytes(&parts[i].space));
    return offset;
}

size_t environment_part_floats(const struct environment_part *parts, uint32_t part_count, const void *row,
                               float *out)
{
    size_t count = 0, offset = 0;
    for (uint32_t i = 0; i < part_count; i++) {
        const size_t bytes = environment_space_bytes(&parts[i].space);
        if (!environment_part_is_image(&parts[i])) {
            if (out != NULL)
                memcpy(out + count, (const char *)row + offset, bytes);
            count += bytes / sizeof *out;
        }
        offset += in_words(bytes);
    }
    return count;
}

size_t environment_choices(const struct environment_spec *spec)
{
    size_t sum = 0;
    if (spec->action.choices != NULL)
        for (size_t i = 0; i < environment_space_elements(&spec->action); i++)
            sum += spec->action.choices[i];
    return sum;
}

/* How many of them are not finite: those whose exponent is all ones. */
static uint32_t count_not_finite(const char *floats, size_t count)
{
    const uint32_t ones = 0x7f800000;
    uint32_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, floats + i * sizeof bits, sizeof bits);
        sum += (bits & ones) == ones;
    }
    return sum;
}

bool environment_floats_are_finite(const void *data, size_t count)
{
    enum { BLOCK = 4096 }; /* so that the sum fits, and a bad number is found soon */
    const char *floats = data;
    uint32_t bad = 0;
    for (size_t i = 0; i < count && bad == 0; i += BLOCK)
        bad = count_not_finite(floats + i * sizeof(float), count - i < BLOCK ? count - i : BLOCK);
    return bad == 0;
}

bool environment_observes_floats(const struct environment_spec *spec)
{
    return spec->observation.dtype == ENVIRONMENT_F32 ||
           environment_part_floats(spec->parts, spec->part_count, NULL, NULL) > 0;
}

/* The first part of a row with a number that is not finite, and where it lies. NULL: there is none. */
static const struct environment_part *find_bad_part(const struct environment_spec *spec, const char *row,
                                                    const char **values)
{
    for (uint32_t i = 0; i < spec->part_count; i++) {
        const struct environment_part *part = &spec->parts[i];
        const size_t bytes = environment_space_bytes(&part->space);
        *values = row;
        if (!environment_part_is_image(part) && !environment_floats_are_finite(row, bytes / sizeof(float)))
            return part;
        row += in_words(bytes);
    }
    return NULL;
}

bool environment_observations_are_finite(const struct environment_spec *spec, const void *rows, size_t count)
{
    const size_t bytes = environment_space_bytes(&spec->observation);
    const char *values;
    if (spec->observation.dtype == ENVIRONMENT_F32)
        return environment_floats_are_finite(rows, count * bytes / sizeof(float));
    for (size_t i = 0; spec->part_count > 0 && i < count; i++)
        if (find_bad_part(spec, (const char *)rows + i * bytes, &values) != NULL)
            return false;
    return true;
}

bool environment_is_over(const uint8_t *flags, uint32_t agents)
{
    bool over = true;
    for (uint32_t agent = 0; agent < agents; agent++) {
        if (flags[agent] & ENVIRONMENT_FAILED)
            return true;
        over = over && (environment_flags_end(flags[agent]) || flags[agent] & ENVIRONMENT_ABSENT);
    }
    return over;
}

/* ---- the spec ---- */

static enum status check_shape(const struct environment_space *space, const char *of, uint32_t rank_max,
                               struct error *error)
{
    if (space->rank > rank_max)
        return error_set(error, STATUS_INVALID, "%s.rank is %u: expected at most %u", of, space->rank,
                         rank_max);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < space->rank; i++) {
        if (space->shape[i] == 0)
            return error_set(error, STATUS_INVALID, "%s.shape[%u] is 0: expected at least 1", of, i);
        elements *= space->shape[i];
        if (elements > ENVIRONMENT_ROW_BYTES_MAX / 4)
            return error_set(error, STATUS_INVALID, "%s has more than %d elements", of,
                             ENVIRONMENT_ROW_BYTES_MAX / 4);
    }
    return STATUS_OK;
}

/* Bounds of each element; `finite`: neither may be infinite, and they may not be equal. */
static enum status check_bounds(const struct environment_space *space, const char *of, bool finite,
                                struct error *error)
{
    const size_t elements = environment_space_elements(space);
    for (size_t i = 0; i < elements; i++) {
        const double low = space->low != NULL ? space->low[i] : -INFINITY;
        const double high = space->high != NULL ? space->high[i] : INFINITY;
        if (finite && !(isfinite(low) && isfinite(high)))
            return error_set(error, STATUS_INVALID,
                             "%s has the bounds low[%zu] = %g and high[%zu] = %g: expected finite ones", of,
                             i, low, i, high);
        if (!(finite ? low < high : low <= high))
            return error_set(error, STATUS_INVALID,
                             "%s has the bounds low[%zu] = %g and high[%zu] = %g: expected low < high", of, i,
                             low, i, high);
    }
    return STATUS_OK;
}

/* `of`: "observation", or the name of a part. */
static enum status check_seen(const struct environment_space *space, const char *of, struct error *error)
{
    if (space->dtype != ENVIRONMENT_F32 && space->dtype != ENVIRONMENT_U8)
        return error_set(error, STATUS_INVALID, "%s.dtype is %u: expected ENVIRONMENT_F32 or ENVIRONMENT_U8",
                         of, space->dtype);
    if (space->choices != NULL)
        return error_set(error, STATUS_INVALID, "%s.choices is set: expected NULL", of);
    enum status status = check_shape(space, of, 3, error);
    return status == STATUS_OK ? check_bounds(space, of, false, error) : status;
}

/* Name i of a list whose names lie `stride` bytes apart: a short text, and none of those before. */
static enum status check_name(const char *const *names, size_t stride, const char *of, uint32_t i,
                              struct error *error)
{
    const char *name = *(const char *const *)((const char *)names + i * stride);
    if (name == NULL || name[0] == '\0')
        return error_set(error, STATUS_INVALID, "%s[%u] has no name", of, i);
    if (strnlen(name, ENVIRONMENT_NAME_MAX + 1) > ENVIRONMENT_NAME_MAX)
        return error_set(error, STATUS_INVALID, "%s[%u] has a name of more than %d bytes", of, i,
                         ENVIRONMENT_NAME_MAX);
    size_t left = strlen(name), character = 1;
    for (const char *at = name; left > 0 && character > 0; at += character, left -= character)
        character = text_character(at, left);
    if (character == 0)
        return error_set(error, STATUS_INVALID, "%s[%u] has a name that is not UTF-8", of, i);
    for (uint32_t j = 0; j < i; j++)
        if (strcmp(name, *(const char *const *)((const char *)names + j * stride)) == 0)
            return error_set(error, STATUS_INVALID, "%s[%u] has the name of %s[%u]", of, i, of, j);
    return STATUS_OK;
}

static enum status check_part(const struct environment_spec *spec, uint32_t i, struct error *error)
{
    const struct environment_space *space = &spec->parts[i].space;
    char of[16 + ENVIRONMENT_NAME_MAX];
    enum status status = check_name(&spec->parts[0].name, sizeof spec->parts[0], "parts", i, error);
    if (status != STATUS_OK)
        return status;
    snprintf(of, sizeof of, "part %s", spec->parts[i].name);
    status = check_seen(space, of, error);
    if (status == STATUS_OK && space->dtype == ENVIRONMENT_U8 && space->rank != 3)
        status = error_set(error, STATUS_INVALID,
                           "%s.rank is %u: expected 3 of ENVIRONMENT_U8, height, width and channels", of,
                           space->rank);
    return status;
}

static enum status check_parts(const struct environment_spec *spec, struct error *error)
{
    const struct environment_space *whole = &spec->observation;
    enum status status = STATUS_OK;
    uint32_t images = 0;
    if (spec->part_count > ENVIRONMENT_PARTS_MAX)
        return error_set(error, STATUS_INVALID, "part_count is %u: expected at most %d", spec->part_count,
                         ENVIRONMENT_PARTS_MAX);
    if (spec->part_count > 0 && spec->parts == NULL)
        return error_set(error, STATUS_INVALID, "parts is NULL: expected %u parts", spec->part_count);
    for (uint32_t i = 0; i < spec->part_count && status == STATUS_OK; i++) {
        status = check_part(spec, i, error);
        images += spec->parts[i].space.dtype == ENVIRONMENT_U8;
    }
    if (status != STATUS_OK || spec->part_count == 0)
        return status;
    const size_t bytes = environment_part_offset(spec->parts, spec->part_count);
    const struct environment_space expected = {
        .dtype = images > 0 ? ENVIRONMENT_U8 : ENVIRONMENT_F32,
        .rank = 1,
        .shape = {(uint32_t)(images > 0 ? bytes : bytes / sizeof(float))}};
    char is[64], should[64];
    environment_space_show(is, sizeof is, whole);
    environment_space_show(should, sizeof should, &expected);
    if (strcmp(is, should) != 0)
        return error_set(error, STATUS_INVALID, "observation is %s: expected %s, which its parts take", is,
                         should);
    if (whole->low != NULL || whole->high != NULL)
        return error_set(error, STATUS_INVALID, "observation has bounds: expected those of its parts alone");
    return STATUS_OK;
}

static enum status check_action(const struct environment_space *space, struct error *error)
{
    const bool choices = space->choices != NULL;
    if (space->dtype == ENVIRONMENT_I32 && !choices)
        return error_set(error, STATUS_INVALID,
                         "action.choices is NULL: an action of ENVIRONMENT_I32 must have choices");
    if (space->dtype != (choices ? ENVIRONMENT_I32 : ENVIRONMENT_F32))
        return error_set(error, STATUS_INVALID,
                         "action.dtype is %u: expected ENVIRONMENT_I32 with choices, or ENVIRONMENT_F32",
                         space->dtype);
    enum status status = check_shape(space, "action", 1, error);
    if (status != STATUS_OK || !choices)
        return status == STATUS_OK ? check_bounds(space, "action", true, error) : status;
    for (size_t i = 0; i < environment_space_elements(space); i++)
        if (space->choices[i] == 0 || space->choices[i] > ENVIRONMENT_CHOICES_MAX)
            return error_set(error, STATUS_INVALID, "action.choices[%zu] is %u: expected 1..%d", i,
                             space->choices[i], ENVIRONMENT_CHOICES_MAX);
    return STATUS_OK;
}

/* The bytes of a spec of version 1, which ends before the parts. */
enum { BYTES_OF_VERSION_1 = offsetof(struct environment_spec, part_count) };

enum status environment_spec_take(struct environment_spec *out, const struct environment_spec *given,
                                  struct error *error)
{
    *out = (struct environment_spec){.size = given->size};
    if (given->size == BYTES_OF_VERSION_1 || given->size == sizeof *given) {
        memcpy(out, given, given->size);
        out->size = sizeof *out;
    }
    return environment_spec_check(out, error);
}

enum status environment_spec_check(const struct environment_spec *spec, struct error *error)
{
    if (spec->size != sizeof *spec)
        return error_set(error, STATUS_INVALID,
                         "spec.size is %u: expected sizeof(struct environment_spec), %zu", spec->size,
                         sizeof *spec);
    if ((spec->limits & ~(uint32_t)(ENVIRONMENT_SINGLETON | ENVIRONMENT_CANNOT_SEED)) != 0)
        return error_set(error, STATUS_INVALID, "limits is %#x, which has bits without a meaning",
                         spec->limits);
    if (spec->agents == 0 || spec->agents > ENVIRONMENT_AGENTS_MAX)
        return error_set(error, STATUS_INVALID, "agents is %u: expected 1..%d", spec->agents,
                         ENVIRONMENT_AGENTS_MAX);
    if (spec->has_mask > 1 || (spec->has_mask == 1 && spec->action.choices == NULL))
        return error_set(error, STATUS_INVALID, "has_mask is %u: expected 0, or 1 of an action with choices",
                         spec->has_mask);
    enum status status = check_seen(&spec->observation, "observation", error);
    if (status == STATUS_OK)
        status = check_parts(spec, error);
    if (status == STATUS_OK)
        status = check_action(&spec->action, error);
    if (status == STATUS_OK && spec->metric_count > ENVIRONMENT_METRICS_MAX)
        return error_set(error, STATUS_INVALID, "metric_count is %u: expected at most %d", spec->metric_count,
                         ENVIRONMENT_METRICS_MAX);
    if (status == STATUS_OK && spec->metric_count > 0 && spec->metrics == NULL)
        return error_set(error, STATUS_INVALID, "metrics is NULL: expected %u names", spec->metric_count);
    for (uint32_t i = 0; i < spec->metric_count && status == STATUS_OK; i++)
        status = check_name(spec->metrics, sizeof spec->metrics[0], "metrics", i, error);
    return status;
}

const char *environment_loss(bool can_seed, bool can_save)
{
    if (!can_save && !can_seed)
        return "saves no states (functions save and load) and cannot be seeded (CANNOT_SEED; in Python, "
               "nondeterministic): after a death or a resume it begins new episodes, with other numbers";
    if (!can_save)
        return "saves no states (functions save and load): after a death or a resume it begins new episodes";
    if (!can_seed)
        return "cannot be seeded (CANNOT_SEED; in Python, nondeterministic): after a death or a resume its "
               "numbers are other ones";
    return NULL;
}

/* ---- rows ---- */

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

static enum status check_row_choices(const struct environment_rows *rows, uint32_t row, struct error *error)
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

static enum status check_row_numbers(const struct environment_rows *rows, uint32_t row, struct error *error)
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
        return check_each(rows, check_row_numbers, n, which, error);
    if (which == NULL && rows->action_elements == 1 &&
        column_is_good(space, rows->buffers->action, n * rows->spec->agents))
        return STATUS_OK;
    return check_each(rows, check_row_choices, n, which, error);
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
    if ((flags & ENVIRONMENT_ABSENT) != 0 && (flags & ENVIRONMENT_LIFE_LOST) != 0)
        return row_fails(rows, row, STATUS_CORRUPT, error, "its flags say ABSENT, and LIFE_LOST");
    return STATUS_OK;
}

enum status environment_rows_check_flags(const struct environment_rows *rows, uint32_t n,
                                         const uint32_t *which, struct error *error)
{
    const uint32_t agents = rows->spec->agents;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++) {
        const uint32_t first = environment_rows_at(which, i) * agents;
        unsigned common = ENVIRONMENT_ABSENT, restarted = 0, present = 0;
        for (uint32_t row = first; row < first + agents && status == STATUS_OK; row++) {
            const uint8_t flags = rows->buffers->flags[row];
            status = check_row_flags(rows, row, error);
            common &= flags;
            restarted += (flags & ENVIRONMENT_RESTARTED) != 0;
            present += (flags & ENVIRONMENT_ABSENT) == 0;
        }
        if (status == STATUS_OK && common != 0)
            status = row_fails(rows, first, STATUS_CORRUPT, error,
                               "no agent is present: expected an end in the step before");
        if (status == STATUS_OK && restarted != 0 && restarted != present)
            status = row_fails(rows, first, STATUS_CORRUPT, error,
                               "%u of %u agents that are present say RESTARTED: expected all or none",
                               restarted, present);
    }
    return status;
}

/* ---- rewards and metrics ---- */

/* `of` is "observation", a part's name, "reward" or a metric's; the values are those of `row`. */
static enum status check_row_finite(const struct environment_rows *rows, uint32_t row, const char *of,
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

static enum status check_row_step(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const struct environment_buffers *buffers = rows->buffers;
    const size_t metrics = rows->spec->metric_count;
    const enum status status = check_row_finite(rows, row, "reward", &buffers->reward[row], 1, error);
    if (status != STATUS_OK || metrics == 0 ||
        (buffers->flags[row] & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) == 0)
        return status;
    return check_row_finite(rows, row, "metrics", buffers->metrics + row * metrics, metrics, error);
}

enum status environment_rows_check_step(const struct environment_rows *rows, uint32_t n,
                                        const uint32_t *which, struct error *error)
{
    if (which == NULL && rows->spec->metric_count == 0 &&
        environment_floats_are_finite(rows->buffers->reward, (size_t)n * rows->spec->agents))
        return STATUS_OK;
    return check_each(rows, check_row_step, n, which, error);
}

/* ---- observations and masks ---- */

static enum status check_row_mask(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const struct environment_space *action = &rows->spec->action;
    const uint8_t *mask = rows->buffers->mask + row * rows->choices;
    for (size_t element = 0; element < rows->action_elements; mask += action->choices[element++]) {
        unsigned allowed = 0, all = 0;
        for (uint32_t choice = 0; choice < action->choices[element]; choice++) {
            allowed += mask[choice];
            all |= mask[choice];
        }
        for (uint32_t choice = 0; all > 1; choice++)
            if (mask[choice] > 1)
                return row_fails(rows, row, STATUS_CORRUPT, error,
                                 "its mask is %u at choice %" PRIu32 " of element %zu: expected 0 or 1",
                                 mask[choice], choice, element);
        if (allowed == 0)
            return row_fails(rows, row, STATUS_CORRUPT, error, "its mask allows no choice of element %zu",
                             element);
    }
    return STATUS_OK;
}

/* The floats in a row of bytes. */
static enum status check_row_parts(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const char *observation = (const char *)rows->buffers->observation + row * rows->elements, *values;
    const struct environment_part *part = find_bad_part(rows->spec, observation, &values);
    return part == NULL ? STATUS_OK
                        : check_row_finite(rows, row, part->name, (const void *)values,
                                           environment_space_elements(&part->space), error);
}

static enum status check_row_state(const struct environment_rows *rows, uint32_t row, struct error *error)
{
    const float *observation = (const float *)rows->buffers->observation + row * rows->elements;
    enum status status = rows->spec->observation.dtype == ENVIRONMENT_F32
                             ? check_row_finite(rows, row, "observation", observation, rows->elements, error)
                             : check_row_parts(rows, row, error);
    return status == STATUS_OK && rows->choices > 0 ? check_row_mask(rows, row, error) : status;
}

enum status environment_rows_check_state(const struct environment_rows *rows, uint32_t n,
                                         const uint32_t *which, struct error *error)
{
    if (which == NULL && rows->choices == 0 &&
        environment_observations_are_finite(rows->spec, rows->buffers->observation,
                                            (size_t)n * rows->spec->agents))
        return STATUS_OK;
    return check_each(rows, check_row_state, n, which, error);
}

/* The values of an observation, or of its part `of`. */
static enum status check_values(const struct environment_rows *rows, uint32_t row, const char *of,
                                const struct environment_space *space, const void *values,
                                struct error *error)
{
    const uint8_t *bytes = values;
    const float *numbers = values;
    const size_t elements = environment_space_elements(space);
    for (size_t i = 0; (space->low != NULL || space->high != NULL) && i < elements; i++) {
        const double value = space->dtype == ENVIRONMENT_U8 ? bytes[i] : (double)numbers[i];
        const double low = space->low != NULL ? (double)(float)space->low[i] : -INFINITY;
        const double high = space->high != NULL ? (double)(float)space->high[i] : INFINITY;
        if (value < low || value > high)
            return row_fails(rows, row, STATUS_CORRUPT, error,
                             "element %zu of its %s is %.9g: expected %.9g..%.9g", i, of, value, low, high);
    }
    return STATUS_OK;
}

enum status environment_row_check(const struct environment_rows *rows, uint32_t row, bool stepped,
                                  struct error *error)
{
    const struct environment_spec *spec = rows->spec;
    const char *observation =
        (const char *)rows->buffers->observation + row * environment_space_bytes(&spec->observation);
    enum status status = stepped ? check_row_step(rows, row, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = check_row_state(rows, row, error);
    if (status == STATUS_OK && spec->part_count == 0)
        status = check_values(rows, row, "observation", &spec->observation, observation, error);
    for (uint32_t i = 0; i < spec->part_count && status == STATUS_OK; i++) {
        status = check_values(rows, row, spec->parts[i].name, &spec->parts[i].space, observation, error);
        observation += in_words(environment_space_bytes(&spec->parts[i].space));
    }
    return status;
}

/* ---- two specs ---- */

/* Of actions; NULL: they are choices. */
static enum status compare_bounds(const char *side, size_t elements, const double *was, const double *is,
                                  struct error *error)
{
    for (size_t i = 0; i < elements && was != NULL && is != NULL; i++)
        if (was[i] != is[i])
            return error_set(error, STATUS_INVALID, "its action's %s bound %zu is %.9g: it was %.9g", side, i,
                             is[i], was[i]);
    return STATUS_OK;
}

static enum status compare_spaces(const char *what, const struct environment_space *was,
                                  const struct environment_space *is, struct error *error)
{
    char old[64], now[64];
    const size_t elements = environment_space_elements(is);
    environment_space_show(old, sizeof old, was);
    environment_space_show(now, sizeof now, is);
    if (strcmp(old, now) != 0)
        return error_set(error, STATUS_INVALID, "its %s is %s: it was %s", what, now, old);
    for (size_t i = 0; is->choices != NULL && i < elements; i++)
        if (is->choices[i] != was->choices[i])
            return error_set(error, STATUS_INVALID, "its %s's element %zu has %u choices: it had %u", what, i,
                             is->choices[i], was->choices[i]);
    return STATUS_OK;
}

static enum status compare_parts(const struct environment_spec *was, const struct environment_spec *is,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < was->part_count && i < is->part_count && status == STATUS_OK; i++) {
        const char *old = was->parts[i].name, *now = is->parts[i].name;
        char what[32 + ENVIRONMENT_NAME_MAX];
        snprintf(what, sizeof what, "observation's part %s", now);
        status =
            strcmp(old, now) == 0
                ? compare_spaces(what, &was->parts[i].space, &is->parts[i].space, error)
                : error_set(error, STATUS_INVALID, "its observation's part %u is %s: it was %s", i, now, old);
    }
    /* Checkpoints of older versions do not know parts. */
    if (status == STATUS_OK && was->part_count > 0 && was->part_count != is->part_count)
        status = error_set(error, STATUS_INVALID, "its observation has %u parts: it had %u", is->part_count,
                           was->part_count);
    return status;
}

enum status environment_spec_compare(const struct environment_spec *was, const struct environment_spec *is,
                                     struct error *error)
{
    if (was->agents != is->agents)
        return error_set(error, STATUS_INVALID, "it has %u agents: it had %u", is->agents, was->agents);
    if (was->has_mask != is->has_mask)
        return error_set(error, STATUS_INVALID, "it has %saction masks: it had %s", is->has_mask ? "" : "no ",
                         is->has_mask ? "none" : "some");
    enum status status = compare_parts(was, is, error);
    if (status == STATUS_OK)
        status = compare_spaces("observation", &was->observation, &is->observation, error);
    if (status == STATUS_OK)
        status = compare_spaces("action", &was->action, &is->action, error);
    if (status != STATUS_OK)
        return status;
    const size_t elements = environment_space_elements(&is->action);
    status = compare_bounds("lower", elements, was->action.low, is->action.low, error);
    return status == STATUS_OK ? compare_bounds("upper", elements, was->action.high, is->action.high, error)
                               : status;
}
