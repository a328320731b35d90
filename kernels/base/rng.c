/* Computes Philox blocks with Random123, and normal draws. Pure; any thread. */
#include "kernels/base/rng.h"

#include <Random123/philox.h>
#include <math.h>

void rng_block(const struct rng_key *key, enum rng_stream stream, uint32_t block, uint32_t words[4])
{
    philox4x32_ctr_t counter = {
        {(uint32_t)stream << RNG_STREAM_SHIFT | block, key->environment, key->step, key->episode}};
    philox4x32_key_t seed = {{(uint32_t)key->seed, (uint32_t)(key->seed >> 32)}};
    philox4x32_ctr_t drawn = philox4x32(counter, seed);
    for (int i = 0; i < 4; i++)
        words[i] = drawn.v[i];
}

float rng_initial_uniform(uint64_t seed, uint32_t parameter, uint32_t element, double bound)
{
    const struct rng_key key = {.seed = seed, .environment = element, .episode = parameter};
    uint32_t words[4];
    rng_block(&key, RNG_INIT, 0, words);
    return (float)(bound * (2 * (double)rng_uniform_float(words[0]) - 1));
}

double rng_normal(const uint32_t words[4], double deviation)
{
    const double two_pi = 6.283185307179586476925;
    double radius = sqrt(-2 * log(1 - rng_uniform_double(words[0], words[1]))); // 1 - u is never 0
    double angle = two_pi * rng_uniform_double(words[2], words[3]);
    return deviation * radius * cos(angle);
}
