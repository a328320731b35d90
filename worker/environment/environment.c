/* What an observer needs of CartPole beside its physics: step counts, truncation, the end of an episode. The
 * states are a slab of doubles, one row per state value, one column per environment. */
#include "worker/environment/environment.h"

#include "kernels/base/rng.h"
#include "worker/environment/cartpole.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const float step_reward = 1.0f; /* of every step, the last included */

static const struct environment_spec cartpole = {.name = CARTPOLE_NAME,
                                                 .observation_size = CARTPOLE_STATE_SIZE,
                                                 .action_count = CARTPOLE_ACTIONS,
                                                 .steps_max = CARTPOLE_STEPS_MAX};

const char *const environment_names[] = {CARTPOLE_NAME, NULL};

struct environments {
    uint64_t seed;
    uint32_t first;
    uint32_t count;
    double *states;       /* (CARTPOLE_STATE_SIZE, count) */
    uint32_t *step_count; /* (count), since the reset */
    bool *ended;          /* (count), or never reset */
};

const struct environment_spec *environment_find(const char *name)
{
    return strcmp(name, cartpole.name) == 0 ? &cartpole : NULL;
}

enum status environments_new(struct environments **out, uint64_t seed, uint32_t first, uint32_t count,
                             struct error *error)
{
    *out = NULL;
    struct environments *environments = calloc(1, sizeof *environments);
    if (environments == NULL)
        goto no_memory;
    *environments = (struct environments){.seed = seed, .first = first, .count = count};
    environments->states = calloc((size_t)count * CARTPOLE_STATE_SIZE, sizeof *environments->states);
    environments->step_count = calloc(count, sizeof *environments->step_count);
    environments->ended = malloc(count * sizeof *environments->ended);
    if (environments->states == NULL || environments->step_count == NULL || environments->ended == NULL)
        goto no_memory;
    for (uint32_t i = 0; i < count; i++)
        environments->ended[i] = true;
    *out = environments;
    return STATUS_OK;

no_memory:
    environments_free(environments);
    return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %u environments", cartpole.name, count);
}

void environments_free(struct environments *environments)
{
    if (environments == NULL)
        return;
    free(environments->ended);
    free(environments->step_count);
    free(environments->states);
    free(environments);
}

void environments_reset(struct environments *environments, uint32_t index, uint32_t episode, uint32_t step)
{
    assert(index < environments->count);
    struct rng_key key = {.seed = environments->seed,
                          .environment = environments->first + index,
                          .step = step,
                          .episode = episode};
    cartpole_reset(environments->states, environments->count, index, &key);
    environments->step_count[index] = 0;
    environments->ended[index] = false;
}

void environments_step(struct environments *environments, uint32_t n, const uint32_t *indices,
                       const uint8_t *actions, float *rewards, uint8_t *flags)
{
    for (uint32_t i = 0; i < n; i++) {
        assert(indices[i] < environments->count);
        assert(!environments->ended[indices[i]]);
        assert(actions[i] < cartpole.action_count);
    }
    cartpole_step(environments->states, environments->count, n, indices, actions, flags);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = indices[i];
        unsigned flag = flags[i] ? ENVIRONMENT_TERMINATED : 0;
        if (++environments->step_count[index] >= cartpole.steps_max)
            flag |= ENVIRONMENT_TRUNCATED;
        environments->ended[index] = flag != 0;
        flags[i] = (uint8_t)flag;
        rewards[i] = step_reward;
    }
}

void environments_observe(const struct environments *environments, uint32_t n, const uint32_t *indices,
                          float *observations)
{
    for (uint32_t i = 0; i < n; i++)
        assert(indices[i] < environments->count);
    cartpole_observe(environments->states, environments->count, n, indices, observations);
}
