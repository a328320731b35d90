/* The policy's parameters by name and shape, as PyTorch's module of the same network has them. Pure. */
#ifndef WORKER_MODEL_POLICY_PARAMETERS_H
#define WORKER_MODEL_POLICY_PARAMETERS_H

#include "kernels/policy/mlp_batch.h"
#include "kernels/tensor.h"

enum { POLICY_PARAMETERS = 4 };

struct policy_parameter {
    const char *name; /* "affine1.weight" */
    struct shape shape;
    double bound; /* begins uniform in ±bound: 1 / sqrt(fan-in), for weight and bias alike, as PyTorch's
                     Linear */
};

/* The four of them, in the order in which mlp's flat array has them. */
void policy_parameters(struct policy_parameter out[POLICY_PARAMETERS], const struct mlp_shape *shape);

#endif
