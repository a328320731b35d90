/* What a policy on a backend learns with: opening, the step, saving. */
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"

#include <math.h>
#include <stdlib.h>

/* Registers those that are targets, or those that are not. */
static enum status register_some(struct params *params, const struct policy_config *config, bool targets,
                                 struct error *error)
{
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(list, config);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        if (list[i].is_target != targets)
            continue;
        const struct init init = {list[i].bound > 0 ? INIT_UNIFORM : INIT_CONSTANT, list[i].bound};
        struct parameter *parameter;
        status = params_add(params, list[i].name, PARAMETER_TRAINED, list[i].shape, init, &parameter, error);
    }
    return status;
}

enum status policy_register(struct params *params, const struct policy_config *config, struct error *error)
{
    return register_some(params, config, false, error);
}

/* Those that params_build has not drawn. */
static enum status begin_parameters(struct params *params, const struct policy_config *config,
                                    struct error *error)
{
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(list, config);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        if (list[i].is_target || (list[i].bound > 0 && !config->orthogonal))
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

/* to = from, of slabs alike. */
static enum status copy_slab(const struct policy_learner *learner, struct tensor *to,
                             const struct tensor *from, struct error *error)
{
    struct backend *backend = params_backend(learner->params);
    const enum status status = backend_fill(backend, to, 0, error);
    return status == STATUS_OK ? backend_accumulate(backend, to, from, error) : status;
}

/* The slabs of the network and its targets are alike: these have the same shapes in the same order. */
static enum status open_targets(struct policy_learner *learner, const struct policy_config *config,
                                struct error *error)
{
    enum status status = params_new(&learner->targets, params_backend(learner->params), error);
    if (status == STATUS_OK)
        status = register_some(learner->targets, config, true, error);
    if (status == STATUS_OK)
        status = params_build(learner->targets, 0, error);
    return status == STATUS_OK ? policy_learner_follow(learner, 1, error) : status;
}

enum status policy_learner_follow(struct policy_learner *learner, double tau, struct error *error)
{
    struct backend *backend = params_backend(learner->params);
    const struct tensor *network = params_slab(learner->params);
    struct tensor target = *params_slab(learner->targets);
    struct tensor *part = gradients_slab(learner->gradients); // of no use between two steps
    if (tau >= 1)
        return copy_slab(learner, &target, network, error);
    enum status status = copy_slab(learner, part, network, error);
    if (status == STATUS_OK)
        status = backend_scale(backend, part, tau, error);
    if (status == STATUS_OK)
        status = backend_scale(backend, &target, 1 - tau, error);
    return status == STATUS_OK ? backend_accumulate(backend, &target, part, error) : status;
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
    if (status == STATUS_OK)
        status = tape_new(&learner->tape, backend, error);
    return status == STATUS_OK && config->learning == POLICY_DQN ? open_targets(learner, config, error)
                                                                 : status;
}

void policy_learner_close(struct policy_learner *learner)
{
    tape_free(learner->tape);
    gradients_free(learner->gradients);
    optimizer_free(learner->optimizer);
    params_free(learner->params);
    params_free(learner->targets);
}

enum status policy_learner_step(struct policy_learner *learner, struct error *error)
{
    const enum status status = gradients_check(learner->gradients, error); // a NaN in a parameter would stay
    return status == STATUS_OK ? optimizer_step(learner->optimizer, learner->gradients, error) : status;
}

enum status policy_learner_clip(const struct policy_learner *learner, double max_norm, double *norm,
                                struct error *error)
{
    double squares = 0;
    enum status status = gradients_squares(learner->gradients, &squares, error);
    *norm = sqrt(squares);
    if (status == STATUS_OK && !isfinite(*norm))
        status = gradients_check(learner->gradients, error);
    if (status == STATUS_OK && !isfinite(*norm))
        status = error_set(error, STATUS_INTERNAL, "the norm of the gradient is %g", *norm);
    const double factor = policy_clip_factor(*norm, max_norm);
    if (status != STATUS_OK || factor >= 1)
        return status;
    return backend_scale(params_backend(learner->params), gradients_slab(learner->gradients), factor, error);
}

struct variable *policy_learner_pull(struct tape *tape, struct variable *x, const char *name,
                                     const float *pull)
{
    if (x == NULL)
        return NULL;
    struct variable *by = tape_input(tape, variable_tensor(x)->shape, DTYPE_F32, name, pull);
    return tape_sum(tape, x, by, 1);
}

/* Copies the values of the targets, which stand behind the parameters, from *values or into them. */
static enum status copy_targets(const struct policy_learner *learner, const struct policy_values *values,
                                bool into_values, struct error *error)
{
    struct params *targets = learner->targets;
    const uint32_t first = params_count(learner->params);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; targets != NULL && i < params_count(targets) && status == STATUS_OK; i++) {
        float *copy = policy_values_at(values, first + i, POLICY_VALUES);
        status = into_values ? params_read(targets, params_at(targets, i), DTYPE_F32, copy, error)
                             : params_write(targets, params_at(targets, i), DTYPE_F32, copy, error);
    }
    return status;
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
    const enum status status = copy_values(learner, values, true, error);
    return status == STATUS_OK ? copy_targets(learner, values, true, error) : status;
}

enum status policy_learner_restore(void *learner, const struct policy_values *values, struct error *error)
{
    optimizer_steps_set(((struct policy_learner *)learner)->optimizer, values->steps);
    const enum status status = copy_values(learner, values, false, error);
    return status == STATUS_OK ? copy_targets(learner, values, false, error) : status;
}
