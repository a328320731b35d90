/* PPO's objective of a minibatch: its losses, and their gradients at log-probability, entropy and value.
 *
 *     surrogate_begin(&m, &objective, &rows);
 *     for each chunk of at most SURROGATE_ROWS_MAX rows: evaluate the network, judge, pull at the network
 *     for each chunk, in order: surrogate_add(&m.sums, …)
 *     losses = surrogate_losses(&m);
 *
 *     rho_i = exp(log P_i - log P_old_i)
 *     L_policy = -mean min(rho A, clip(rho, 1 - e, 1 + e) A)          (Schulman et al., arXiv 1707.06347)
 *     L_value  = mean (v - R)^2
 *     L = L_policy - c_e mean H + c_v L_value
 *
 * A is the advantage, R the return. With a bound e_v on the value's step, v is replaced by
 * v_old + clip(v - v_old, -e_v, e_v) (Stable-Baselines3's clip_range_vf). `halved` is CleanRL's value loss:
 * half of it, and of a clipped value the greater of the clipped and the plain square. `plain` is A2C's policy
 * loss, -mean log P A, which does not look at rho. The KL divergence of the old policy from the new one is
 * estimated by mean (rho - 1 - log rho) (Schulman, "Approximating KL divergence", 2020).
 *
 * Where the clipped side is the smaller one, and where a clipped value is outside of its bounds, the gradient
 * is 0. On a bound, and where both sides are equal, the gradient is the plain one's.
 *
 * rho comes from the policy's own exp (kernels/lanes/exp_log_tanh.h); rho of an unchanged policy is exactly
 * 1. All else is in double, row by row: the same bits on every instruction set.
 *
 * Nothing allocates or blocks. Threads may judge different chunks at once, each into sums of its own. */
#ifndef KERNELS_POLICY_SURROGATE_H
#define KERNELS_POLICY_SURROGATE_H

#include "kernels/base/status.h"
#include "kernels/policy/dense.h"

#include <stdbool.h>
#include <stdint.h>

enum { SURROGATE_ROWS_MAX = 256 }; /* of a chunk */

struct surrogate_objective {
    double clip;                                   /* e; INFINITY: the ratio is not clipped */
    double value_clip;                             /* e_v; INFINITY: the value is not clipped */
    double value_coefficient, entropy_coefficient; /* c_v, c_e */
    bool halved, plain;
};

/* A minibatch: row i of it is row `row[i]` of the arrays, which the caller owns. */
struct surrogate_rows {
    uint32_t count;
    const uint32_t *row;                     /* (count) */
    const float *log_probabilities, *values; /* (rows) when the action was drawn */
    const float *advantages, *returns;       /* (rows) */
    bool normalizes; /* the advantages: (A - mean) / (std + 1e-8), std with n - 1, as Stable-Baselines3 */
};

/* Sums over rows. `value` is the value loss before c_v; `clipped` counts the rows with |rho - 1| > e. */
struct surrogate_sums {
    double policy, value, entropy, kl;
    uint64_t clipped;
};

struct dense_lanes;

/* Members are this module's, but for `sums`: the caller adds the chunks' sums to it. */
struct surrogate {
    const struct dense_lanes *lanes;
    const struct surrogate_objective *objective;
    struct surrogate_rows rows;
    double shift, factor; /* an advantage A is learned from as (A - shift) * factor */
    struct surrogate_sums sums;
};

/* `objective` and the rows' arrays outlive *m. */
void surrogate_begin(struct surrogate *m, const struct surrogate_objective *objective,
                     const struct surrogate_rows *rows);

/* Adds a chunk of the minibatch to *sums and writes its pulls: `count` rows, with the indices `row`, of which
 * the network now says log_probability and entropy, or value; (count) each. At most SURROGATE_ROWS_MAX rows
 * (asserted). */
void surrogate_judge_actions(const struct surrogate *m, uint32_t count, const uint32_t *row,
                             const float *log_probability, const float *entropy,
                             const struct dense_pulls *pulls, struct surrogate_sums *sums);
void surrogate_judge_values(const struct surrogate *m, uint32_t count, const uint32_t *row,
                            const float *value, const struct dense_pulls *pulls, struct surrogate_sums *sums);

void surrogate_add(struct surrogate_sums *to, const struct surrogate_sums *more);

/* Means over the minibatch. The last two are 0: they are for the caller who takes the step. */
struct surrogate_losses {
    double loss, policy, value, entropy; /* `value` is the value loss before its coefficient */
    double kl, clip_fraction;
    double gradient_norm; /* before it was clipped; 0 where no step was taken */
    bool stepped;
};

/* By m->sums. */
struct surrogate_losses surrogate_losses(const struct surrogate *m);

#endif
