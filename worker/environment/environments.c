/* What an observer needs of CartPole beside its physics: step counts, truncation, the end of an episode. The
 * states are a slab of doubles, one row per state value, one column per environment. */
#include "worker/environment/environments.h"

#include <stdlib.h>

static const float step_reward = 1.0f; /* of every step, the last included */

struct environments {
    uint64_t seed;
    uint32_t first;
    uint32_t count;
    double *states;       /* (CARTPOLE_STATE_SIZE, count) */
    uint32_t *step_count; /* (count), since the reset */
};

enum status environments_new(struct environments **out, uint64_t seed, uint32_t first, uint32_t count,
                             struct error *error)
{
    struct environments *environments = calloc(1, sizeof *environments);
    *out = NULL;
    if (environments == NULL)
        goto no_memory;
    *environments = (struct environments){.seed = seed, .first = first, .count = count};
    environments->states = calloc((size_t)count * CARTPOLE_STATE_SIZE, sizeof *environments->states);
    environments->step_count = calloc(count, sizeof *environments->step_count);
    if (environments->states == NULL || environments->step_count == NULL)
        goto no_memory;
    *out = environments;
    return STATUS_OK;

no_memory:
    environments_free(environments);
    return error_set(error, STATUS_NO_MEMORY, CARTPOLE_NAME ": no memory for %u environments", count);
}

void environments_free(struct environments *environments)
{
    if (environments == NULL)
        return;
    free(environments->step_count);
    free(environments->states);
    free(environments);
}

void environments_reset(struct environments *environments, uint32_t index, uint32_t episode, uint32_t step)
{
    struct rng_key key = {.seed = environments->seed,
                          .environment = environments->first + index,
                          .step = step,
                          .episode = episode};
    cartpole_reset(environments->states, environments->count, index, &key);
    environments->step_count[index] = 0;
}

void environments_step(struct environments *environments, uint32_t n, const uint32_t *indices,
                       const uint8_t *actions, float *rewards, uint8_t *flags)
{
    cartpole_step(environments->states, environments->count, n, indices, actions, flags);
    for (uint32_t i = 0; i < n; i++) {
        unsigned flag = flags[i] ? ENVIRONMENT_TERMINATED : 0;
        if (++environments->step_count[indices[i]] >= CARTPOLE_STEPS_MAX)
            flag |= ENVIRONMENT_TRUNCATED;
        flags[i] = (uint8_t)flag;
        rewards[i] = step_reward;
    }
}

void environments_observe(const struct environments *environments, uint32_t n, const uint32_t *indices,
                          float *observations)
{
    cartpole_observe(environments->states, environments->count, n, indices, observations);
}
