/* What stands behind worker/model/policy.h: a table of functions, and the two constructors. */
#ifndef WORKER_MODEL_POLICY_INTERNAL_H
#define WORKER_MODEL_POLICY_INTERNAL_H

#include "kernels/base/status.h"
#include "worker/model/policy_config.h"

struct backend;
struct policy;

/* The functions of policy.h with the same names. */
struct policy_kind {
    void (*free)(struct policy *policy);
    enum status (*act)(struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error);
    enum status (*learn)(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error);
    enum status (*read)(struct policy *policy, float *parameters, struct error *error);
    enum status (*write)(struct policy *policy, const float *parameters, struct error *error);
};

/* The first member of either implementation's struct. */
struct policy {
    const struct policy_kind *kind;
};

enum status policy_cpu_new(struct policy **out, const struct policy_config *config, struct error *error);
enum status policy_gpu_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                           struct error *error);

#endif
