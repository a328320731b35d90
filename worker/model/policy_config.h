/* What the agent's policy is made of; its implementations share it. */
#ifndef WORKER_MODEL_POLICY_CONFIG_H
#define WORKER_MODEL_POLICY_CONFIG_H

#include "kernels/adam.h"
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

#endif
