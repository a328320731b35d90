/* Checks a plug-in's table and its specs against environment.h, one function for each part. */
#include "worker/environment/environment_spec.h"

#include <math.h>
#include <string.h>

enum status environment_table_check(const struct environment_plugin *plugin, struct error *error)
{
    if (plugin == NULL)
        return error_set(error, STATUS_INVALID, "environment_plugin() returned NULL: expected its table");
    if (plugin->version != ENVIRONMENT_VERSION)
        return error_set(error, STATUS_INVALID,
                         "was built for version %u of environment.h: expected version %d", plugin->version,
                         ENVIRONMENT_VERSION);
    if (plugin->size != sizeof *plugin)
        return error_set(error, STATUS_INVALID,
                         "has a struct environment_plugin of size %u: expected size = %zu", plugin->size,
                         sizeof *plugin);
    if (plugin->names == NULL || plugin->names[0] == NULL)
        return error_set(error, STATUS_INVALID, "has no names: expected at least one environment");
    const char *missing = plugin->open == NULL    ? "open"
                          : plugin->close == NULL ? "close"
                          : plugin->reset == NULL ? "reset"
                          : plugin->step == NULL  ? "step"
                                                  : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "has no function %s", missing);
    if ((plugin->save == NULL) != (plugin->load == NULL))
        return error_set(error, STATUS_INVALID, "has save or load: expected both or none");
    return STATUS_OK;
}

bool environment_has_name(const struct environment_plugin *plugin, const char *name)
{
    for (const char *const *known = plugin->names; *known != NULL; known++)
        if (strcmp(*known, name) == 0)
            return true;
    return false;
}

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

static enum status check_observation(const struct environment_space *space, struct error *error)
{
    if (space->dtype != ENVIRONMENT_F32 && space->dtype != ENVIRONMENT_U8)
        return error_set(error, STATUS_INVALID,
                         "observation.dtype is %u: expected ENVIRONMENT_F32 or ENVIRONMENT_U8", space->dtype);
    if (space->choices != NULL)
        return error_set(error, STATUS_INVALID, "observation.choices is set: expected NULL");
    enum status status = check_shape(space, "observation", 3, error);
    return status == STATUS_OK ? check_bounds(space, "observation", false, error) : status;
}

static enum status check_choices(const struct environment_space *space, struct error *error)
{
    for (size_t i = 0; i < environment_space_elements(space); i++)
        if (space->choices[i] == 0 || space->choices[i] > ENVIRONMENT_CHOICES_MAX)
            return error_set(error, STATUS_INVALID, "action.choices[%zu] is %u: expected 1..%d", i,
                             space->choices[i], ENVIRONMENT_CHOICES_MAX);
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
    if (status != STATUS_OK)
        return status;
    if (choices)
        return check_choices(space, error);
    return check_bounds(space, "action", true, error);
}

static enum status check_metric_name(const struct environment_spec *spec, uint32_t i, struct error *error)
{
    const char *name = spec->metrics[i];
    if (name == NULL || name[0] == '\0')
        return error_set(error, STATUS_INVALID, "metrics[%u] has no name", i);
    if (strnlen(name, ENVIRONMENT_METRIC_NAME_MAX + 1) > ENVIRONMENT_METRIC_NAME_MAX)
        return error_set(error, STATUS_INVALID, "metrics[%u] has a name of more than %d bytes", i,
                         ENVIRONMENT_METRIC_NAME_MAX);
    for (uint32_t j = 0; j < i; j++)
        if (strcmp(name, spec->metrics[j]) == 0)
            return error_set(error, STATUS_INVALID, "metrics[%u] has the name of metrics[%u]", i, j);
    return STATUS_OK;
}

static enum status check_metrics(const struct environment_spec *spec, struct error *error)
{
    if (spec->metric_count > ENVIRONMENT_METRICS_MAX)
        return error_set(error, STATUS_INVALID, "metric_count is %u: expected at most %d", spec->metric_count,
                         ENVIRONMENT_METRICS_MAX);
    if (spec->metric_count > 0 && spec->metrics == NULL)
        return error_set(error, STATUS_INVALID, "metrics is NULL: expected %u names", spec->metric_count);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < spec->metric_count && status == STATUS_OK; i++)
        status = check_metric_name(spec, i, error);
    return status;
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
    enum status status = check_observation(&spec->observation, error);
    if (status == STATUS_OK)
        status = check_action(&spec->action, error);
    return status == STATUS_OK ? check_metrics(spec, error) : status;
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
