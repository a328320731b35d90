/* A policy's values on the host, under the names that checkpoints have for them (worker/checkpoint).
 *
 * A copy: a checkpoint is written from it on another thread while the policy learns. One thread at a time. */
#ifndef WORKER_MODEL_POLICY_VALUES_H
#define WORKER_MODEL_POLICY_VALUES_H

#include "kernels/params/optim.h"
#include "worker/model/policy.h"

struct policy_values {
    struct backend *backend; /* kernels/backend.h */
    struct params *params; /* the parameters, as policy_parameters lists them: "affine1.weight", …; then the
                              normalizer's statistics */
    uint32_t count;        /* of the parameters */
    struct params *moments; /* Adam's: "affine1.weight.exp_avg", "affine1.weight.exp_avg_sq", …; of RMSprop
                               "affine1.weight.square_avg", and buffers, which no file has */
    uint64_t steps;         /* of the optimizer */
};

/* The three arrays of floats that each of a policy's parameters has. */
enum policy_array { POLICY_VALUES, POLICY_FIRST_MOMENT, POLICY_SECOND_MOMENT, POLICY_ARRAYS };

/* What stands behind the parameters, of a policy that normalizes: "obs_rms.mean", "obs_rms.var". */
enum policy_statistic { POLICY_MEAN, POLICY_VARIANCE };

/* *values is all zero. `config` is one that policy_new takes. All of the copy is zero at first. Afterwards,
 * and after a failure, policy_values_close. STATUS_NO_MEMORY. */
enum status policy_values_open(struct policy_values *values, const struct policy_config *config,
                               struct error *error);
void policy_values_close(struct policy_values *values);

/* The copy of an array of parameter `index` (policy_parameters), in canonical layout. */
float *policy_values_at(const struct policy_values *values, uint32_t index, enum policy_array array);

/* The copy of a statistic of the observations' elements. Of a policy that normalizes. */
float *policy_values_statistic(const struct policy_values *values, enum policy_statistic statistic);

/* Of a policy on a backend: copies the values and the optimizer's state into *values, and back. Waits for a
 * GPU. */
enum status policy_values_take(struct policy_values *values, struct params *params,
                               struct optimizer *optimizer, struct error *error);
enum status policy_values_give(const struct policy_values *values, struct params *params,
                               struct optimizer *optimizer, struct error *error);

/* Copies all values of the policy into *values; and gives the policy those of *values. Both have one
 * configuration. Waits for a GPU; on a CPU neither can fail, and nothing is allocated. */
enum status policy_save(struct policy *policy, struct policy_values *values, struct error *error);
enum status policy_restore(struct policy *policy, const struct policy_values *values, struct error *error);

#endif
