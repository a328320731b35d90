/* The policy on the CPU: one flat array of parameters in mlp's order, the fused kernel over the rows, one
 * Adam (898 floats for CartPole). Nothing but kernels/policy and kernels/adam.h computes. Calls of a
 * policy on a GPU go to policy_gpu.c. */
#include "kernels/base/rng.h"
#include "kernels/policy/mlp.h"
#include "worker/model/policy_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- acting ---- */

enum status policy_act(struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error)
{
    if (policy->gpu != NULL)
        return policy_gpu_act(policy->gpu, batch, episode, environment, step, error);
    mlp_act(policy->mlp, batch, policy->seed, episode, environment, step, NULL);
    return STATUS_OK;
}

/* ---- learning ---- */

/* L of all rows, chunk by chunk; its gradient goes into policy->gradient. */
static double pass_over_rows(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                             policy_progress *progress, void *context)
{
    double loss = 0;
    memset(policy->gradient, 0, policy->count * sizeof *policy->gradient);
    for (uint32_t first = 0; first < batch->count; first += MLP_CHUNK_ROWS) {
        struct mlp_batch chunk = *batch;
        const uint32_t left = batch->count - first;
        chunk.count = left < MLP_CHUNK_ROWS ? left : MLP_CHUNK_ROWS;
        chunk.row += first;
        loss += mlp_gradient(policy->mlp, &chunk, coefficient + first, policy->gradient);
        if (progress != NULL)
            progress(context);
    }
    return loss;
}

static bool all_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* The name of the first parameter whose share of `array`, which is laid out like the parameters, holds a NaN
 * or an infinity; NULL when there is none. */
static const char *first_not_finite(const struct policy *policy, const float *array)
{
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        if (!all_finite(array, count))
            return policy->parameters[i].name;
        array += count;
    }
    return NULL;
}

/* Names the first tensor that holds a NaN or an infinity: observations, returns, then parameters. */
static enum status explain_loss(const struct policy *policy, const struct mlp_batch *batch,
                                const float *coefficient, double loss, struct error *error)
{
    static const char begin[] = "the first tensor that holds a NaN or an infinity is the";
    const uint32_t inputs = policy->shape.inputs;
    for (uint32_t i = 0; i < batch->count; i++)
        if (!all_finite(batch->observations + (size_t)batch->row[i] * inputs, inputs))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s observations, row %u of %u", loss,
                             begin, i, batch->count);
    for (uint32_t i = 0; i < batch->count; i++)
        if (!isfinite(coefficient[i]))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s returns, row %u of %u", loss, begin,
                             i, batch->count);
    const char *parameter = first_not_finite(policy, policy->values);
    if (parameter != NULL)
        return error_set(error, STATUS_INTERNAL, "the loss is %g; %s parameter %s", loss, begin, parameter);
    return error_set(error, STATUS_INTERNAL, "the loss is %g; %s log-probabilities", loss, begin);
}

enum status policy_learn(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error)
{
    if (policy->gpu != NULL)
        return policy_gpu_learn(policy->gpu, batch, coefficient, episode, loss, progress, context, error);
    const double found = pass_over_rows(policy, batch, coefficient, progress, context);
    if (!isfinite(found))
        return explain_loss(policy, batch, coefficient, found, error);
    const char *lost = first_not_finite(policy, policy->gradient);
    if (lost != NULL) // a NaN in a parameter would stay
        return error_set(error, STATUS_INTERNAL, "the gradient of %s holds a NaN or an infinity", lost);
    adam_update(&policy->adam, ++policy->steps, policy->values, policy->first, policy->second,
                policy->gradient, policy->count);
    mlp_load(policy->mlp, policy->values);
    *loss = found;
    return STATUS_OK;
}

/* ---- opening ---- */

static void draw_parameters(struct policy *policy)
{
    float *to = policy->values;
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        for (uint32_t element = 0; element < count; element++)
            *to++ = rng_initial_uniform(policy->seed, i, element, policy->parameters[i].bound);
    }
    mlp_load(policy->mlp, policy->values);
}

static enum status policy_cpu_open(struct policy *policy, const struct policy_config *config,
                                   struct error *error)
{
    const size_t count = mlp_parameter_count(&config->shape);
    enum status status = mlp_new(&policy->mlp, &config->shape, config->dropout, error);
    if (status == STATUS_OK)
        status = adam_check(&config->adam, error);
    if (status != STATUS_OK)
        return status;
    policy->values = calloc(4 * count, sizeof *policy->values);
    if (policy->values == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu parameters", count);
    policy->shape = config->shape;
    policy->seed = config->seed;
    policy->adam = config->adam;
    policy->count = count;
    policy->gradient = policy->values + count;
    policy->first = policy->values + 2 * count;
    policy->second = policy->values + 3 * count;
    policy_parameters(policy->parameters, &config->shape);
    draw_parameters(policy);
    return STATUS_OK;
}

enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error)
{
    struct policy *policy = calloc(1, sizeof *policy);
    if (policy == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    enum status status = backend != NULL ? policy_gpu_new(&policy->gpu, config, backend, error)
                                         : policy_cpu_open(policy, config, error);
    if (status != STATUS_OK) {
        policy_free(policy);
        return status;
    }
    *out = policy;
    return STATUS_OK;
}

void policy_free(struct policy *policy)
{
    if (policy == NULL)
        return;
    if (policy->gpu != NULL)
        policy_gpu_free(policy->gpu);
    mlp_free(policy->mlp);
    free(policy->values);
    free(policy);
}
