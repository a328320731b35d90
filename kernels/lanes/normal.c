/* Normal draws in groups; any thread. */
#include "kernels/lanes/normal.h"

#include "kernels/lanes/isa.h"
#include "kernels/lanes/normal_lanes.h"

#include <assert.h>
#include <string.h>

enum status normal_choose(const struct normal_lanes **out, struct error *error)
{
    static const struct normal_lanes *const lanes[ISA_COUNT] = {[ISA_BASELINE] = &normal_lanes_baseline,
                                                                [ISA_AVX2] = &normal_lanes_avx2,
                                                                [ISA_AVX512] = &normal_lanes_avx512};
    enum isa isa;
    enum status status = isa_choose(&isa, error);
    if (status == STATUS_OK)
        *out = lanes[isa];
    return status;
}

void normal_fill(const struct normal_lanes *lanes, float *out, uint64_t count, const struct rng_key *key,
                 enum rng_stream stream, uint32_t block)
{
    const uint32_t word = (uint32_t)stream << RNG_STREAM_SHIFT | block;
    const uint64_t whole = count / NORMAL_GROUP;
    assert(whole <= UINT32_MAX / 16);
    for (uint64_t group = 0; group < whole; group++)
        lanes->group(out + group * NORMAL_GROUP, key, word, (uint32_t)group);
    if (count % NORMAL_GROUP != 0) {
        float last[NORMAL_GROUP];
        lanes->group(last, key, word, (uint32_t)whole);
        memcpy(out + whole * NORMAL_GROUP, last, count % NORMAL_GROUP * sizeof *out);
    }
}
