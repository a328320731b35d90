/* What a policy on a backend learns with: opening, the step, saving. */
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"

#include <stdlib.h>

enum status policy_register(struct params *params, const struct policy_config *config, struct error *error)
{
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(list, config);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        const struct init init = {list[i].bound > 0 ? INIT_UNIFORM : INIT_CONSTANT, list[i].bound};
        struct parameter *parameter;
        status = params_add(params, list[i].name, PARAMETER_TRAINED, list[i].shape, init, &parameter, error);
    }
    return status;
}

/* Those that params_build has not drawn. */
static enum status begin_parameters(struct params *params, const struct policy_config *config,
                                    struct error *error)
{
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(list, config);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        if (list[i].bound > 0 && !config->orthogonal)
            continue;
        float *values = calloc(list[i].count, sizeof *values);
        if (values == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for the %zu values of %s", list[i].count,
                             list[i].name);
        status = policy_begin_parameter(values, &list[i], i, config, error);
        if (status == STATUS_OK)
            status = params_write(params, params_at(params, i), DTYPE_F32, values, error);
        free(values);
    }
    return status;
}

enum status policy_learner_open(struct policy_learner *learner, const struct policy_config *config,
                                struct backend *backend, struct error *error)
{
    const struct optimizer_settings settings = {.kind = OPTIMIZER_ADAM, .adam = config->adam};
    enum status status = params_new(&learner->params, backend, error);
    if (status == STATUS_OK)
        status = policy_register(learner->params, config, error);
    if (status == STATUS_OK)
        status = params_build(learner->params, config->seed, error);
    if (status == STATUS_OK)
        status = begin_parameters(learner->params, config, error);
    if (status == STATUS_OK)
        status = optimizer_new(&learner->optimizer, &settings, learner->params, error);
    if (status == STATUS_OK)
        status = gradients_new(&learner->gradients, learner->params, error);
    return status == STATUS_OK ? tape_new(&learner->tape, backend, error) : status;
}

void policy_learner_close(struct policy_learner *learner)
{
    tape_free(learner->tape);
    gradients_free(learner->gradients);
    optimizer_free(learner->optimizer);
    params_free(learner->params);
}

enum status policy_learner_step(struct policy_learner *learner, struct error *error)
{
    const enum status status = gradients_check(learner->gradients, error); // a NaN in a parameter would stay
    return status == STATUS_OK ? optimizer_step(learner->optimizer, learner->gradients, error) : status;
}

/* Copies each array of each parameter, from *values or into them. */
static enum status copy_values(const struct policy_learner *learner, const struct policy_values *values,
                               bool into_values, struct error *error)
{
    struct params *params = learner->params;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params); i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            struct parameter *parameter = params_at(params, i);
            struct gradients *moment = optimizer_moment(learner->optimizer, array == POLICY_SECOND_MOMENT);
            float *copy = policy_values_at(values, i, array);
            if (array == POLICY_VALUES)
                status = into_values ? params_read(params, parameter, DTYPE_F32, copy, error)
                                     : params_write(params, parameter, DTYPE_F32, copy, error);
            else
                status = into_values ? gradients_read(moment, parameter, DTYPE_F32, copy, error)
                                     : gradients_write(moment, parameter, DTYPE_F32, copy, error);
        }
    return status;
}

enum status policy_learner_save(void *learner, struct policy_values *values, struct error *error)
{
    values->steps = optimizer_steps(((struct policy_learner *)learner)->optimizer);
    return copy_values(learner, values, true, error);
}

enum status policy_learner_restore(void *learner, const struct policy_values *values, struct error *error)
{
    optimizer_steps_set(((struct policy_learner *)learner)->optimizer, values->steps);
    return copy_values(learner, values, false, error);
}
