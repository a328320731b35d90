/* The policy on a CPU as a struct, and the functions of the policy on a GPU: private to policy.c,
 * policy_gpu.c and tests. */
#ifndef WORKER_MODEL_POLICY_INTERNAL_H
#define WORKER_MODEL_POLICY_INTERNAL_H

#include "worker/model/policy.h"
#include "worker/model/policy_parameters.h"
#include "worker/model/policy_values.h"

struct policy {
    struct policy_gpu *gpu; /* NULL: on the CPU, with what follows */
    struct mlp *mlp;        /* holds a packed copy of `values` */
    struct mlp_shape shape;
    uint64_t seed;
    struct adam_settings adam;
    uint64_t steps;                            /* of Adam */
    size_t count;                              /* floats in each of the arrays below */
    float *values, *gradient, *first, *second; /* the parameters, their gradient, Adam's moments */
    struct policy_parameter parameters[POLICY_PARAMETERS];
};

/* The functions of policy.h and policy_values.h with the same names. */
enum status policy_gpu_new(struct policy_gpu **out, const struct policy_config *config,
                           struct backend *backend, struct error *error);
void policy_gpu_free(struct policy_gpu *gpu);
enum status policy_gpu_act(struct policy_gpu *gpu, const struct mlp_batch *batch, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error);
enum status policy_gpu_learn(struct policy_gpu *gpu, const struct mlp_batch *batch, const float *coefficient,
                             uint32_t episode, double *loss, policy_progress *progress, void *context,
                             struct error *error);
enum status policy_gpu_save(struct policy_gpu *gpu, struct policy_values *values, struct error *error);
enum status policy_gpu_restore(struct policy_gpu *gpu, const struct policy_values *values,
                               struct error *error);

#endif
