/* Draws the tutorial's images and labels. A trainer's loader thread calls this. */
#include "worker/data/synthetic.h"

#include <assert.h>

enum { STEP_BITS_MAX = 55 };

void synthetic_images(normal_group *lanes, float *images, uint64_t count, uint64_t seed, uint64_t step,
                      uint32_t trainer)
{
    const struct rng_key key = {.seed = seed, .step = (uint32_t)step, .episode = trainer};
    assert(step >> STEP_BITS_MAX == 0);
    normal_fill(lanes, images, count, &key, RNG_DATA, (uint32_t)(step >> 32));
}

void synthetic_labels(int32_t *labels, uint32_t count, uint64_t seed, uint32_t trainer, uint32_t classes)
{
    struct rng_key key = {.seed = seed, .episode = trainer};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[4];
        key.environment = i;
        rng_block(&key, RNG_DATA, RNG_BLOCK_MAX, words);
        labels[i] = (int32_t)rng_below(words[0], words[1], classes);
    }
}
