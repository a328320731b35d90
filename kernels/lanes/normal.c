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

void normal_fill_from(normal_group *draw, float *out, uint64_t begin, uint64_t count,
                      const struct rng_key *key, enum rng_stream stream, uint32_t block)
{
    const uint32_t word = (uint32_t)stream << RNG_STREAM_SHIFT | block;
    assert((begin + count) / NORMAL_GROUP <= UINT32_MAX / 16);
    for (uint64_t at = begin, n; at < begin + count; at += n, out += n) {
        const uint64_t from = at % NORMAL_GROUP, left = begin + count - at;
        float group[NORMAL_GROUP];
        n = left < NORMAL_GROUP - from ? left : NORMAL_GROUP - from;
        draw(n == NORMAL_GROUP ? out : group, key, word, (uint32_t)(at / NORMAL_GROUP));
        if (n < NORMAL_GROUP)
            memcpy(out, group + from, n * sizeof *out);
    }
}

void normal_fill(normal_group *draw, float *out, uint64_t count, const struct rng_key *key,
                 enum rng_stream stream, uint32_t block)
{
    normal_fill_from(draw, out, 0, count, key, stream, block);
}
