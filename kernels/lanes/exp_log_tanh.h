/* e^x, log(x) and tanh(x) of any float, each lane by itself, with the same bits on every instruction set.
 * Only *_lanes.c sources include this header. lanes.h has a shorter exp, for arguments of at most 0, and a
 * shorter log, for positive ones.
 *
 * Errors are in units of the result's last place (ulp), as test/kernels/lanes/test_exp_log_tanh.c finds them
 * against libm in double, over all floats. No float is denormal here (kernels/base/denormals.h). */
#ifndef KERNELS_LANES_EXP_LOG_TANH_H
#define KERNELS_LANES_EXP_LOG_TANH_H

#include "kernels/lanes/lanes.h"

#include <math.h>

/* yes where a < b, else no; a NaN in a or b gives no. */
LANES_INLINE vf lanes_choose_less(vf a, vf b, vf yes, vf no)
{
    return (vf)((vu)lanes_where_less(a, b, yes) | (vu)lanes_where_not_less(a, b, no));
}

/* e^x: within 1 ulp. Above 88.72284 infinity, below -87.33655 0; NaN stays NaN. 2^n is applied in two steps,
 * because n reaches from -130 to 130 and a float's exponent does not. */
LANES_INLINE vf lanes_exp_full(vf x)
{
    vf shifted;
    vf rest = lanes_exp_rest(lanes_max(lanes_set(-90.0f), lanes_min(lanes_set(90.0f), x)), &shifted);
    vi n = (vi)((vu)shifted - 0x4b400000u), half = n >> 1; // floor(n / 2)
    vu first = ((vu)half + 127u) << 23, second = ((vu)n - (vu)half + 127u) << 23;
    return rest * (vf)first * (vf)second;
}

/* log(x): within 2 ulp. -infinity for 0, NaN below 0; infinity and NaN stay. */
LANES_INLINE vf lanes_log_full(vf x)
{
    const vf none = {};
    vf of_infinity = lanes_choose_less(x, lanes_set(INFINITY), lanes_log(x), x);
    vf of_none = lanes_choose_less(x, none, lanes_set(NAN), lanes_set(-INFINITY));
    return lanes_choose_less(x, lanes_set(0x1p-126f), of_none, of_infinity);
}

/* tanh(x): within 5 ulp, and at most 1 in size; exactly 1 from 8.1067753 on, where tanh is 1 - 1.8e-7. NaN
 * stays NaN, -0 stays -0. It is x P(x^2) / Q(x^2) with P and Q of degree 4: the minimax approximation of
 * tanh(x) / x over |x| <= 8.4 in relative error (2^-26.5), found by Remez's exchange in 60 digits. All
 * coefficients are positive, so that nothing cancels. The bound of x is the first float whose result is 1. */
LANES_INLINE vf lanes_tanh(vf x)
{
    x = lanes_max(lanes_set(-0x1.036ab4p+3f), lanes_min(lanes_set(0x1.036ab4p+3f), x));
    vf y = x * x;
    vf p = lanes_fma(y, lanes_set(0x1.f0c326p-27f), lanes_set(0x1.66b0e8p-16f));
    vf q = lanes_fma(y, lanes_set(0x1.b94d56p-21f), lanes_set(0x1.60784cp-12f));
    p = lanes_fma(y, p, lanes_set(0x1.d034b6p-9f));
    q = lanes_fma(y, q, lanes_set(0x1.aad38ap-6f));
    p = lanes_fma(y, p, lanes_set(0x1.12d536p-3f));
    q = lanes_fma(y, q, lanes_set(0x1.debfeap-2f));
    p = lanes_fma(y, p, lanes_set(1.0f));
    q = lanes_fma(y, q, lanes_set(1.0f));
    return x * p / q;
}

#endif
