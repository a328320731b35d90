/* The policy on the CPU: one flat array of parameters in mlp's order, the fused kernel over the rows, one
 * Adam (898 floats for CartPole). Nothing but kernels/policy and kernels/adam.h computes. */
#include "kernels/base/rng.h"
#include "kernels/policy/mlp.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct policy_cpu {
    struct policy policy;
    struct mlp *mlp; // holds a packed copy of `values`
    struct mlp_shape shape;
    uint64_t seed;
    struct adam_settings adam;
    uint64_t steps;                            // of Adam
    size_t count;                              // floats in each of the arrays below
    float *values, *gradient, *first, *second; // the parameters, their gradient, Adam's moments
    struct policy_parameter parameters[POLICY_PARAMETERS];
};

static struct policy_cpu *cpu_of(struct policy *policy)
{
    return (struct policy_cpu *)policy;
}

/* ---- acting ---- */

static enum status policy_cpu_act(struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                                  const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_cpu *cpu = cpu_of(policy);
    (void)error;
    mlp_act(cpu->mlp, batch, cpu->seed, episode, environment, step, NULL);
    return STATUS_OK;
}

/* ---- learning ---- */

/* L of all rows, chunk by chunk; its gradient goes into cpu->gradient. */
static double pass_over_rows(struct policy_cpu *cpu, const struct mlp_batch *batch, const float *coefficient,
                             policy_progress *progress, void *context)
{
    double loss = 0;
    memset(cpu->gradient, 0, cpu->count * sizeof *cpu->gradient);
    for (uint32_t first = 0; first < batch->count; first += MLP_CHUNK_ROWS) {
        struct mlp_batch chunk = *batch;
        const uint32_t left = batch->count - first;
        chunk.count = left < MLP_CHUNK_ROWS ? left : MLP_CHUNK_ROWS;
        chunk.row += first;
        loss += mlp_gradient(cpu->mlp, &chunk, coefficient + first, cpu->gradient);
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
static const char *first_not_finite(const struct policy_cpu *cpu, const float *array)
{
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        const size_t count = shape_elements(&cpu->parameters[i].shape);
        if (!all_finite(array, count))
            return cpu->parameters[i].name;
        array += count;
    }
    return NULL;
}

/* Why the loss is not finite: observations, then what rewards became, then parameters. */
static enum status explain_loss(const struct policy_cpu *cpu, const struct mlp_batch *batch,
                                const float *coefficient, double loss, struct error *error)
{
    static const char begin[] = "the first tensor that holds a NaN or an infinity is the";
    const uint32_t inputs = cpu->shape.inputs;
    for (uint32_t i = 0; i < batch->count; i++)
        if (!all_finite(batch->observations + (size_t)batch->row[i] * inputs, inputs))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s observations, row %u of %u", loss,
                             begin, i, batch->count);
    for (uint32_t i = 0; i < batch->count; i++)
        if (!isfinite(coefficient[i]))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s returns, row %u of %u", loss, begin,
                             i, batch->count);
    const char *parameter = first_not_finite(cpu, cpu->values);
    if (parameter != NULL)
        return error_set(error, STATUS_INTERNAL, "the loss is %g; %s parameter %s", loss, begin, parameter);
    return error_set(error, STATUS_INTERNAL, "the loss is %g; %s log-probabilities", loss, begin);
}

static enum status policy_cpu_learn(struct policy *policy, const struct mlp_batch *batch,
                                    const float *coefficient, uint32_t episode, double *loss,
                                    policy_progress *progress, void *context, struct error *error)
{
    struct policy_cpu *cpu = cpu_of(policy);
    (void)episode; // the masks that acted are in the batch
    const double found = pass_over_rows(cpu, batch, coefficient, progress, context);
    if (!isfinite(found))
        return explain_loss(cpu, batch, coefficient, found, error);
    const char *lost = first_not_finite(cpu, cpu->gradient);
    if (lost != NULL) // a parameter that is lost to a NaN is lost for good
        return error_set(error, STATUS_INTERNAL, "the gradient of %s holds a NaN or an infinity", lost);
    adam_update(&cpu->adam, ++cpu->steps, cpu->values, cpu->first, cpu->second, cpu->gradient, cpu->count);
    mlp_load(cpu->mlp, cpu->values);
    *loss = found;
    return STATUS_OK;
}

/* ---- parameters ---- */

static enum status policy_cpu_read(struct policy *policy, float *parameters, struct error *error)
{
    const struct policy_cpu *cpu = cpu_of(policy);
    (void)error;
    memcpy(parameters, cpu->values, cpu->count * sizeof *parameters);
    return STATUS_OK;
}

static enum status policy_cpu_write(struct policy *policy, const float *parameters, struct error *error)
{
    struct policy_cpu *cpu = cpu_of(policy);
    (void)error;
    memcpy(cpu->values, parameters, cpu->count * sizeof *parameters);
    mlp_load(cpu->mlp, cpu->values);
    return STATUS_OK;
}

static void draw_parameters(struct policy_cpu *cpu)
{
    float *to = cpu->values;
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++) {
        const size_t count = shape_elements(&cpu->parameters[i].shape);
        for (uint32_t element = 0; element < count; element++)
            *to++ = rng_initial_uniform(cpu->seed, i, element, cpu->parameters[i].bound);
    }
    mlp_load(cpu->mlp, cpu->values);
}

/* ---- opening ---- */

static void policy_cpu_free(struct policy *policy)
{
    struct policy_cpu *cpu = cpu_of(policy);
    mlp_free(cpu->mlp);
    free(cpu->values);
    free(cpu);
}

static const struct policy_kind policy_cpu_kind = {.free = policy_cpu_free,
                                                   .act = policy_cpu_act,
                                                   .learn = policy_cpu_learn,
                                                   .read = policy_cpu_read,
                                                   .write = policy_cpu_write};

enum status policy_cpu_new(struct policy **out, const struct policy_config *config, struct error *error)
{
    const size_t count = mlp_parameter_count(&config->shape);
    struct mlp *mlp = NULL;
    enum status status = mlp_new(&mlp, &config->shape, config->dropout, error);
    if (status == STATUS_OK)
        status = adam_check(&config->adam, error);
    struct policy_cpu *cpu = status == STATUS_OK ? calloc(1, sizeof *cpu) : NULL;
    float *arrays = cpu != NULL ? calloc(4 * count, sizeof *arrays) : NULL;
    if (arrays == NULL) {
        mlp_free(mlp);
        free(cpu);
        return status != STATUS_OK
                   ? status
                   : error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu parameters", count);
    }
    *cpu = (struct policy_cpu){.policy = {&policy_cpu_kind},
                               .mlp = mlp,
                               .shape = config->shape,
                               .seed = config->seed,
                               .adam = config->adam,
                               .count = count,
                               .values = arrays,
                               .gradient = arrays + count,
                               .first = arrays + 2 * count,
                               .second = arrays + 3 * count};
    policy_parameters(cpu->parameters, &config->shape);
    draw_parameters(cpu);
    *out = &cpu->policy;
    return STATUS_OK;
}
