/* The policy's values, copied. The agent's thread, but for a checkpoint that is being written from the copy.
 */
#include "worker/model/policy_values.h"

#include "kernels/backend_memory.h"
#include "kernels/policy/mlp.h"
#include "worker/model/policy_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- the copy ---- */

static enum status values_add(struct params *params, const struct policy_parameter *parameter,
                              const char *ending, struct error *error)
{
    const struct init zero = {INIT_CONSTANT, 0};
    struct parameter *entry;
    char name[64];
    snprintf(name, sizeof name, "%s%s", parameter->name, ending);
    return params_add(params, name, PARAMETER_TRAINED, parameter->shape, zero, &entry, error);
}

enum status policy_values_open(struct policy_values *values, const struct mlp_shape *shape,
                               struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    struct policy_parameter parameters[POLICY_PARAMETERS];
    policy_parameters(parameters, shape);
    enum status status = backend_open(&values->backend, &memory_ops, &settings, error);
    if (status == STATUS_OK)
        status = params_new(&values->params, values->backend, error);
    if (status == STATUS_OK)
        status = params_new(&values->moments, values->backend, error);
    for (uint32_t i = 0; i < POLICY_PARAMETERS && status == STATUS_OK; i++) {
        status = values_add(values->params, &parameters[i], "", error);
        if (status == STATUS_OK)
            status = values_add(values->moments, &parameters[i], ".exp_avg", error);
        if (status == STATUS_OK)
            status = values_add(values->moments, &parameters[i], ".exp_avg_sq", error);
    }
    if (status == STATUS_OK)
        status = params_build(values->params, 0, error);
    return status == STATUS_OK ? params_build(values->moments, 0, error) : status;
}

void policy_values_close(struct policy_values *values)
{
    params_free(values->params);
    params_free(values->moments);
    backend_close(values->backend);
    *values = (struct policy_values){0};
}

float *policy_values_at(const struct policy_values *values, uint32_t index, enum policy_array array)
{
    const bool moment = array != POLICY_VALUES;
    const uint32_t entry = moment ? 2 * index + (array == POLICY_SECOND_MOMENT) : index;
    return params_at(moment ? values->moments : values->params, entry)->tensor.data;
}

/* ---- a policy on the CPU ---- */

/* Copies an array of every parameter, between the policy's flat array `flat` and *values. */
static void copy_array(const struct policy *policy, float *flat, const struct policy_values *values,
                       enum policy_array array, bool into_values)
{
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        float *copy = policy_values_at(values, i, array);
        memcpy(into_values ? copy : flat, into_values ? flat : copy, count * sizeof *flat);
        flat += count;
    }
}

static void copy_arrays(const struct policy *policy, const struct policy_values *values, bool into_values)
{
    copy_array(policy, policy->values, values, POLICY_VALUES, into_values);
    copy_array(policy, policy->first, values, POLICY_FIRST_MOMENT, into_values);
    copy_array(policy, policy->second, values, POLICY_SECOND_MOMENT, into_values);
}

/* ---- either ---- */

enum status policy_save(struct policy *policy, struct policy_values *values, struct error *error)
{
    if (policy->gpu != NULL)
        return policy_gpu_save(policy->gpu, values, error);
    copy_arrays(policy, values, true);
    values->steps = policy->steps;
    return STATUS_OK;
}

enum status policy_restore(struct policy *policy, const struct policy_values *values, struct error *error)
{
    if (policy->gpu != NULL)
        return policy_gpu_restore(policy->gpu, values, error);
    copy_arrays(policy, values, false);
    policy->steps = values->steps;
    mlp_load(policy->mlp, policy->values);
    return STATUS_OK;
}
