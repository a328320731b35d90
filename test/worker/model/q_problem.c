/* Random transitions. Linked into the tests that ask for it. */
#include "test/worker/model/q_problem.h"

#include "test/kernels/policy/mlp_problem.h"

#include <math.h>

void q_problem_init(struct q_problem *problem, enum policy_learning learning, uint32_t rows, uint64_t seed)
{
    static const uint32_t choices[] = {Q_ACTIONS};
    static const double low[Q_ACTIONS] = {-2, 0, -1}, high[Q_ACTIONS] = {2, 1, 3};
    const struct environment_space choice = {.dtype = ENVIRONMENT_I32, .choices = choices},
                                   floats = {.dtype = ENVIRONMENT_F32,
                                             .rank = 1,
                                             .shape = {Q_ACTIONS},
                                             .low = low,
                                             .high = high};
    *problem = (struct q_problem){.state = seed, .batch.count = rows};
    problem->config =
        (struct policy_config){.learning = learning,
                               .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {Q_INPUTS}},
                               .action = learning == POLICY_DQN ? choice : floats,
                               .layers = 2,
                               .width = {16, 8},
                               .seed = seed,
                               .adam = ADAM_DEFAULTS,
                               .q = {.gamma = 0.98,
                                     .tau = 0.02,
                                     .batch_rows = rows,
                                     .max_norm = 10,
                                     .critics = 2,
                                     .critic_layers = 2,
                                     .critic_width = {16, 8},
                                     .learns_entropy = true,
                                     .entropy_coefficient = 1,
                                     .target_entropy = -Q_ACTIONS,
                                     .target_interval = 1,
                                     .policy_delay = 2,
                                     .target_noise = 0.2,
                                     .target_noise_clip = 0.5}};
}

/* ---- batches ---- */

static void draw_observations(struct q_problem *problem, void *to)
{
    const bool bytes = problem->config.observation.dtype == ENVIRONMENT_U8;
    for (uint32_t i = 0; i < problem->batch.count * Q_INPUTS; i++) {
        const float number = mlp_problem_number(&problem->state);
        if (bytes)
            ((uint8_t *)to)[i] = (uint8_t)floor(((double)number + 1) * 128);
        else
            ((float *)to)[i] = number * 2;
    }
}

static void draw_actions(struct q_problem *problem)
{
    const uint32_t rows = problem->batch.count;
    if (problem->config.learning == POLICY_DQN) {
        for (uint32_t i = 0; i < rows; i++)
            problem->actions.choices[i] =
                (int32_t)floor(((double)mlp_problem_number(&problem->state) + 1) / 2 * Q_ACTIONS);
        return;
    }
    for (uint32_t i = 0; i < rows * Q_ACTIONS; i++)
        problem->actions.floats[i] = mlp_problem_number(&problem->state);
}

void q_problem_draw(struct q_problem *problem)
{
    const uint32_t rows = problem->batch.count;
    draw_observations(problem, &problem->observations);
    draw_observations(problem, &problem->next_observations);
    draw_actions(problem);
    for (uint32_t i = 0; i < rows; i++)
        problem->rewards[i] = mlp_problem_number(&problem->state) * 3;
    for (uint32_t i = 0; i < rows; i++)
        problem->terminated[i] = mlp_problem_number(&problem->state) < -0.6f;
    for (uint32_t i = 0; i < rows && problem->has_weights; i++)
        problem->weights[i] = mlp_problem_number(&problem->state) + 1;
    for (uint32_t i = 0; i < rows * Q_ACTIONS && problem->has_masks; i++)
        problem->next_allowed[i] =
            mlp_problem_number(&problem->state) > 0 || i % Q_ACTIONS == i / Q_ACTIONS % Q_ACTIONS;
    problem->batch =
        (struct policy_transitions){.count = rows,
                                    .observations = &problem->observations,
                                    .next_observations = &problem->next_observations,
                                    .actions = &problem->actions,
                                    .next_allowed = problem->has_masks ? problem->next_allowed : NULL,
                                    .rewards = problem->rewards,
                                    .terminated = problem->terminated,
                                    .weights = problem->has_weights ? problem->weights : NULL};
}
