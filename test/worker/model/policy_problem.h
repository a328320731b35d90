/* A problem of the tutorial's network (test/kernels/policy/mlp_problem.h) as a policy's, for tests. */
#ifndef TEST_WORKER_MODEL_POLICY_PROBLEM_H
#define TEST_WORKER_MODEL_POLICY_PROBLEM_H

#include "test/kernels/policy/mlp_problem.h"
#include "worker/model/policy.h"

static const uint32_t policy_problem_choices[MLP_ACTIONS_MAX + 1] = {0, 1,  2,  3,  4,  5,  6,  7, 8,
                                                                     9, 10, 11, 12, 13, 14, 15, 16};

/* The members of a struct policy_config for one hidden layer over a vector, as initializers. */
#define POLICY_PROBLEM_SPACES(inputs, hidden, actions)                                                       \
    .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {inputs}},                                 \
    .action = {.dtype = ENVIRONMENT_I32, .choices = &policy_problem_choices[actions]}, .layers = 1,          \
    .width = {hidden}

static inline struct policy_config policy_problem_config(struct mlp_shape shape, double dropout,
                                                         uint64_t seed)
{
    return (struct policy_config){POLICY_PROBLEM_SPACES(shape.inputs, shape.hidden, shape.actions),
                                  .dropout = dropout, .seed = seed,
                                  .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}};
}

static inline struct policy_rows policy_problem_rows(const struct mlp_batch *batch)
{
    return (struct policy_rows){.count = batch->count,
                                .row = batch->row,
                                .observations = batch->observations,
                                .actions = batch->actions,
                                .dropout = batch->masks};
}

/* policy_act and policy_learn on the problem's rows. */
static inline enum status policy_problem_act(struct policy *policy, const struct mlp_problem *problem,
                                             uint32_t episode, struct error *error)
{
    const struct policy_rows rows = policy_problem_rows(&problem->batch);
    return policy_act(policy, &rows, episode, problem->environment, problem->step, error);
}

static inline enum status policy_problem_learn(struct policy *policy, const struct mlp_problem *problem,
                                               uint32_t episode, double *loss, policy_progress *progress,
                                               void *context, struct error *error)
{
    const struct policy_rows rows = policy_problem_rows(&problem->batch);
    return policy_learn(policy, &rows, problem->coefficient, episode, loss, progress, context, error);
}

#endif
