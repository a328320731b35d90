/* Flat arrays of parameters: their first values, Adam's step, and copies of them. */
#include "worker/model/policy_arrays.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The parameter that a target follows. */
static const struct policy_parameter *followed_by(const struct policy_arrays *arrays,
                                                  const struct policy_parameter *target)
{
    const char *rest = strchr(target->name, '.');
    const struct policy_parameter *of = arrays->parameters;
    for (; of < target; of++) {
        const char *dot = strchr(of->name, '.');
        if (!of->is_target && dot != NULL && strcmp(dot, rest) == 0 &&
            strncmp(of->name, target->name, (size_t)(dot - of->name)) == 0)
            break;
    }
    assert(of < target);
    return of;
}

enum status policy_arrays_open(struct policy_arrays *arrays, const struct policy_config *config,
                               struct error *error)
{
    arrays->parameter_count = policy_parameters(arrays->parameters, config);
    const struct policy_parameter *last = &arrays->parameters[arrays->parameter_count - 1];
    const size_t count = arrays->count = last->offset + last->count;
    enum status status = STATUS_OK;
    arrays->values = calloc(4 * count, sizeof *arrays->values);
    if (arrays->values == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu parameters", count);
    arrays->gradient = arrays->values + count;
    arrays->first = arrays->values + 2 * count;
    arrays->second = arrays->values + 3 * count;
    arrays->adam = adam_choose();
    for (uint32_t i = 0; i < arrays->parameter_count && status == STATUS_OK; i++) {
        const struct policy_parameter *parameter = &arrays->parameters[i];
        float *values = arrays->values + parameter->offset;
        if (parameter->is_target)
            memcpy(values, arrays->values + followed_by(arrays, parameter)->offset,
                   parameter->count * sizeof *values);
        else
            status = policy_begin_parameter(values, parameter, i, config, error);
    }
    return status;
}

void policy_arrays_close(struct policy_arrays *arrays)
{
    free(arrays->values);
}

/* Piece by piece, so that Adam finds the scaled gradient in the nearest cache. */
void policy_arrays_step(const struct policy_arrays *arrays, const struct adam_factors *factors, size_t offset,
                        size_t count, float scale)
{
    enum { PIECE = 2048 };
    for (size_t at = offset, n; at < offset + count; at += n) {
        n = offset + count - at < PIECE ? offset + count - at : PIECE;
        for (size_t i = at; i < at + n && scale < 1; i++)
            arrays->gradient[i] *= scale;
        arrays->adam(factors, arrays->values + at, arrays->first + at, arrays->second + at,
                     arrays->gradient + at, n);
    }
}

bool policy_all_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

const char *policy_arrays_lost(const struct policy_arrays *arrays, const float *array)
{
    for (uint32_t i = 0; i < arrays->parameter_count; i++)
        if (!policy_all_finite(array + arrays->parameters[i].offset, arrays->parameters[i].count))
            return arrays->parameters[i].name;
    return NULL;
}

static void copy(const struct policy_arrays *arrays, const struct policy_values *values, bool into_values)
{
    float *const flat[POLICY_ARRAYS] = {[POLICY_VALUES] = arrays->values,
                                        [POLICY_FIRST_MOMENT] = arrays->first,
                                        [POLICY_SECOND_MOMENT] = arrays->second};
    for (int array = 0; array < POLICY_ARRAYS; array++)
        for (uint32_t i = 0; i < arrays->parameter_count; i++) {
            float *own = flat[array] + arrays->parameters[i].offset;
            float *apart = policy_values_at(values, i, array);
            memcpy(into_values ? apart : own, into_values ? own : apart,
                   arrays->parameters[i].count * sizeof *own);
        }
}

enum status policy_arrays_save(void *arrays, struct policy_values *values, struct error *error)
{
    (void)error;
    copy(arrays, values, true);
    values->steps = ((const struct policy_arrays *)arrays)->steps;
    return STATUS_OK;
}

void policy_arrays_restore(struct policy_arrays *arrays, const struct policy_values *values)
{
    copy(arrays, values, false);
    arrays->steps = values->steps;
}
