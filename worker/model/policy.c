/* The policy. Whoever holds it (coalescer or learner thread, in turns) has it alone, so nothing is locked. */
#include "worker/model/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct policy {
    struct mlp *mlp;
    struct adam_settings adam;
    uint64_t seed, steps;  // adam's steps made so far
    size_t count;          // floats in the slab
    float *slab;           // (count) the parameters
    float *gradient;       // (count) of the pass under way
    float *first, *second; // (count) adam's moments
    struct policy_parameter parameters[POLICY_PARAMETERS];
};

static void name_parameters(struct policy *policy, const struct mlp_shape *shape)
{
    const struct policy_parameter parameters[POLICY_PARAMETERS] = {
        {.name = "affine1.weight", .rows = shape->hidden, .columns = shape->inputs},
        {.name = "affine1.bias", .rows = shape->hidden},
        {.name = "affine2.weight", .rows = shape->actions, .columns = shape->hidden},
        {.name = "affine2.bias", .rows = shape->actions},
    };
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        struct policy_parameter *parameter = &policy->parameters[i];
        *parameter = parameters[i];
        parameter->offset = policy->count;
        parameter->count = (size_t)parameter->rows * (parameter->columns == 0 ? 1 : parameter->columns);
        policy->count += parameter->count;
    }
}

/* The bias that follows a weight has the weight's fan-in, which is the weight's number of columns. */
static void draw_parameters(struct policy *policy)
{
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        const struct policy_parameter *parameter = &policy->parameters[i];
        double bound = 1 / sqrt(policy->parameters[i - i % 2].columns);
        for (uint32_t element = 0; element < parameter->count; element++) {
            struct rng_key key = {.seed = policy->seed, .environment = element, .episode = i};
            uint32_t words[4];
            rng_block(&key, RNG_INIT, 0, words);
            policy->slab[parameter->offset + element] =
                (float)(bound * (2 * (double)rng_uniform_float(words[0]) - 1));
        }
    }
}

enum status policy_new(struct policy **out, const struct policy_config *config, struct error *error)
{
    struct policy *policy = calloc(1, sizeof *policy);
    if (policy == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    policy->seed = config->seed;
    policy->adam = config->adam;
    enum status status = adam_check(&config->adam, error);
    if (status != STATUS_OK)
        goto fail;
    status = mlp_new(&policy->mlp, &config->shape, config->dropout, error);
    if (status != STATUS_OK)
        goto fail;
    name_parameters(policy, &config->shape);
    policy->slab = calloc(policy->count, sizeof *policy->slab);
    policy->gradient = calloc(policy->count, sizeof *policy->gradient);
    policy->first = calloc(policy->count, sizeof *policy->first);
    policy->second = calloc(policy->count, sizeof *policy->second);
    if (policy->slab == NULL || policy->gradient == NULL || policy->first == NULL || policy->second == NULL) {
        status =
            error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu parameters", policy->count);
        goto fail;
    }
    draw_parameters(policy);
    mlp_load(policy->mlp, policy->slab);
    *out = policy;
    return STATUS_OK;
fail:
    policy_free(policy);
    return status;
}

void policy_free(struct policy *policy)
{
    if (policy == NULL)
        return;
    mlp_free(policy->mlp);
    free(policy->slab);
    free(policy->gradient);
    free(policy->first);
    free(policy->second);
    free(policy);
}

void policy_act(const struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                const uint32_t *environment, const uint32_t *step)
{
    mlp_act(policy->mlp, batch, policy->seed, episode, environment, step, NULL);
}

/* The gradient before it is applied: a parameter that is lost to a NaN is lost for good. */
static enum status check_finite(const struct policy *policy, double loss, struct error *error)
{
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        const struct policy_parameter *parameter = &policy->parameters[i];
        for (size_t element = 0; element < parameter->count; element++) {
            float value = policy->gradient[parameter->offset + element];
            if (!isfinite(value))
                return error_set(
                    error, STATUS_INTERNAL,
                    "policy: the gradient of %s at element %zu is %g (loss %g), expected a finite "
                    "number; no update was made",
                    parameter->name, element, (double)value, loss);
        }
    }
    if (!isfinite(loss))
        return error_set(error, STATUS_INTERNAL,
                         "policy: the loss is %g, expected a finite number; no update was made", loss);
    return STATUS_OK;
}

enum status policy_learn(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         double *loss, policy_progress *progress, void *context, struct error *error)
{
    double sum = 0;
    memset(policy->gradient, 0, policy->count * sizeof *policy->gradient);
    for (uint32_t first = 0; first < batch->count; first += MLP_CHUNK_ROWS) {
        struct mlp_batch chunk = *batch;
        uint32_t left = batch->count - first;
        chunk.count = left < MLP_CHUNK_ROWS ? left : MLP_CHUNK_ROWS;
        chunk.row += first;
        sum += mlp_gradient(policy->mlp, &chunk, coefficient + first, policy->gradient);
        if (progress != NULL)
            progress(context);
    }
    enum status status = check_finite(policy, sum, error);
    if (status != STATUS_OK)
        return status;
    adam_update(&policy->adam, ++policy->steps, policy->slab, policy->first, policy->second, policy->gradient,
                policy->count);
    mlp_load(policy->mlp, policy->slab);
    *loss = sum;
    return STATUS_OK;
}

const struct policy_parameter *policy_parameter(const struct policy *policy, uint32_t index)
{
    return &policy->parameters[index];
}

const struct policy_parameter *policy_find(const struct policy *policy, const char *name)
{
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++)
        if (strcmp(policy->parameters[i].name, name) == 0)
            return &policy->parameters[i];
    return NULL;
}

const float *policy_slab(const struct policy *policy)
{
    return policy->slab;
}

void policy_set(struct policy *policy, const float *slab)
{
    memcpy(policy->slab, slab, policy->count * sizeof *slab);
    mlp_load(policy->mlp, policy->slab);
}

const char *policy_isa(const struct policy *policy)
{
    return mlp_isa(policy->mlp);
}
