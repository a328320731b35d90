/* Copies the policy's values. The agent's thread; a checkpoint is written from the copy in another. */
#include "worker/model/policy_values.h"

#include "kernels/backend.h"
#include "worker/environment/environment_spec.h"

#include <stdio.h>

static enum status values_add(struct params *params, const struct policy_parameter *parameter,
                              enum parameter_kind kind, const char *ending, struct error *error)
{
    const struct init zero = {INIT_CONSTANT, 0};
    struct parameter *entry;
    char name[64];
    snprintf(name, sizeof name, "%s%s", parameter->name, ending);
    return params_add(params, name, kind, parameter->shape, zero, &entry, error);
}

/* RMSprop's mean of squares is the second moment. Its first one is the gradient, which each step computes
 * anew, so no file has it: a checkpoint has what PyTorch's optimizer has. */
static enum status add_moments(struct params *moments, const struct policy_parameter *parameter, bool is_rms,
                               struct error *error)
{
    const enum status status =
        values_add(moments, parameter, is_rms ? PARAMETER_BUFFER : PARAMETER_TRAINED, ".exp_avg", error);
    return status == STATUS_OK ? values_add(moments, parameter, PARAMETER_TRAINED,
                                            is_rms ? ".square_avg" : ".exp_avg_sq", error)
                               : status;
}

static enum status add_statistic(struct policy_values *values, const struct policy_config *config,
                                 const char *name, double first, struct error *error)
{
    const struct init init = {INIT_CONSTANT, first};
    const uint32_t elements = (uint32_t)environment_space_elements(&config->observation);
    struct parameter *entry;
    return params_add(values->params, name, PARAMETER_BUFFER, SHAPE1(elements), init, &entry, error);
}

enum status policy_values_open(struct policy_values *values, const struct policy_config *config,
                               struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    struct policy_parameter parameters[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(parameters, config);
    enum status status = backend_open(&values->backend, &memory_ops, &settings, error);
    if (status == STATUS_OK)
        status = params_new(&values->params, values->backend, error);
    if (status == STATUS_OK)
        status = params_new(&values->moments, values->backend, error);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        status = values_add(values->params, &parameters[i], PARAMETER_TRAINED, "", error);
        if (status == STATUS_OK)
            status = add_moments(values->moments, &parameters[i], config->adam.uncorrected, error);
    }
    values->count = count;
    if (status == STATUS_OK && config->normalizes)
        status = add_statistic(values, config, "obs_rms.mean", 0, error);
    if (status == STATUS_OK && config->normalizes)
        status = add_statistic(values, config, "obs_rms.var", 1, error);
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

float *policy_values_statistic(const struct policy_values *values, enum policy_statistic statistic)
{
    return params_at(values->params, values->count + (uint32_t)statistic)->tensor.data;
}

/* ---- a backend ---- */

/* The optimizer's moment that an array is. */
static struct gradients *moment_of(struct optimizer *optimizer, int array)
{
    return optimizer_moment(optimizer, array == POLICY_SECOND_MOMENT);
}

enum status policy_values_take(struct policy_values *values, struct params *params,
                               struct optimizer *optimizer, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params); i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            const struct parameter *parameter = params_at(params, i);
            float *to = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_read(params, parameter, DTYPE_F32, to, error)
                         : gradients_read(moment_of(optimizer, array), parameter, DTYPE_F32, to, error);
        }
    values->steps = optimizer_steps(optimizer);
    return status;
}

enum status policy_values_give(const struct policy_values *values, struct params *params,
                               struct optimizer *optimizer, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params); i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            struct parameter *parameter = params_at(params, i);
            const float *from = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_write(params, parameter, DTYPE_F32, from, error)
                         : gradients_write(moment_of(optimizer, array), parameter, DTYPE_F32, from, error);
        }
    optimizer_steps_set(optimizer, values->steps);
    return status;
}
