/* Normal draws, compiled once per instruction set; any thread. */
#include "kernels/lanes/normal.h"

#include "kernels/lanes/lanes.h"

/* (floor(word / 2) + 1/2) / 2^31 in float32: from 2^-32, which is normal and has a logarithm, to 1. Small
 * ones keep bits that large ones have no room for. */
LANES_INLINE vf uniform(vu word)
{
    vf half = __builtin_convertvector((vi)(word >> 1), vf);
    return half * 0x1p-31f + 0x1p-32f;
}

/* The sine and cosine of x in [-pi/4, pi/4], by their Taylor series, whose next terms are under 2^-28. */
LANES_INLINE vf sine(vf x)
{
    vf z = x * x;
    vf sum = lanes_fma(z, lanes_set(1.0f / 362880), lanes_set(-1.0f / 5040));
    sum = lanes_fma(z, sum, lanes_set(1.0f / 120));
    sum = lanes_fma(z, sum, lanes_set(-1.0f / 6));
    return lanes_fma(x * z, sum, x);
}

LANES_INLINE vf cosine(vf x)
{
    vf z = x * x;
    vf sum = lanes_fma(z, lanes_set(-1.0f / 3628800), lanes_set(1.0f / 40320));
    sum = lanes_fma(z, sum, lanes_set(-1.0f / 720));
    sum = lanes_fma(z, sum, lanes_set(1.0f / 24));
    sum = lanes_fma(z, sum, lanes_set(-0.5f));
    return lanes_fma(z, sum, lanes_set(1.0f));
}

LANES_INLINE vf choose(vu mask, vf yes, vf no)
{
    return (vf)((mask & (vu)yes) | (~mask & (vu)no));
}

/* out[l] and out[16 + l]: the pair of lane l's words. The angle is a quarter turn's multiple, which the
 * rounded upper two bits say, plus what is left, at most an eighth on either side. */
LANES_INLINE void store_pair(float *out, vu first, vu second)
{
    vu quarter = (second + 0x20000000u) >> 30;
    vf angle = __builtin_convertvector((vi)(second - (quarter << 30)), vf) * 0x1.921fb6p-30f; // 2 pi / 2^32
    vf r = lanes_sqrt(-2.0f * lanes_log(uniform(first)));
    vf s = r * sine(angle), c = r * cosine(angle);
    vu odd = 0 - (quarter & 1);
    vu cosine_sign = (quarter ^ quarter >> 1) << 31, sine_sign = quarter >> 1 << 31;
    lanes_store(out, (vf)((vu)choose(odd, s, c) ^ cosine_sign));
    lanes_store(out + LANES_COUNT, (vf)((vu)choose(odd, c, s) ^ sine_sign));
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
