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

/* Copies a parameter's values between `copy` and the params. */
static enum status copy_parameter(struct params *params, uint32_t index, float *copy, bool into_copy,
                                  struct error *error)
{
    struct parameter *parameter = params_at(params, index);
    return into_copy ? params_read(params, parameter, DTYPE_F32, copy, error)
                     : params_write(params, parameter, DTYPE_F32, copy, error);
}

/* Copies each array of each parameter, and the targets, which stand behind them, between *values and the
 * learner. */
static enum status copy_values(const struct policy_learner *learner, const struct policy_values *values,
                               bool into_values, struct error *error)
{
    const uint32_t count = params_count(learner->params);
    const uint32_t targets = learner->targets != NULL ? params_count(learner->targets) : 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        status = copy_parameter(learner->params, i, policy_values_at(values, i, POLICY_VALUES), into_values,
                                error);
    for (uint32_t i = 0; i < 2 * count && status == STATUS_OK; i++) {
        const enum policy_array array = i % 2 == 0 ? POLICY_FIRST_MOMENT : POLICY_SECOND_MOMENT;
        struct gradients *moment = optimizer_moment(learner->optimizer, i % 2);
        const struct parameter *parameter = params_at(learner->params, i / 2);
        float *copy = policy_values_at(values, i / 2, array);
        status = into_values ? gradients_read(moment, parameter, DTYPE_F32, copy, error)
                             : gradients_write(moment, parameter, DTYPE_F32, copy, error);
    }
    for (uint32_t i = 0; i < targets && status == STATUS_OK; i++)
        status = copy_parameter(learner->targets, i, policy_values_at(values, count + i, POLICY_VALUES),
                                into_values, error);
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
