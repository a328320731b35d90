/* The oracle of kernels/policy/dense.h: the same definitions in plain C and double, one number at a time.
 *
 * Only tests call it. It shares no code with the kernels: draws come from rng_block one row at a time, sums
 * run in ascending order, exp, log and tanh are libm's. Parameters are given in double, in the flat array's
 * order, so that a finite difference can move one of them by less than a float's ulp. */
#ifndef TEST_ORACLE_DENSE_REF_H
#define TEST_ORACLE_DENSE_REF_H

#include "kernels/base/rng.h"
#include "kernels/policy/dense.h"

struct dense_ref_row {
    double z[DENSE_OUTPUTS_MAX]; /* (outputs) logits or means */
    double h[DENSE_WIDTH_MAX];   /* (features), where the deviations depend on the state */
    double p[DENSE_OUTPUTS_MAX]; /* (outputs) Categorical: probabilities, 0 where the mask forbids */
    double log_probability, entropy, value;
};

/* Row `row` of the batch's arrays, under its own action. */
void dense_ref_evaluate(const struct dense_shape *shape, const double *parameters,
                        const struct dense_batch *batch, uint32_t row, struct dense_ref_row *out);

/* The choice that the row's uniform picks for component c among `out`'s probabilities. *margin is how far the
 * uniform lies from the nearest border between two choices: a float kernel may differ where it is tiny. */
uint32_t dense_ref_choice(const struct dense_shape *shape, const struct dense_ref_row *out,
                          const struct rng_key *key, uint32_t c, double *margin);

/* Component d of the row's drawn action. Where the deviations depend on the state, the key's step is the one
 * at which the noise was drawn. */
double dense_ref_action(const struct dense_shape *shape, const double *parameters,
                        const struct dense_ref_row *out, const struct rng_key *key, uint32_t d);

/* Returns L, the sum over the batch's rows of each pull times its result, and adds its gradient to `gradient`
 * (in the parameters' order; NULL: only L). A pull that is NULL is 0. */
double dense_ref_gradient(const struct dense_shape *shape, const double *parameters,
                          const struct dense_batch *batch, const struct dense_pulls *pulls, double *gradient);

#endif
