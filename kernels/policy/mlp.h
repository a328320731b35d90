/* The tutorial's policy on the CPU: affine, dropout, ReLU, affine, softmax, sample; forward and backward.
 * kernels/policy/dense.h has every other policy of dense layers, and the room's glossary.
 *
 * Every backend includes this header for the shape and the batch.
 *
 * One fused pass per row instead of one library call per layer: at 4 -> 128 -> 2 a row is about 1.3 kFLOP,
 * less than the overhead of a single library primitive (`make bench` shows both). A row's result depends
 * on its own inputs and on nothing else: not on the rows around it, not on their number, not on the
 * instruction set (baseline, AVX2, AVX-512) that the process picked. Every sum over the hidden units runs
 * in 16 lanes (unit j in lane j mod 16, in ascending j) that are then added in one fixed tree; fma is
 * explicit; exp and log are our own polynomials. test/oracle/mlp_ref.h is the oracle in double.
 *
 * Parameters lie in one flat array, in PyTorch's order and shapes:
 *     affine1.weight (hidden, inputs)   affine1.bias (hidden)
 *     affine2.weight (actions, hidden)  affine2.bias (actions)
 *
 * Forward of a row x, with k the unit's keep bit and p the probability to drop:
 *     h = relu(k / (1 - p) * (W1 x + b1));  z = W2 h + b2;  P(a) = exp(z_a - max z) / sum exp(z - max z)
 * Sampling: the smallest a with u < P(0) + … + P(a), u = rng_uniform_float of word 0 of the row's block 0 of
 * stream RNG_ACTION (the last action if rounding leaves none).
 * Keep bits: unit j is kept when its 16 bits are >= round(65536 p). Within its group g = j / 128, with
 * v = (j % 128) / 16, they are half v % 2 (0: low) of word v / 2 of block 16 g + j % 16 of RNG_DROPOUT.
 * Bit j % 16 of mask word j / 16 is the unit's keep bit; bits beyond `hidden` are zero. */
#ifndef KERNELS_POLICY_MLP_H
#define KERNELS_POLICY_MLP_H

#include "kernels/base/status.h"
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

struct mlp; /* the weights, packed for the lanes; only mlp_load changes them */

/* `shape` is within its bounds, and 0 <= dropout < 1 (asserted). STATUS_NO_MEMORY. */
enum status mlp_new(struct mlp **out, const struct mlp_shape *shape, double dropout, struct error *error);
void mlp_free(struct mlp *mlp);

/* Computes with these parameters from now on. Allocates nothing. */
void mlp_load(struct mlp *mlp, const float *parameters);

/* Draws masks, runs the forward, samples. Row i's draws are keyed by (seed, environment[i], step[i],
 * episode). probabilities: (count, actions) or NULL. */
void mlp_act(const struct mlp *mlp, const struct mlp_batch *batch, uint64_t seed, uint32_t episode,
             const uint32_t *environment, const uint32_t *step, float *probabilities);

/* Adds to `gradient`, which has the parameters' order, that of L = sum_i -coefficient[i] * log
 * P(actions[row[i]]) over at most MLP_CHUNK_ROWS rows (asserted), and returns L. The chunk is summed by
 * itself, rows ascending, and added to `gradient` at the end: calling this for consecutive chunks gives one
 * order of summation. log P is log-softmax in float32 (not Categorical's clamped log; they differ only where
 * P < 1.2e-7). */
double mlp_gradient(const struct mlp *mlp, const struct mlp_batch *batch, const float *coefficient,
                    float *gradient);

/* Checks COALESCED_ISA, before a process forks the workers that compute. The policies' kernels do not check
 * it again: a wrong name computes as the baseline.
 * STATUS_INVALID: there is no such instruction set; STATUS_UNAVAILABLE: this processor does not have it. */
enum status mlp_check_isa(struct error *error);

#endif
