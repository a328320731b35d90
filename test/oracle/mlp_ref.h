/* The oracle of kernels/policy/mlp.h: the same definitions in plain C and double, one number at a time.
 *
 * Only tests and benchmarks call it. It shares no code with the kernels: masks and uniforms come from
 * rng_block one unit at a time, sums run in ascending order, exp and log are libm's. Parameters are given
 * in double, in slab order, so that a finite difference can move one of them by less than a float's ulp. */
#ifndef TEST_ORACLE_MLP_REF_H
#define TEST_ORACLE_MLP_REF_H

#include "kernels/base/rng.h"
#include "kernels/policy/mlp.h"

/* The row's keep bits, mlp_mask_words(shape) words. */
void mlp_ref_draw(const struct mlp_shape *shape, double dropout, const struct rng_key *key, uint16_t *mask);

/* One row x (inputs) under `mask`. probabilities, log_probabilities: (actions), either may be NULL. */
void mlp_ref_forward(const struct mlp_shape *shape, double dropout, const double *parameters, const float *x,
                     const uint16_t *mask, double *probabilities, double *log_probabilities);

/* The action that the row's uniform picks among `probabilities`. *margin (or NULL) is how far the uniform
 * lies from the nearest border between two actions: a float kernel may differ where it is tiny. */
uint32_t mlp_ref_sample(const struct mlp_shape *shape, const double *probabilities, const struct rng_key *key,
                        double *margin);

/* Returns L = sum_i -coefficient[i] * log P(action of row i) and adds its gradient to `gradient` (slab
 * order; NULL: only L). */
double mlp_ref_gradient(const struct mlp_shape *shape, double dropout, const double *parameters,
                        const struct mlp_batch *batch, const float *coefficient, double *gradient);

#endif
