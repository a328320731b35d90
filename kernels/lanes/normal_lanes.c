/* One group of normal draws, compiled once per instruction set. Any thread. */
#include "kernels/lanes/normal.h"

#include "kernels/lanes/normal_pair.h"

/* out[l] and out[16 + l]: the pair of lane l's words. */
LANES_INLINE void store_pair(float *out, vu first, vu second)
{
    vf pair[2];
    lanes_normal_pair(pair, first, second);
    lanes_store(out, pair[0]);
    lanes_store(out + LANES_COUNT, pair[1]);
}

void LANES_NAME(normal_group)(float out[NORMAL_GROUP], const struct rng_key *key, uint32_t word,
                              uint32_t number)
{
    for (uint32_t p = 0; p < LANES_PARTS; p++, out += LANES_WIDTH) {
        vu c[4] = {lanes_set_u32(word), lanes_index(number * LANES_COUNT + p * LANES_WIDTH),
                   lanes_set_u32(key->step), lanes_set_u32(key->episode)};
        lanes_philox(c, (uint32_t)key->seed, (uint32_t)(key->seed >> 32));
        store_pair(out, c[0], c[1]);
        store_pair(out + 2 * LANES_COUNT, c[2], c[3]);
    }
}
