/* PPO's objective of a chunk of rows: its losses, and what they pull at log-probability, entropy and value.
 *
 *     rho_i = exp(log P_i - log P_old_i)
 *     L_policy = -mean min(rho A, clip(rho, 1 - e, 1 + e) A)          (Schulman et al., arXiv 1707.06347)
 *     L_value  = mean (v - R)^2
 *     L = L_policy - c_e mean H + c_v L_value
 *
 * A is the advantage, normalised or not; R the return. With a bound e_v on the value's step, v is replaced by
 * v_old + clip(v - v_old, -e_v, e_v) (Stable-Baselines3's clip_range_vf). `halved` is CleanRL's value loss:
 * half of it, and of a clipped value the greater of the clipped and the plain square. `plain` is A2C's policy
 * loss, -mean log P A, which does not look at rho. The KL divergence of the old policy from the
 * new one is estimated by mean (rho - 1 - log rho) (Schulman, "Approximating KL divergence", 2020).
 *
 * Where the clipped side is the smaller one, and where a clipped value is outside of its bounds, the gradient
 * is 0; on a bound, and where both sides are equal, it is the plain one's.
 *
 * rho comes from the policy's own exp (kernels/lanes/exp_log_tanh.h); rho of an unchanged policy is exactly
 * 1. All else is in double, row by row: the same bits on every instruction set. Pure functions. */
#ifndef KERNELS_POLICY_SURROGATE_H
#define KERNELS_POLICY_SURROGATE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SURROGATE_ROWS_MAX = 256 }; /* of a chunk */

struct surrogate_objective {
    double clip;                                   /* e; INFINITY: the ratio is not clipped */
    double value_clip;                             /* e_v; INFINITY: the value is not clipped */
    double value_coefficient, entropy_coefficient; /* c_v, c_e */
    bool halved, plain;
};

/* The rows of a chunk. Arrays are (count) floats, in the chunk's order; those of a network that is not asked
 * for are not read. */
struct surrogate_rows {
    uint32_t count;
    const float *log_probability, *entropy, *value; /* now */
    const float *old_log_probability, *old_value;   /* when the action was drawn */
    const float *advantage, *returns;
};

/* Sums over rows; a minibatch's mean is the sum over its rows, divided by their number. `value` is the value
 * loss before c_v, and `clipped` counts the rows with |rho - 1| > e. */
struct surrogate_sums {
    double policy, value, entropy, kl;
    uint64_t clipped;
};

/* dL/d of each row, each (count). NULL: not wanted. */
struct surrogate_pulls {
    float *log_probability, *entropy, *value;
};

struct surrogate;

/* Errors: isa_choose's; STATUS_NO_MEMORY. */
enum status surrogate_new(struct surrogate **out, struct error *error);
void surrogate_free(struct surrogate *surrogate);

/* Add the chunk to *sums, and write the pulls of a minibatch of `batch` rows: at the policy network, which
 * reads log-probabilities, entropies and advantages; and at the value network, which reads values and
 * returns. At most SURROGATE_ROWS_MAX rows (asserted). Any thread. */
void surrogate_policy(const struct surrogate *surrogate, const struct surrogate_objective *objective,
                      const struct surrogate_rows *rows, uint32_t batch, struct surrogate_sums *sums,
                      const struct surrogate_pulls *pulls);
void surrogate_value(const struct surrogate_objective *objective, const struct surrogate_rows *rows,
                     uint32_t batch, struct surrogate_sums *sums, const struct surrogate_pulls *pulls);

#endif
