/* A policy that learns from a replay buffer, and batches of random transitions for it, for tests. The batches
 * are those of test/golden/off_policy.py. */
#ifndef TEST_WORKER_MODEL_Q_PROBLEM_H
#define TEST_WORKER_MODEL_Q_PROBLEM_H

#include "worker/model/policy.h"

enum { Q_INPUTS = 5, Q_ACTIONS = 3, Q_ROWS_MAX = 300 };

struct q_problem {
    struct policy_config config;
    bool has_weights, has_masks;     /* whether draws have them */
    struct policy_transitions batch; /* of the last draw; its arrays are the members below */
    union {
        float floats[Q_ROWS_MAX * Q_INPUTS];
        uint8_t bytes[Q_ROWS_MAX * Q_INPUTS];
    } observations, next_observations;
    union {
        float floats[Q_ROWS_MAX * Q_ACTIONS];
        int32_t choices[Q_ROWS_MAX];
    } actions;
    float rewards[Q_ROWS_MAX], weights[Q_ROWS_MAX];
    uint8_t terminated[Q_ROWS_MAX], next_allowed[Q_ROWS_MAX * Q_ACTIONS];
    uint64_t state; /* of the generator, mlp_problem_number */
};

/* Observations of 5 floats; 3 choices, or 3 floats in -2..2, 0..1 and -1..3. Layers of 16 and 8 units, two
 * critics, and the defaults of off_policy.py. The batches have `rows` rows. */
void q_problem_init(struct q_problem *problem, enum policy_learning learning, uint32_t rows, uint64_t seed);

/* Draws the next batch. */
void q_problem_draw(struct q_problem *problem);

#endif
