/* The look at every row that a call wrote. */
#include "worker/environment/environment_probe_internal.h"
#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A row's place in words: "environment 3", or "environment 3, agent 1". */
struct row_name {
    char text[64];
};

static struct row_name name_of(const struct probe *probe, uint32_t environment, uint32_t agent)
{
    struct row_name name;
    const int length = snprintf(name.text, sizeof name.text, "environment %u", environment);
    if (probe->spec->agents > 1)
        snprintf(name.text + length, sizeof name.text - (size_t)length, ", agent %u", agent);
    return name;
}

/* `count` finite numbers at `row`, of an area. */
/* Whether it is what the probe had filled the buffers with. */
static bool is_pattern(float value)
{
    uint32_t bits[2];
    memcpy(&bits[0], &value, 4);
    memcpy(&bits[1], &probe_pattern_float, 4);
    return bits[0] == bits[1];
}

static enum status check_floats(const struct probe *probe, enum probe_area area, const void *row,
                                size_t count, struct row_name name, struct error *error)
{
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const uint8_t *)row + 4 * i, 4);
        if (isfinite(value))
            continue;
        if (is_pattern(value))
            return probe_broken(probe->trial, error, "%s did not write element %zu of the %s of %s",
                                probe->trial->progress->call, i, probe_area_names[area], name.text);
        return probe_broken(
            probe->trial, error, "%s: element %zu of the %s of %s is %g: expected a finite number",
            probe->trial->progress->call, i, probe_area_names[area], name.text, (double)value);
    }
    return STATUS_OK;
}

static double element_of(const struct environment_space *space, const uint8_t *row, size_t i)
{
    float value;
    if (space->dtype == ENVIRONMENT_U8)
        return row[i];
    memcpy(&value, row + 4 * i, 4);
    return (double)value;
}

/* The bounds as they are in float32: a plug-in rounds what it writes. */
static enum status check_bounds(const struct probe *probe, const uint8_t *row, struct row_name name,
                                struct error *error)
{
    const struct environment_space *space = &probe->spec->observation;
    const size_t elements = environment_space_elements(space);
    for (size_t i = 0; (space->low != NULL || space->high != NULL) && i < elements; i++) {
        const double value = element_of(space, row, i);
        const double low = space->low != NULL ? (double)(float)space->low[i] : -INFINITY;
        const double high = space->high != NULL ? (double)(float)space->high[i] : INFINITY;
        if (value < low || value > high)
            return probe_broken(probe->trial, error,
                                "%s: element %zu of the observation of %s is %.9g: expected %.9g..%.9g",
                                probe->trial->progress->call, i, name.text, value, low, high);
    }
    return STATUS_OK;
}

static enum status check_observation(const struct probe *probe, uint32_t environment, uint32_t agent,
                                     struct error *error)
{
    const uint8_t *row = probe_row(probe, PROBE_OBSERVATION, environment, agent);
    const struct environment_space *space = &probe->spec->observation;
    const struct row_name name = name_of(probe, environment, agent);
    enum status status = STATUS_OK;
    if (space->dtype == ENVIRONMENT_F32)
        status = check_floats(probe, PROBE_OBSERVATION, row, environment_space_elements(space), name, error);
    return status == STATUS_OK ? check_bounds(probe, row, name, error) : status;
}

static enum status check_mask(const struct probe *probe, uint32_t environment, uint32_t agent,
                              struct error *error)
{
    const uint8_t *mask = probe_row(probe, PROBE_MASK, environment, agent);
    const struct environment_space *action = &probe->spec->action;
    const struct row_name name = name_of(probe, environment, agent);
    const size_t elements = environment_space_elements(action);
    for (size_t element = 0; element < elements; mask += action->choices[element++]) {
        unsigned allowed = 0;
        for (uint32_t choice = 0; choice < action->choices[element]; choice++) {
            if (mask[choice] > 1)
                return probe_broken(probe->trial, error,
                                    "%s: the mask of %s is %u at choice %u of element %zu: expected 0 or 1",
                                    probe->trial->progress->call, name.text, mask[choice], choice, element);
            allowed += mask[choice];
        }
        if (allowed == 0)
            return probe_broken(probe->trial, error, "%s: the mask of %s allows no choice of element %zu",
                                probe->trial->progress->call, name.text, element);
    }
    return STATUS_OK;
}

static enum status check_flags(const struct probe *probe, uint8_t flags, struct row_name name,
                               struct error *error)
{
    const unsigned ended = flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED);
    const char *call = probe->trial->progress->call;
    if (flags == PROBE_PATTERN_BYTE)
        return probe_broken(probe->trial, error, "%s did not write the flags of %s", call, name.text);
    if ((flags & ~(unsigned)ENVIRONMENT_STEP_FLAGS) != 0)
        return probe_broken(probe->trial, error,
                            "%s: the flags of %s are %#x, which has bits without a meaning", call, name.text,
                            flags);
    if ((flags & ENVIRONMENT_RESTARTED) != 0 && ended == 0)
        return probe_broken(probe->trial, error,
                            "%s: the flags of %s say RESTARTED, and neither TERMINATED nor TRUNCATED", call,
                            name.text);
    if ((flags & ENVIRONMENT_ABSENT) != 0 && ended != 0)
        return probe_broken(probe->trial, error, "%s: the flags of %s say ABSENT, and an end", call,
                            name.text);
    return STATUS_OK;
}

/* Observation and mask: what reset, step and load write. */
enum status probe_check_state(const struct probe *probe, uint32_t environment, uint32_t agent,
                              struct error *error)
{
    const enum status status = check_observation(probe, environment, agent, error);
    return status == STATUS_OK && probe->spec->has_mask ? check_mask(probe, environment, agent, error)
                                                        : status;
}

enum status probe_check_stepped_row(const struct probe *probe, uint32_t environment, uint32_t agent,
                                    struct error *error)
{
    const struct row_name name = name_of(probe, environment, agent);
    const uint8_t flags = *(const uint8_t *)probe_row(probe, PROBE_FLAGS, environment, agent);
    enum status status = check_flags(probe, flags, name, error);
    if (status != STATUS_OK || (flags & (ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED)) != 0)
        return status;
    status =
        check_floats(probe, PROBE_REWARD, probe_row(probe, PROBE_REWARD, environment, agent), 1, name, error);
    if (status == STATUS_OK)
        status = probe_check_state(probe, environment, agent, error);
    const bool ended = (flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0;
    if (status == STATUS_OK && ended && probe->spec->metric_count > 0)
        status = check_floats(probe, PROBE_METRICS, probe_row(probe, PROBE_METRICS, environment, agent),
                              probe->spec->metric_count, name, error);
    return status;
}

enum status probe_check_present(const struct probe *probe, uint32_t environment, struct error *error)
{
    const uint8_t *flags = probe_row(probe, PROBE_FLAGS, environment, 0);
    for (uint32_t agent = 0; agent < probe->spec->agents; agent++)
        if ((flags[agent] & ENVIRONMENT_ABSENT) == 0)
            return STATUS_OK;
    return probe_broken(probe->trial, error,
                        "%s: no agent of environment %u is present: expected an end in the step before",
                        probe->trial->progress->call, environment);
}
