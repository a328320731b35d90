/* The policy's kernels, a table for each instruction set. kernels/policy/mlp.c picks one and packs the
 * weights.
 *
 * Private to kernels/policy/mlp.c and its tests; kernels/policy/mlp.h is the manual. */
#ifndef KERNELS_POLICY_MLP_INTERNAL_H
#define KERNELS_POLICY_MLP_INTERNAL_H

#include "kernels/policy/mlp.h"

#include <stdbool.h>

enum { MLP_LANES = 16 };

/* The weights as the kernels read them. Unit j stands in lane j mod 16 of block j / 16; a block is
 *     b1 (16), W1 of input 0 (16), …, of the last input (16), W2 of action 0 (16), …, of the last (16)
 * in one piece, so that a row walks through memory once. Units beyond `hidden` are zeros. */
struct mlp_packed {
    struct mlp_shape shape;
    uint32_t blocks;           // of 16 units, each with one word of a row's mask
    uint32_t draw_bound;       // a 32-bit word with the unit's 16 bits on top is above it: kept
    uint16_t last_word;        // the bits of the last word that are units
    bool draws;                // false: the dropout is 0, every unit is kept and none drawn
    float scale;               // 1 / (1 - p)
    float b2[MLP_ACTIONS_MAX]; // zeros beyond `actions`
    float *weights;            // (blocks, 1 + inputs + actions, 16), 64-byte aligned
};

/* Floats in one block of `weights`. */
static inline size_t mlp_packed_stride(const struct mlp_shape *shape)
{
    return (size_t)(1 + shape->inputs + shape->actions) * MLP_LANES;
}

struct mlp_lanes {
    void (*act)(const struct mlp_packed *packed, const struct mlp_batch *batch, uint64_t seed,
                uint32_t episode, const uint32_t *environment, const uint32_t *step, float *probabilities);
    double (*gradient)(const struct mlp_packed *packed, const struct mlp_batch *batch,
                       const float *coefficient, float *gradient);
    /* What the kernels compute exp, log and fma by, 16 values at a time; for the tests. */
    void (*exp)(const float x[MLP_LANES], float y[MLP_LANES]);
    void (*log)(const float x[MLP_LANES], float y[MLP_LANES]);
    void (*fma)(const float a[MLP_LANES], const float b[MLP_LANES], const float c[MLP_LANES],
                float y[MLP_LANES]);
};

extern const struct mlp_lanes mlp_lanes_baseline, mlp_lanes_avx2, mlp_lanes_avx512;

#endif
