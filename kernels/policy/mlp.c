/* Picks the instruction set and packs the weights into lanes. mlp_lanes.c, which is compiled once for each
 * set, computes. */
#include "kernels/policy/mlp.h"

#include "kernels/lanes/isa.h"
#include "kernels/policy/lanes_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mlp {
    struct mlp_packed packed;
    const struct mlp_lanes *lanes;
};

enum status mlp_check_isa(struct error *error)
{
    enum isa isa;
    return isa_choose(&isa, error);
}

enum status mlp_new(struct mlp **out, const struct mlp_shape *shape, double dropout, struct error *error)
{
    assert(shape->inputs >= 1 && shape->inputs <= MLP_INPUTS_MAX);
    assert(shape->hidden >= 1 && shape->hidden <= MLP_HIDDEN_MAX);
    assert(shape->actions >= 1 && shape->actions <= MLP_ACTIONS_MAX && dropout >= 0 && dropout < 1);
    struct mlp *mlp = calloc(1, sizeof *mlp);
    if (mlp == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    mlp->lanes = policy_lanes_choose()->mlp;
    struct mlp_packed *packed = &mlp->packed;
    packed->shape = *shape;
    packed->blocks = mlp_mask_words(shape);
    const uint64_t dropped = (uint64_t)lrint(dropout * 65536); // of 65536
    packed->draws = dropped > 0;
    packed->draw_bound = dropped > 0 ? (uint32_t)((dropped << 16) - 1) : 0;
    packed->last_word = (uint16_t)(0xffffu >> (packed->blocks * POLICY_LANES - shape->hidden));
    packed->scale = (float)(1 / (1 - dropout));
    size_t bytes = packed->blocks * mlp_packed_stride(shape) * sizeof(float);
    packed->weights = aligned_alloc(64, bytes);
    if (packed->weights == NULL) {
        mlp_free(mlp);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu bytes of weights", bytes);
    }
    memset(packed->weights, 0, bytes);
    *out = mlp;
    return STATUS_OK;
}

void mlp_free(struct mlp *mlp)
{
    if (mlp == NULL)
        return;
    free(mlp->packed.weights);
    free(mlp);
}

void mlp_load(struct mlp *mlp, const float *parameters)
{
    struct mlp_packed *packed = &mlp->packed;
    const uint32_t inputs = packed->shape.inputs, hidden = packed->shape.hidden,
                   actions = packed->shape.actions;
    const float *w1 = parameters, *b1 = w1 + (size_t)hidden * inputs, *w2 = b1 + hidden;
    for (uint32_t j = 0; j < hidden; j++) {
        float *unit =
            packed->weights + j / POLICY_LANES * mlp_packed_stride(&packed->shape) + j % POLICY_LANES;
        unit[0] = b1[j];
        for (uint32_t i = 0; i < inputs; i++)
            unit[(1 + i) * POLICY_LANES] = w1[(size_t)j * inputs + i];
        for (uint32_t a = 0; a < actions; a++)
            unit[(1 + inputs + a) * POLICY_LANES] = w2[(size_t)a * hidden + j];
    }
    memcpy(packed->b2, w2 + (size_t)actions * hidden, actions * sizeof(float));
}

void mlp_act(const struct mlp *mlp, const struct mlp_batch *batch, uint64_t seed, uint32_t episode,
             const uint32_t *environment, const uint32_t *step, float *probabilities)
{
    mlp->lanes->act(&mlp->packed, batch, seed, episode, environment, step, probabilities);
}

double mlp_gradient(const struct mlp *mlp, const struct mlp_batch *batch, const float *coefficient,
                    float *gradient)
{
    assert(batch->count <= MLP_CHUNK_ROWS);
    return mlp->lanes->gradient(&mlp->packed, batch, coefficient, gradient);
}
