/* Shuffles an epoch, and draws each image's crop and mirror. Pure functions; the loader's thread calls them.
 */
#include "worker/data/sampling.h"

#include "kernels/base/rng.h"

#include <assert.h>

void sampling_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t epoch, uint32_t lap)
{
    struct rng_key key = {.seed = seed, .step = (uint32_t)epoch, .episode = (uint32_t)(epoch >> 32)};
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i-- > 1;) {
        uint32_t words[4];
        key.environment = i / 2;
        rng_block(&key, RNG_SHUFFLE, lap, words);
        const uint32_t *drawn = words + i % 2 * 2;
        const uint32_t other = (uint32_t)rng_below(drawn[0], drawn[1], (uint64_t)i + 1);
        const uint32_t sample = order[i];
        order[i] = order[other];
        order[other] = sample;
    }
}

uint32_t sampling_epoch_steps(uint32_t count, uint32_t trainers, uint32_t batch)
{
    return (uint32_t)(count / ((uint64_t)trainers * batch));
}

struct sampling_place sampling_place(uint64_t step, uint32_t trainer, uint32_t trainers, uint32_t batch,
                                     uint32_t count)
{
    const uint32_t steps = sampling_epoch_steps(count, trainers, batch);
    assert(steps > 0 && trainer < trainers);
    const uint32_t place = (uint32_t)(step % steps);
    return (struct sampling_place){.epoch = step / steps, .first = (place * trainers + trainer) * batch};
}

struct sampling_view sampling_view(uint64_t seed, uint32_t sample, uint64_t epoch, uint32_t lap,
                                   uint32_t crop, bool flip)
{
    const struct rng_key key = {
        .seed = seed, .environment = sample, .step = (uint32_t)epoch, .episode = (uint32_t)(epoch >> 32)};
    const uint64_t places = 2 * (uint64_t)crop + 1;
    uint32_t words[4];
    rng_block(&key, RNG_AUGMENT, lap, words);
    return (struct sampling_view){.y = (uint32_t)(words[1] * places >> 32),
                                  .x = (uint32_t)(words[2] * places >> 32),
                                  .mirror = flip && words[0] >> 31 != 0};
}
