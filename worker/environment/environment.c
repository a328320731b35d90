/* What all kinds of environments share: names, step counts, truncation, the end of an episode.
 *
 * The physics of one kind is three functions over a slab of doubles, one row per state value, one column per
 * environment. This file owns the slab and does not know the meaning of its rows. */
#include "worker/environment/environment.h"

#include "kernels/base/rng.h"
#include "worker/environment/cartpole.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One kind of environment. `states` is (state_size, count) in all three; see cartpole.h. */
struct environment_kind {
    struct environment_spec spec;
    uint32_t state_size; /* doubles */
    float reward;        /* of every step, the last included */
    void (*reset)(double *states, uint32_t count, uint32_t index, const struct rng_key *key);
    void (*step)(double *states, uint32_t count, uint32_t n, const uint32_t *indices, const uint8_t *actions,
                 uint8_t *terminated);
    void (*observe)(const double *states, uint32_t count, uint32_t n, const uint32_t *indices,
                    float *observations);
};

static const struct environment_kind kinds[] = {
    {.spec = {.name = CARTPOLE_NAME,
              .observation_size = CARTPOLE_STATE_SIZE,
              .action_count = CARTPOLE_ACTIONS,
              .steps_max = CARTPOLE_STEPS_MAX},
     .state_size = CARTPOLE_STATE_SIZE,
     .reward = 1.0f,
     .reset = cartpole_reset,
     .step = cartpole_step,
     .observe = cartpole_observe},
};

enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

const char *const environment_names[] = {CARTPOLE_NAME, NULL};
_Static_assert(sizeof environment_names / sizeof environment_names[0] == KIND_COUNT + 1,
               "a name for each kind");

struct environments {
    const struct environment_kind *kind;
    uint64_t seed;
    uint32_t first;
    uint32_t count;
    double *states;       /* (state_size, count) */
    uint32_t *step_count; /* (count), since the reset */
    bool *ended;          /* (count), or never reset */
};

const struct environment_spec *environment_find(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (strcmp(kinds[i].spec.name, name) == 0)
            return &kinds[i].spec;
    return NULL;
}

static const struct environment_kind *kind_of(const struct environment_spec *spec)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (spec == &kinds[i].spec)
            return &kinds[i];
    return NULL;
}

enum status environments_new(struct environments **out, const struct environment_spec *spec, uint64_t seed,
                             uint32_t first, uint32_t count, struct error *error)
{
    const struct environment_kind *kind = kind_of(spec);
    assert(kind != NULL);
    *out = NULL;
    if (count == 0)
        return error_set(error, STATUS_INVALID, "%s: expected at least 1 environment, got 0", spec->name);
    struct environments *environments = calloc(1, sizeof *environments);
    if (environments == NULL)
        goto no_memory;
    *environments = (struct environments){.kind = kind, .seed = seed, .first = first, .count = count};
    environments->states = calloc((size_t)count * kind->state_size, sizeof *environments->states);
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
    return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %u environments", spec->name, count);
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
    environments->kind->reset(environments->states, environments->count, index, &key);
    environments->step_count[index] = 0;
    environments->ended[index] = false;
}

void environments_step(struct environments *environments, uint32_t n, const uint32_t *indices,
                       const uint8_t *actions, float *rewards, uint8_t *flags)
{
    const struct environment_kind *kind = environments->kind;
    for (uint32_t i = 0; i < n; i++) {
        assert(indices[i] < environments->count);
        assert(!environments->ended[indices[i]]);
        assert(actions[i] < kind->spec.action_count);
    }
    kind->step(environments->states, environments->count, n, indices, actions, flags);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = indices[i];
        unsigned flag = flags[i] ? ENVIRONMENT_TERMINATED : 0;
        if (++environments->step_count[index] >= kind->spec.steps_max)
            flag |= ENVIRONMENT_TRUNCATED;
        environments->ended[index] = flag != 0;
        flags[i] = (uint8_t)flag;
        rewards[i] = kind->reward;
    }
}

void environments_observe(const struct environments *environments, uint32_t n, const uint32_t *indices,
                          float *observations)
{
    for (uint32_t i = 0; i < n; i++)
        assert(indices[i] < environments->count);
    environments->kind->observe(environments->states, environments->count, n, indices, observations);
}
