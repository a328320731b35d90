/* Picks the policy's implementation, and passes every call on to it. */
#include "worker/model/policy.h"

#include "worker/model/policy_internal.h"

enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error)
{
    return backend == NULL ? policy_cpu_new(out, config, error) : policy_gpu_new(out, config, backend, error);
}

void policy_free(struct policy *policy)
{
    if (policy != NULL)
        policy->kind->free(policy);
}

enum status policy_act(struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error)
{
    return policy->kind->act(policy, batch, episode, environment, step, error);
}

enum status policy_learn(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error)
{
    return policy->kind->learn(policy, batch, coefficient, episode, loss, progress, context, error);
}

enum status policy_read(struct policy *policy, float *parameters, struct error *error)
{
    return policy->kind->read(policy, parameters, error);
}

enum status policy_write(struct policy *policy, const float *parameters, struct error *error)
{
    return policy->kind->write(policy, parameters, error);
}
