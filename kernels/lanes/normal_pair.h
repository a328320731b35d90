/* Two normal draws from two random words, by the formula of kernels/lanes/normal.h. Only *_lanes.c
 * sources include this header. */
#ifndef KERNELS_LANES_NORMAL_PAIR_H
#define KERNELS_LANES_NORMAL_PAIR_H

#include "kernels/lanes/lanes.h"

/* (floor(word / 2) + 1/2) / 2^31 in float32: from 2^-32, which is normal and has a logarithm, to 1. Small
 * ones keep bits that large ones have no room for. */
LANES_INLINE vf lanes_normal_uniform(vu word)
{
    vf half = __builtin_convertvector((vi)(word >> 1), vf);
    return half * 0x1p-31f + 0x1p-32f;
}

/* The sine and cosine of x in [-pi/4, pi/4], by their Taylor series, whose next terms are under 2^-28. */
LANES_INLINE vf lanes_normal_sine(vf x)
{
    vf z = x * x;
    vf sum = lanes_fma(z, lanes_set(1.0f / 362880), lanes_set(-1.0f / 5040));
    sum = lanes_fma(z, sum, lanes_set(1.0f / 120));
    sum = lanes_fma(z, sum, lanes_set(-1.0f / 6));
    return lanes_fma(x * z, sum, x);
}

LANES_INLINE vf lanes_normal_cosine(vf x)
{
    vf z = x * x;
    vf sum = lanes_fma(z, lanes_set(-1.0f / 3628800), lanes_set(1.0f / 40320));
    sum = lanes_fma(z, sum, lanes_set(-1.0f / 720));
    sum = lanes_fma(z, sum, lanes_set(1.0f / 24));
    sum = lanes_fma(z, sum, lanes_set(-0.5f));
    return lanes_fma(z, sum, lanes_set(1.0f));
}

LANES_INLINE vf lanes_normal_choose(vu mask, vf yes, vf no)
{
    return (vf)((mask & (vu)yes) | (~mask & (vu)no));
}

/* pair[0]: r cos(a), pair[1]: r sin(a). The angle is a quarter turn's multiple, which the rounded upper two
 * bits of `second` say, plus what is left, at most an eighth on either side. */
LANES_INLINE void lanes_normal_pair(vf pair[2], vu first, vu second)
{
    vu quarter = (second + 0x20000000u) >> 30;
    vf angle = __builtin_convertvector((vi)(second - (quarter << 30)), vf) * 0x1.921fb6p-30f; // 2 pi / 2^32
    vf r = lanes_sqrt(-2.0f * lanes_log(lanes_normal_uniform(first)));
    vf s = r * lanes_normal_sine(angle), c = r * lanes_normal_cosine(angle);
    vu odd = 0 - (quarter & 1);
    vu cosine_sign = (quarter ^ quarter >> 1) << 31, sine_sign = quarter >> 1 << 31;
    pair[0] = (vf)((vu)lanes_normal_choose(odd, s, c) ^ cosine_sign);
    pair[1] = (vf)((vu)lanes_normal_choose(odd, c, s) ^ sine_sign);
}

#endif
