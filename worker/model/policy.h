/* The policy as a model: named parameters, how they begin, how a row acts on them, how a rollout moves them.
 *
 * The tutorial's network, affine1 -> dropout -> ReLU -> affine2 -> softmax (kernels/policy/mlp.h), with Adam.
 * It is written once as operations of the tape (policy_forward). On the CPU kernels/policy/mlp.c computes the
 * same in one fused pass a row: it acts, and in learning it stands on the tape as one node. A backend that
 * captures the policy (policy_open in kernels/kernels.h: a GPU) acts by one launch, and learns by the tape's
 * operations (worker/model/policy_batch.h).
 *
 * An agent process has one. It belongs to one thread at a time, and its backend with it: the coalescer thread
 * acts with it, and hands it to the learner thread for a policy_learn. After policy_new nothing here
 * allocates or blocks. */
#ifndef WORKER_MODEL_POLICY_H
#define WORKER_MODEL_POLICY_H

#include "kernels/params/params.h"
#include "kernels/policy/mlp.h"
#include "kernels/tape/tape.h"

#include <stddef.h>
#include <stdint.h>

struct policy_config {
    struct mlp_shape shape;
    double dropout; /* probability that a unit is dropped, 0 <= p < 1 */
    uint64_t seed;  /* of the first parameters and of every draw */
    struct adam_settings adam;
    uint32_t environments; /* a launch has at most one row of each; below */
    uint32_t rows_max;     /* of a rollout */
    bool one_size;         /* a GPU's launches: all alike, each environment at its own place */
};

/* ---- the network ---- */

/* Its parameters, in mlp's order. */
struct policy_network {
    struct parameter *weight1, *bias1; /* affine1: (hidden, inputs), (hidden) */
    struct parameter *weight2, *bias2; /* affine2: (actions, hidden), (actions) */
};

/* Registers them; before params_build. They begin as PyTorch's Linear does, uniform in ±1 / sqrt(fan-in) for
 * weight and bias alike. STATUS_NO_MEMORY. */
enum status policy_register(struct policy_network *network, const struct mlp_shape *shape,
                            struct params *params, struct error *error);

/* observations (rows, inputs) -> log-probabilities (rows, actions). `rows` (rows, 3) int32 holds each row's
 * (environment, step, episode), which key its dropout together with the seed. On a tape that does not record
 * nothing is dropped. */
struct variable *policy_forward(const struct policy_network *network, struct tape *tape,
                                struct variable *observations, struct variable *rows, double dropout,
                                uint64_t seed);

/* ---- the policy of an agent ---- */

struct policy;

/* `backend` holds the parameters and outlives the policy. STATUS_INVALID names the bound that the
 * configuration breaks; STATUS_NO_MEMORY. */
enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error);
void policy_free(struct policy *policy);

/* mlp_act with the policy's parameters and seed. Waits for the result. On a CPU it cannot fail. */
enum status policy_act(struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error);

/* Tells that work goes on; called after every MLP_CHUNK_ROWS rows. */
typedef void policy_progress(void *context);

/* One step on L = sum_i -coefficient[i] * log P(action of row i) over all rows of the batch, in its order,
 * with the masks that acted: forward again, backward, Adam. *loss is L under the old parameters. Row index r
 * is step r / environments of environment r % environments in `episode` (by which a GPU draws its masks
 * again). `progress` may be NULL. STATUS_INTERNAL: the loss or a gradient is not finite; the text names the
 * first tensor that holds a NaN or an infinity, and the parameters and moments are as before. */
enum status policy_learn(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error);

/* The parameters: to read, to save, and to write before a policy_take_over. */
struct params *policy_params(struct policy *policy);

/* Acts from now on with what the params hold. The optimizer's moments stay. */
enum status policy_take_over(struct policy *policy, struct error *error);

#endif
