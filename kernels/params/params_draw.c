/* First values. They are drawn in float32 on the host and uploaded, so that a seed means the same numbers on
 * every backend, the double one included. */
#include "kernels/params/params_internal.h"

#include "kernels/base/rng.h"

#include <assert.h>
#include <stdlib.h>

void params_count_from(struct params *params, uint32_t first)
{
    assert(!params->built);
    params->first = first;
}

static void draw_uniform(float *values, uint32_t count, struct rng_key key, double bound)
{
    for (uint32_t element = 0; element < count; element++)
        values[element] = rng_initial_uniform(key.seed, key.episode, element, bound);
}

static void draw_normal(float *values, uint32_t count, struct rng_key key, double deviation)
{
    for (uint32_t element = 0; element < count; element++) {
        uint32_t words[4];
        key.environment = element;
        rng_block(&key, RNG_INIT, 0, words);
        values[element] = (float)rng_normal(words, deviation);
    }
}

/* `host` has room for the entry. `trained` is its index among the trained ones. */
static enum status begin_entry(struct params *params, struct parameter *parameter, uint64_t seed,
                               uint32_t trained, float *host, struct error *error)
{
    const struct rng_key key = {.seed = seed, .episode = trained};
    uint32_t count = (uint32_t)shape_elements(&parameter->tensor.shape);
    switch (parameter->init.kind) {
    case INIT_CONSTANT:
        return backend_fill(params->backend, &parameter->tensor, parameter->init.value, error);
    case INIT_UNIFORM:
        draw_uniform(host, count, key, parameter->init.value);
        break;
    case INIT_NORMAL:
        draw_normal(host, count, key, parameter->init.value);
        break;
    }
    return backend_upload(params->backend, &parameter->tensor, DTYPE_F32, host, error);
}

/* The first values of the entries in [first, end). `host` has room for the largest. */
static enum status begin_entries(struct params *params, uint64_t seed, uint32_t first, uint32_t end,
                                 float *host, struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t trained = params->first;
    for (uint32_t i = 0; i < end && status == STATUS_OK; i++) {
        struct parameter *parameter = params->entries[i];
        if (i >= first && parameter->kind == PARAMETER_COUNTER)
            parameter->counter = (int64_t)parameter->init.value;
        else if (i >= first)
            status = begin_entry(params, parameter, seed, trained, host, error);
        trained += parameter->kind == PARAMETER_TRAINED;
    }
    return status;
}

enum status params_begin(struct params *params, uint64_t seed, uint32_t first, uint32_t end,
                         struct error *error)
{
    assert(params->laid_out && first <= end && end <= params->count);
    size_t largest = 0;
    for (uint32_t i = first; i < end; i++) {
        const struct parameter *parameter = params->entries[i];
        assert(parameter->kind == PARAMETER_COUNTER || parameter->tensor.data != NULL);
        size_t count = shape_elements(&parameter->tensor.shape);
        largest = count > largest ? count : largest;
    }
    float *host = malloc((largest + 1) * sizeof *host);
    if (host == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to draw %zu initial values", largest);
    enum status status = begin_entries(params, seed, first, end, host, error);
    free(host);
    return status;
}
