/* What tests see of a policy on the CPU: its parameters, gradient and moments. */
#ifndef TEST_WORKER_MODEL_POLICY_INSIDE_H
#define TEST_WORKER_MODEL_POLICY_INSIDE_H

#include "worker/model/policy_flat.h"

static inline struct policy_flat *policy_inside(const struct policy *policy)
{
    return policy->self;
}

/* Computes with the values that a test wrote. */
static inline void policy_inside_load(const struct policy *policy)
{
    const struct policy_flat *flat = policy->self;
    flat->ops->load(flat->network);
}

#endif
