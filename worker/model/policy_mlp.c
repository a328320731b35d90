/* The tutorial's network on the CPU: the fused kernel (kernels/policy/mlp.h). */
#include "kernels/base/rng.h"
#include "worker/model/policy_flat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)POLICY_CHUNK_ROWS == (int)MLP_CHUNK_ROWS, "a chunk of rows is one of the kernel's");

struct policy_mlp {
    struct mlp_shape shape;
    uint64_t seed;
    const float *values; // the policy's parameters
    struct mlp *mlp;     // holds a packed copy of them
    struct mlp *whole;   // the same without dropout, for `choose`
    bool whole_loaded;   // `whole` has the parameters as they are now
    /* The rows of one chunk without dropout: */
    float *observations;  // (POLICY_CHUNK_ROWS, inputs)
    float *probabilities; // (POLICY_CHUNK_ROWS, actions)
    uint16_t *masks;      // (POLICY_CHUNK_ROWS, mask words)
    int32_t *drawn;       // (POLICY_CHUNK_ROWS), not used
    uint32_t row[POLICY_CHUNK_ROWS], zero[POLICY_CHUNK_ROWS];
};

/* ---- acting ---- */

static void mlp_network_act(void *network, const struct policy_rows *rows, uint32_t episode,
                            const uint32_t *environment, const uint32_t *step)
{
    const struct policy_mlp *own = network;
    const struct mlp_batch batch = policy_mlp_batch(rows);
    mlp_act(own->mlp, &batch, own->seed, episode, environment, step, NULL);
}

/* Fills the chunk's probabilities, without dropout. */
static void find_probabilities(struct policy_mlp *network, const struct policy_rows *chunk)
{
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
        mlp_load(network->whole, network->values);
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

static bool mlp_network_choose(void *network, const struct policy_rows *chunk)
{
    struct policy_mlp *own = network;
    const uint32_t actions = own->shape.actions;
    int32_t *chosen = chunk->actions;
    find_probabilities(own, chunk);
    for (uint32_t i = 0; i < chunk->count * actions; i++)
        if (!isfinite(own->probabilities[i]))
            return false;
    for (uint32_t i = 0; i < chunk->count; i++)
        chosen[chunk->row[i]] = (int32_t)most_probable(own->probabilities + (size_t)i * actions, actions);
    return true;
}

/* ---- learning ---- */

static void mlp_network_load(void *network)
{
    struct policy_mlp *own = network;
    mlp_load(own->mlp, own->values);
    own->whole_loaded = false;
}

static double mlp_network_gradient(void *network, const struct policy_rows *chunk, const float *coefficient,
                                   float *gradient)
{
    const struct policy_mlp *own = network;
    const struct mlp_batch batch = policy_mlp_batch(chunk);
    return mlp_gradient(own->mlp, &batch, coefficient, gradient);
}

/* ---- opening ---- */

static void draw_parameters(float *values, const struct policy_config *config)
{
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(list, config);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t element = 0; element < shape_elements(&list[i].shape); element++)
            *values++ = rng_initial_uniform(config->seed, i, element, list[i].bound);
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

static enum status mlp_network_open(void **network, const struct policy_config *config,
                                    const struct dense_normalizer *normalizer, float *values, uint32_t slots,
                                    struct error *error)
{
    struct policy_mlp *own = *network = calloc(1, sizeof *own);
    (void)normalizer;
    (void)slots;
    if (own == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    own->shape = policy_mlp_shape(config);
    own->seed = config->seed;
    own->values = values;
    const enum status status = open_network(own, config->dropout, error);
    if (status != STATUS_OK)
        return status;
    draw_parameters(values, config);
    mlp_network_load(own);
    return STATUS_OK;
}

static void mlp_network_free(void *network)
{
    struct policy_mlp *own = network;
    mlp_free(own->mlp);
    mlp_free(own->whole);
    free(own->observations);
    free(own->probabilities);
    free(own->masks);
    free(own->drawn);
    free(own);
}

const struct flat_network policy_mlp_network = {.open = mlp_network_open,
                                                .free = mlp_network_free,
                                                .load = mlp_network_load,
                                                .act = mlp_network_act,
                                                .choose = mlp_network_choose,
                                                .gradient = mlp_network_gradient,
                                                .any_thread = true};
