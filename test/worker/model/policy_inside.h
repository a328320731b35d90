/* What tests see of a policy on the CPU: its parameters, gradient and moments. */
#ifndef TEST_WORKER_MODEL_POLICY_INSIDE_H
#define TEST_WORKER_MODEL_POLICY_INSIDE_H

#include "worker/model/policy_arrays.h"
#include "worker/model/policy_internal.h"

static inline struct policy_arrays *policy_inside(const struct policy *policy)
{
    return policy->self;
}

/* Computes with the values that a test wrote. */
static inline void policy_inside_load(const struct policy *policy)
{
    policy_cpu_load(policy->self);
}

#endif
