/* The policy's forward and backward as a chain of oneDNN primitives: what kernels/policy/mlp.h does in one
 * pass.
 *
 * A second opinion for a test and the baseline of the benchmark; the daemon does not load oneDNN. The chain
 * is the best that oneDNN 2.6 offers for these layers: dropout's factors and ReLU are fused behind the first
 * inner product, its weights are in the layout it asks for, and every primitive is made once for a fixed
 * number of rows. Dropout arrives as factors, ready made. All of it runs on the calling thread alone. */
#ifndef TEST_BASELINE_MLP_ONEDNN_H
#define TEST_BASELINE_MLP_ONEDNN_H

#include "kernels/base/status.h"
#include "kernels/policy/mlp.h"

struct mlp_onednn;

/* For batches of exactly `rows` rows. Sets the process's number of OpenMP threads to 1. STATUS_NO_MEMORY,
 * or STATUS_INTERNAL with the call that oneDNN refused. */
enum status mlp_onednn_new(struct mlp_onednn **out, const struct mlp_shape *shape, uint32_t rows,
                           struct error *error);
void mlp_onednn_free(struct mlp_onednn *onednn);

/* Takes over the slab's present values; it must stay where it is until the next load. */
enum status mlp_onednn_load(struct mlp_onednn *onednn, const float *parameters);

/* observations: (rows, inputs). keep: (rows, hidden), 0 or 1 / (1 - p). log_probabilities: (rows, actions).
 */
enum status mlp_onednn_forward(struct mlp_onednn *onednn, const float *observations, const float *keep,
                               float *log_probabilities);

/* The forward, then the gradient of L = sum_i -coefficient[i] * log P(actions[i]), which replaces what
 * `gradient` (slab order) held. *loss is L. */
enum status mlp_onednn_gradient(struct mlp_onednn *onednn, const float *observations, const float *keep,
                                const int32_t *actions, const float *coefficient, float *gradient,
                                double *loss);

/* C = A B of n x n matrices by the library's matrix product: the yardstick of what a core can do. */
enum status mlp_onednn_sgemm(uint32_t n, const float *a, const float *b, float *c);

/* The library's version, as "2.6.3". */
const char *mlp_onednn_version(void);

#endif
