/* What the policy's kernels compute in lanes: a table of functions for each instruction set. Private to
 * kernels/policy/ and its tests; dense.h, squashed.h and mlp.h are the manuals. */
#ifndef KERNELS_POLICY_LANES_INTERNAL_H
#define KERNELS_POLICY_LANES_INTERNAL_H

#include "kernels/lanes/product_lanes.h"
#include "kernels/policy/dense.h"
#include "kernels/policy/mlp.h"

enum { POLICY_LANES = 16 };

/* ---- dense layers: activations, heads, sums ---- */

/* A Gaussian's deviations, each array (components) by 16. */
struct dense_sigma {
    float *sigma, *inverse, *shift; // sigma, 1 / sigma, log sigma + log(2 pi) / 2
    float entropy;
};

/* State-dependent deviations: sigma = exp(log_std), (features, components), and its squares as they are and
 * as b of a product; what that begins with, the 1e-6. */
struct dense_exploration {
    float *sigma, *squares, *panels, *begin;
};

/* Rows at the policy's head, DENSE_CHUNK_ROWS at most. */
struct dense_head {
    const struct dense_shape *shape;
    uint32_t outputs;
    struct dense_batch batch;
    struct dense_matrix z;           // (rows, outputs) logits or means
    float *scratch;                  // (2, most choices of a component, 16)
    const struct dense_sigma *sigma; // of a Gaussian
    /* Where its deviations depend on the state: */
    const struct dense_exploration *exploration;
    uint32_t features;
    struct dense_matrix features_at; // (rows, features)
    struct dense_matrix variance;    // (rows, components)
};

struct dense_lanes {
    /* h = f(h), of whole blocks. */
    void (*activate)(enum dense_activation activation, struct dense_matrix h, uint32_t rows, uint32_t blocks);
    /* dh = dh f'(x), by h = f(x): dh (1 - h^2), or dh where h > 0. */
    void (*slope)(enum dense_activation activation, struct dense_matrix dh, struct dense_matrix h,
                  uint32_t rows, uint32_t blocks);
    /* to[r * row_step + c * column_step] += sums[r][c], or with `adds` false: = 0 + sums[r][c] */
    void (*add)(float *to, size_t row_step, size_t column_step, struct dense_matrix sums, uint32_t rows,
                uint32_t columns, bool adds);

    /* dense_act, dense_evaluate, and the head's part of dense_gradient, which writes dL/dz; with a Gaussian
     * also each row's part of dL/d log_std or, where that depends on the state, (dL/d log_std_fd) / (h_f^2
     * sigma_fd^2), which is the same for all f. */
    void (*act)(const struct dense_head *head, const struct dense_draw *draw, float *log_probability);
    void (*evaluate)(const struct dense_head *head, float *log_probability, float *entropy);
    void (*pull)(const struct dense_head *head, const struct dense_pulls *pulls, struct dense_matrix dz,
                 struct dense_matrix dlog_sigma);

    /* 16 numbers, each by itself. */
    void (*exp)(const float x[POLICY_LANES], float y[POLICY_LANES]);
};

/* ---- squashed Gaussians ---- */

/* Numbers of all rows and components in flat arrays, each by itself. */
struct squashed_numbers {
    size_t count;     // a multiple of POLICY_LANES
    float clip_mean;  // infinity: not clipped
    float inner_mean; // the greatest mean that takes a gradient
    float *mean;
    float *log_std;  // diagonal
    float *noise;    // n; state-dependent: e
    float *variance; // state-dependent: v
    float *action;
    float *log_probability; // each component's part
    float *d_action;
    float d_log_probability;
    float *d_mean, *d_log_std;   // diagonal
    float *d_noise, *d_variance; // state-dependent: dL/de, 2 dL/dv
};

struct squashed_lanes {
    /* squashed_act and squashed_pull: of a diagonal Gaussian, and with deviations that depend on the state.
     */
    void (*act)(const struct squashed_numbers *numbers);
    void (*act_exploring)(const struct squashed_numbers *numbers);
    void (*pull)(const struct squashed_numbers *numbers);
    void (*pull_exploring)(const struct squashed_numbers *numbers);
    /* exp or expln of `count` numbers, a multiple of POLICY_LANES, and its slope. */
    void (*deviations)(const float *log_std, size_t count, bool expln, float *std, float *slope);
};

/* ---- the tutorial's network ---- */

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
    return (size_t)(1 + shape->inputs + shape->actions) * POLICY_LANES;
}

struct mlp_lanes {
    void (*act)(const struct mlp_packed *packed, const struct mlp_batch *batch, uint64_t seed,
                uint32_t episode, const uint32_t *environment, const uint32_t *step, float *probabilities);
    double (*gradient)(const struct mlp_packed *packed, const struct mlp_batch *batch,
                       const float *coefficient, float *gradient);
};

/* ---- the choice ---- */

extern const struct dense_lanes dense_lanes_baseline, dense_lanes_avx2, dense_lanes_avx512;
extern const struct squashed_lanes squashed_lanes_baseline, squashed_lanes_avx2, squashed_lanes_avx512;
extern const struct mlp_lanes mlp_lanes_baseline, mlp_lanes_avx2, mlp_lanes_avx512;

struct policy_lanes {
    const struct dense_lanes *dense;
    const struct mlp_lanes *mlp;
    const struct squashed_lanes *squashed;
    product_function *product;
};

/* The tables of the instruction set in use: isa_or_baseline's, as mlp_check_isa has checked it. */
const struct policy_lanes *policy_lanes_choose(void);

#endif
