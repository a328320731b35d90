/* The policy of an agent: how a row acts on it, and how a rollout moves its parameters.
 *
 * The tutorial's network, affine1 -> dropout -> ReLU -> affine2 -> softmax (kernels/policy/mlp.h), with Adam.
 * On a CPU it is flat arrays, the fused kernel and one Adam (policy.c), and needs no backend. On a GPU it
 * acts by one captured launch and learns on the tape (policy_gpu.c).
 *
 * One thread. After policy_new nothing here allocates. */
#ifndef WORKER_MODEL_POLICY_H
#define WORKER_MODEL_POLICY_H

#include "kernels/adam.h"
#include "kernels/base/status.h"
#include "kernels/policy/mlp_batch.h"

#include <stdbool.h>

struct policy_config {
    struct mlp_shape shape;
    double dropout; /* probability that a unit is dropped, 0 <= p < 1 */
    uint64_t seed;  /* of the first parameters and of every draw */
    struct adam_settings adam;
    /* A GPU's: */
    uint32_t environments; /* a launch has at most one row of each */
    uint32_t rows_max;     /* of a rollout */
    bool one_size;         /* launches are all alike, each environment at its own place */
};

/* Called during learning: after every MLP_CHUNK_ROWS rows on a CPU, between two operations on a GPU. */
typedef void policy_progress(void *context);

struct backend;
struct policy;

/* `backend` NULL: on the CPU. Otherwise one with launch_new, which outlives the policy. STATUS_INVALID names
 * the bound that the configuration breaks; STATUS_NO_MEMORY. */
enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error);
void policy_free(struct policy *policy);

/* mlp_act with the policy's parameters and seed; a GPU leaves the masks as they are. Waits for the result. On
 * a CPU it cannot fail. */
enum status policy_act(struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error);

/* One step on L = sum_i -coefficient[i] * log P(action of row i) over all rows of the batch, in its order,
 * with the masks that acted: forward again, backward, Adam. *loss is L under the old parameters. Row index r
 * is step r / environments of environment r % environments in `episode` (by which a GPU draws its masks
 * again). `progress` may be NULL. STATUS_INTERNAL: the loss or a gradient is not finite; the text names the
 * first tensor that holds a NaN or an infinity, and the parameters and moments are as before. */
enum status policy_learn(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error);

#endif
