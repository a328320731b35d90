/* The policy of an agent: how a row acts on it, and how a rollout moves its parameters.
 *
 * The tutorial's network, affine1 -> dropout -> ReLU -> affine2 -> softmax (kernels/policy/mlp.h), with Adam.
 * Two implementations stand behind this interface:
 *
 *     policy_cpu.c   flat arrays, the fused kernel and one Adam; needs no backend
 *     policy_gpu.c   acts by one captured launch (policy_open in kernels/kernels.h), learns on the tape
 *
 * One thread. After policy_new nothing here allocates. */
#ifndef WORKER_MODEL_POLICY_H
#define WORKER_MODEL_POLICY_H

#include "kernels/base/status.h"
#include "worker/model/policy_config.h"

struct backend;
struct policy;

/* `backend` NULL: on the CPU. Otherwise one with policy_open, which outlives the policy. STATUS_INVALID names
 * the bound that the configuration breaks; STATUS_NO_MEMORY. */
enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error);
void policy_free(struct policy *policy);

/* mlp_act with the policy's parameters and seed. Waits for the result. On a CPU it cannot fail. */
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

/* Copies all parameters out, or in, as one flat array in mlp's order (worker/model/policy_parameters.h gives
 * names and shapes). Adam's moments stay as they are. */
enum status policy_read(struct policy *policy, float *parameters, struct error *error);
enum status policy_write(struct policy *policy, const float *parameters, struct error *error);

#endif
