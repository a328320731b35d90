/* The tutorial's network on the CPU: the fused kernel over flat arrays. */
#include "kernels/base/rng.h"
#include "kernels/policy/mlp.h"
#include "worker/model/policy_config.h"
#include "worker/model/policy_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)POLICY_CHUNK_ROWS == (int)MLP_CHUNK_ROWS, "a chunk of rows is one of the kernel's");

struct policy_mlp {
    struct mlp_shape shape;
    struct mlp *mlp;   // holds a packed copy of policy->values
    struct mlp *whole; // the same without dropout, for policy_choose
    bool whole_loaded; // `whole` has the parameters as they are now
    /* The rows of one chunk without dropout: */
    float *observations;  // (POLICY_CHUNK_ROWS, inputs)
    float *probabilities; // (POLICY_CHUNK_ROWS, actions)
    uint16_t *masks;      // (POLICY_CHUNK_ROWS, mask words)
    int32_t *drawn;       // (POLICY_CHUNK_ROWS), not used
    uint32_t row[POLICY_CHUNK_ROWS], zero[POLICY_CHUNK_ROWS];
};

static struct mlp_batch batch_of(const struct policy_rows *rows)
{
    return (struct mlp_batch){.count = rows->count,
                              .row = rows->row,
                              .observations = rows->observations,
                              .masks = rows->dropout,
                              .actions = rows->actions};
}

/* ---- acting ---- */

static enum status mlp_kind_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                                const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_mlp *network = policy->network;
    const struct mlp_batch batch = batch_of(rows);
    (void)error;
    mlp_act(network->mlp, &batch, policy->seed, episode, environment, step, NULL);
    return STATUS_OK;
}

/* Fills the chunk's probabilities, without dropout. */
static void find_probabilities(struct policy *policy, const struct policy_rows *chunk)
{
    struct policy_mlp *network = policy->network;
    const uint32_t inputs = network->shape.inputs;
    const float *observations = chunk->observations;
    for (uint32_t i = 0; i < chunk->count; i++)
        memcpy(network->observations + (size_t)i * inputs, observations + (size_t)chunk->row[i] * inputs,
               inputs * sizeof *observations);
    const struct mlp_batch batch = {.count = chunk->count,
                                    .row = network->row,
                                    .observations = network->observations,
                                    .masks = network->masks,
                                    .actions = network->drawn};
    if (!network->whole_loaded)
        mlp_load(network->whole, policy->values);
    network->whole_loaded = true;
    mlp_act(network->whole, &batch, 0, 0, network->zero, network->zero, network->probabilities);
}

static uint32_t most_probable(const float *probabilities, uint32_t actions)
{
    uint32_t best = 0;
    for (uint32_t action = 1; action < actions; action++)
        if (probabilities[action] > probabilities[best])
            best = action;
    return best;
}

static enum status mlp_kind_choose(struct policy *policy, const struct policy_rows *rows, struct error *error)
{
    const struct policy_mlp *network = policy->network;
    const uint32_t actions = network->shape.actions;
    int32_t *chosen = rows->actions;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        find_probabilities(policy, &chunk);
        for (uint32_t i = 0; i < chunk.count * actions; i++)
            if (!isfinite(network->probabilities[i]))
                return error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
        for (uint32_t i = 0; i < chunk.count; i++)
            chosen[chunk.row[i]] =
                (int32_t)most_probable(network->probabilities + (size_t)i * actions, actions);
    }
    return STATUS_OK;
}

/* ---- learning ---- */

static void mlp_flat_load(struct policy *policy)
{
    struct policy_mlp *network = policy->network;
    mlp_load(network->mlp, policy->values);
    network->whole_loaded = false;
}

static double mlp_flat_gradient(struct policy *policy, const struct policy_rows *rows,
                                const float *coefficient, float *gradient)
{
    const struct policy_mlp *network = policy->network;
    const struct mlp_batch batch = batch_of(rows);
    return mlp_gradient(network->mlp, &batch, coefficient, gradient);
}

/* ---- opening ---- */

static void draw_parameters(struct policy *policy)
{
    float *to = policy->values;
    for (uint32_t i = 0; i < policy->parameter_count; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        for (uint32_t element = 0; element < count; element++)
            *to++ = rng_initial_uniform(policy->seed, i, element, policy->parameters[i].bound);
    }
}

static enum status open_network(struct policy_mlp *network, double dropout, struct error *error)
{
    const struct mlp_shape *shape = &network->shape;
    enum status status = mlp_new(&network->mlp, shape, dropout, error);
    if (status == STATUS_OK)
        status = mlp_new(&network->whole, shape, 0, error);
    if (status != STATUS_OK)
        return status;
    network->observations = calloc((size_t)POLICY_CHUNK_ROWS * shape->inputs, sizeof *network->observations);
    network->probabilities =
        calloc((size_t)POLICY_CHUNK_ROWS * shape->actions, sizeof *network->probabilities);
    network->masks = calloc((size_t)POLICY_CHUNK_ROWS * mlp_mask_words(shape), sizeof *network->masks);
    network->drawn = calloc(POLICY_CHUNK_ROWS, sizeof *network->drawn);
    for (uint32_t i = 0; i < POLICY_CHUNK_ROWS; i++)
        network->row[i] = i;
    if (network->observations == NULL || network->probabilities == NULL || network->masks == NULL ||
        network->drawn == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's rows");
    return STATUS_OK;
}

static enum status mlp_kind_open(struct policy *policy, const struct policy_config *config,
                                 struct backend *backend, struct error *error)
{
    static const struct policy_flat flat = {
        .load = mlp_flat_load, .gradient = mlp_flat_gradient, .any_thread = true};
    struct policy_mlp *network = policy->network = calloc(1, sizeof *network);
    (void)backend;
    if (network == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    network->shape = policy_mlp_shape(config);
    enum status status = open_network(network, config->dropout, error);
    if (status == STATUS_OK)
        status = policy_flat_open(policy, config, &flat, error);
    if (status != STATUS_OK)
        return status;
    policy->dropout_words = mlp_mask_words(&network->shape);
    draw_parameters(policy);
    mlp_flat_load(policy);
    return STATUS_OK;
}

static void mlp_kind_free(struct policy *policy)
{
    struct policy_mlp *network = policy->network;
    policy_flat_close(policy);
    if (network == NULL)
        return;
    mlp_free(network->mlp);
    mlp_free(network->whole);
    free(network->observations);
    free(network->probabilities);
    free(network->masks);
    free(network->drawn);
    free(network);
}

const struct policy_kind policy_mlp_kind = {.open = mlp_kind_open,
                                            .free = mlp_kind_free,
                                            .act = mlp_kind_act,
                                            .choose = mlp_kind_choose,
                                            .learn = policy_flat_learn,
                                            .save = policy_flat_save,
                                            .restore = policy_flat_restore};
