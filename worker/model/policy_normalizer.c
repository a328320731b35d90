/* Normalizes a policy's observations by their running mean and variance. The agent's thread. */
#include "worker/model/policy_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Stable-Baselines3's VecNormalize.epsilon. */
static const double epsilon = 1e-8;

enum status policy_normalizer_open(struct policy *policy, const struct policy_config *config,
                                   struct error *error)
{
    struct policy_normalizer *n = &policy->normalizer;
    if (!config->normalizes)
        return STATUS_OK;
    n->mean = calloc(3 * (size_t)policy->inputs, sizeof *n->mean);
    if (n->mean == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the statistics of %u elements",
                         policy->inputs);
    n->variance = n->mean + policy->inputs;
    n->scale = n->variance + policy->inputs;
    n->dense = (struct dense_normalizer){.mean = n->mean, .scale = n->scale, .limit = (float)config->clip};
    for (uint32_t i = 0; i < policy->inputs; i++)
        n->variance[i] = n->scale[i] = 1;
    return STATUS_OK;
}

void policy_normalizer_close(struct policy *policy)
{
    free(policy->normalizer.mean);
}

const struct dense_normalizer *policy_normalizer(const struct policy *policy)
{
    return policy->normalizer.mean != NULL ? &policy->normalizer.dense : NULL;
}

void policy_normalize(struct policy *policy, const float *mean, const float *variance)
{
    struct policy_normalizer *n = &policy->normalizer;
    memcpy(n->mean, mean, policy->inputs * sizeof *mean);
    memcpy(n->variance, variance, policy->inputs * sizeof *variance);
    for (uint32_t i = 0; i < policy->inputs; i++)
        n->scale[i] = (float)(1 / sqrt((double)variance[i] + epsilon));
}

void policy_normalizer_save(const struct policy *policy, struct policy_values *values)
{
    const struct policy_normalizer *n = &policy->normalizer;
    if (n->mean == NULL)
        return;
    memcpy(policy_values_statistic(values, POLICY_MEAN), n->mean, policy->inputs * sizeof *n->mean);
    memcpy(policy_values_statistic(values, POLICY_VARIANCE), n->variance,
           policy->inputs * sizeof *n->variance);
}

void policy_normalizer_restore(struct policy *policy, const struct policy_values *values)
{
    if (policy->normalizer.mean != NULL)
        policy_normalize(policy, policy_values_statistic(values, POLICY_MEAN),
                         policy_values_statistic(values, POLICY_VARIANCE));
}
