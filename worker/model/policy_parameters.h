/* The policy's parameters by name and shape, as PyTorch's module of the same network has them: the tutorial's
 * own module, or Stable-Baselines3's ActorCriticPolicy (kernels/policy/dense_parameters.h). Pure. */
#ifndef WORKER_MODEL_POLICY_PARAMETERS_H
#define WORKER_MODEL_POLICY_PARAMETERS_H

#include "kernels/policy/mlp_batch.h"
#include "kernels/tensor.h"
#include "worker/model/policy_config.h"

enum { POLICY_PARAMETERS = 4 /* the tutorial's */, POLICY_PARAMETERS_MAX = 24, POLICY_NAME_BYTES = 48 };

struct policy_parameter {
    char name[POLICY_NAME_BYTES]; /* "affine1.weight" */
    struct shape shape;
    double bound; /* begins uniform in ±bound: 1 / sqrt(fan-in), for weight and bias alike, as PyTorch's
                     Linear and Conv2d, unless the configuration says otherwise; a Gaussian's log_std has 0 */
};

/* All of them, in the order in which a flat array has them. Returns how many there are. */
uint32_t policy_parameters(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                           const struct policy_config *config);

/* The four of the tutorial's network. */
void policy_mlp_parameters(struct policy_parameter out[POLICY_PARAMETERS], const struct mlp_shape *shape);

#endif
