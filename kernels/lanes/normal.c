/* Fills arrays with normal draws, a group at a time. Any thread. */
#include "kernels/lanes/normal.h"

#include "kernels/lanes/isa.h"

#include <assert.h>
#include <string.h>

normal_group *normal_choose(void)
{
    static normal_group *const groups[ISA_COUNT] = ISA_EACH(normal_group);
    return groups[isa_or_baseline()];
}

void normal_fill(normal_group *draw, float *out, uint64_t count, const struct rng_key *key,
                 enum rng_stream stream, uint32_t block)
{
    const uint32_t word = (uint32_t)stream << RNG_STREAM_SHIFT | block;
    const uint64_t whole = count / NORMAL_GROUP;
    assert(whole <= UINT32_MAX / 16);
    for (uint64_t group = 0; group < whole; group++)
        draw(out + group * NORMAL_GROUP, key, word, (uint32_t)group);
    if (count % NORMAL_GROUP != 0) {
        float last[NORMAL_GROUP];
        draw(last, key, word, (uint32_t)whole);
        memcpy(out + whole * NORMAL_GROUP, last, count % NORMAL_GROUP * sizeof *out);
    }
}
