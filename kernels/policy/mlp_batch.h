/* The policy's shape, and a batch of its rows: the types that kernels/policy/mlp.h and its lanes share. */
#ifndef KERNELS_POLICY_MLP_BATCH_H
#define KERNELS_POLICY_MLP_BATCH_H

#include <stddef.h>
#include <stdint.h>

enum {
    MLP_INPUTS_MAX = 16,
    MLP_HIDDEN_MAX = 1024,
    MLP_ACTIONS_MAX = 16,
    MLP_CHUNK_ROWS = 256, /* rows that mlp_gradient sums in one go; see there */
};

struct mlp_shape {
    uint32_t inputs, hidden, actions;
};

/* uint16_t words in one row's mask: hidden / 16, rounded up. */
static inline uint32_t mlp_mask_words(const struct mlp_shape *shape)
{
    return (shape->hidden + 15) / 16;
}

/* A batch: row i of it is row `row[i]` of the arrays below, which the caller owns. */
struct mlp_batch {
    uint32_t count;
    const uint32_t *row;       /* (count) index into the arrays */
    const float *observations; /* (rows, inputs) */
    uint16_t *masks;           /* (rows, mask words): written by mlp_act, read by mlp_gradient */
    int32_t *actions;          /* (rows): written by mlp_act, read by mlp_gradient */
};

#endif
