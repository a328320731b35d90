/* The policy as a model: named parameters, how they begin, how a row acts on them, how a rollout moves them.
 *
 * The tutorial's network, affine1 -> dropout -> ReLU -> affine2 -> softmax (kernels/mlp.h), with Adam. An
 * agent process has one. It belongs to one thread at a time: the coalescer thread acts with it, and hands
 * it to the learner thread for a policy_learn. After policy_new nothing here allocates or blocks. */
#ifndef WORKER_MODEL_POLICY_H
#define WORKER_MODEL_POLICY_H

#include "kernels/adam.h"
#include "kernels/base/status.h"
#include "kernels/mlp.h"

#include <stddef.h>
#include <stdint.h>

struct policy_config {
    struct mlp_shape shape;
    double dropout; /* probability that a unit is dropped, 0 <= p < 1 */
    uint64_t seed;  /* of the first parameters and of every draw */
    struct adam_settings adam;
};

/* One tensor of the slab. */
struct policy_parameter {
    const char *name;       /* as in PyTorch's state_dict: "affine1.weight" */
    uint32_t rows, columns; /* columns 0: a vector of `rows` */
    size_t offset, count;   /* floats from the slab's begin, floats */
};

enum { POLICY_PARAMETERS = 4 };

struct policy;

/* Parameters begin as PyTorch's Linear does, uniform in ±1 / sqrt(fan-in) for weight and bias alike, drawn
 * from stream RNG_INIT and keyed by (seed, element, index of the parameter).
 * STATUS_INVALID names the bound that the configuration breaks; STATUS_NO_MEMORY. */
enum status policy_new(struct policy **out, const struct policy_config *config, struct error *error);
void policy_free(struct policy *policy);

/* mlp_act with the policy's parameters and seed. */
void policy_act(const struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                const uint32_t *environment, const uint32_t *step);

/* Tells that work goes on; called after every MLP_CHUNK_ROWS rows. */
typedef void policy_progress(void *context);

/* One step on L = sum_i -coefficient[i] * log P(action of row i) over all rows of the batch, in its order,
 * with the masks that acted: forward again, backward, Adam. *loss is L under the old parameters.
 * `progress` may be NULL. STATUS_INTERNAL: the loss or a gradient is not finite; the text names the first
 * parameter concerned, and the parameters and moments are as before. */
enum status policy_learn(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         double *loss, policy_progress *progress, void *context, struct error *error);

/* Parameter `index` of POLICY_PARAMETERS, in slab order; its values are policy_slab + offset. */
const struct policy_parameter *policy_parameter(const struct policy *policy, uint32_t index);

/* The parameter with this name, or NULL. */
const struct policy_parameter *policy_find(const struct policy *policy, const char *name);

/* All parameters; valid until policy_free, changed by policy_learn and policy_set. */
const float *policy_slab(const struct policy *policy);

/* Replaces all parameters, in slab order. The optimizer's moments stay. */
void policy_set(struct policy *policy, const float *slab);

/* The instruction set in use, as mlp_isa says it. */
const char *policy_isa(const struct policy *policy);

#endif
