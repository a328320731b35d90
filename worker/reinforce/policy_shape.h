/* The shape of a job's policy network. Pure. */
#ifndef WORKER_REINFORCE_POLICY_SHAPE_H
#define WORKER_REINFORCE_POLICY_SHAPE_H

#include "kernels/policy/mlp_batch.h"
#include "worker/environment/environments.h"
#include "worker/job/job.h"

static inline struct mlp_shape policy_shape_of(const struct job *job)
{
    return (struct mlp_shape){
        .inputs = CARTPOLE_STATE_SIZE, .hidden = job->policy.hidden, .actions = CARTPOLE_ACTIONS};
}

#endif
