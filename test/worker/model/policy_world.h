/* Problems of a policy with any head, for the tests of policies: random rows, and a bandit to learn. */
#ifndef TEST_WORKER_MODEL_POLICY_WORLD_H
#define TEST_WORKER_MODEL_POLICY_WORLD_H

#include "worker/model/policy.h"

#include <stddef.h>

enum world_head {
    WORLD_CHOICE,         /* one of 5 */
    WORLD_MASKED,         /* one of 7, some of which are forbidden */
    WORLD_CHOICES,        /* of 3, 2 and 4 */
    WORLD_MASKED_CHOICES, /* of 3 and 4 */
    WORLD_FLOATS,         /* 3 */
    WORLD_HEADS
};

struct policy_world {
    struct policy_config config;
    uint32_t components, choices; /* of an action; the sum of all */
    size_t elements;              /* of an observation */
    struct policy_rows batch;     /* of all rows, which the arrays below are */
    uint32_t *row;                /* a permutation, so that nothing passes that ignores it */
    uint32_t *environment, *step;
    void *observations, *actions;
    uint8_t *allowed; /* NULL: all are */
    float *coefficient;
    uint64_t state; /* of the generator */
};

/* Random rows with allowed actions, which are no policy's. The configuration has no hidden layer, and Adam's
 * defaults but for lr 0.01. Ends the program when memory runs out. */
void policy_world_init(struct policy_world *world, enum world_head head, struct environment_space observation,
                       uint32_t rows, uint64_t seed);
void policy_world_fini(struct policy_world *world);

/* On `backend`, or NULL; the test fails if it cannot be opened. */
struct policy *policy_world_open(const struct policy_world *world, struct backend *backend);

/* policy_act and policy_learn on all rows in an episode; the test fails if they do. Returns L. */
void policy_world_act(const struct policy_world *world, struct policy *policy, uint32_t episode);
double policy_world_learn(const struct policy_world *world, struct policy *policy);

size_t policy_world_action_bytes(const struct policy_world *world);

/* Whether every action of the batch is one that the mask allows; of floats true. */
bool policy_world_is_allowed(const struct policy_world *world);

/* A bandit. Each row shows one of two pictures; each asks for another action, one that is allowed. An
 * action's reward is the share of its components that are as asked for, or less the mean squared distance.
 * Draws new rows. */
void policy_world_show(struct policy_world *world);

/* The rows' mean reward. With `coefficients`, these become the rewards less their mean, over the rows. */
double policy_world_reward(struct policy_world *world, bool coefficients);

/* Shows, acts and learns `updates` times. Returns the mean reward of the most probable actions then. */
double policy_world_train(struct policy_world *world, struct policy *policy, uint32_t updates);

#endif
