/* x^a in double, without libm: its last bits differ between versions of the library. Here every machine has
 * the same bits, because IEEE 754 rounds each +, -, *, / in one way, and the compiler contracts none.
 *
 * x^a = 2^(a log2 x). With x = 2^e m, m within sqrt(1/2) … sqrt(2), and s = (m - 1) / (m + 1):
 * ln m = 2 (s + s^3/3 + s^5/5 + …), up to s^21. And 2^f, for f within ±1/2, is the series of e^(f ln 2) up to
 * the 13th power. Both series leave out less than 2^-55. */
#ifndef WORKER_REPLAY_POWER_H
#define WORKER_REPLAY_POWER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* log2 of a positive normal number. */
static inline double power_log2(double x)
{
    static const double terms[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                   1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    const double log2_e = 1.44269504088896340736, sqrt2 = 1.41421356237309504880;
    uint64_t bits;
    double mantissa, sum = terms[0];
    memcpy(&bits, &x, sizeof bits);
    double exponent = (double)((int)(bits >> 52) - 1023);
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa > sqrt2) {
        mantissa *= 0.5;
        exponent += 1;
    }
    const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
#pragma GCC unroll 16
    for (size_t i = 1; i < sizeof terms / sizeof *terms; i++)
        sum = sum * square + terms[i];
    return exponent + 2 * s * sum * log2_e;
}

/* 2^y, for y within ±1000. */
static inline double power_exp2(double y)
{
    static const double terms[] = {1.0 / 6227020800,
                                   1.0 / 479001600,
                                   1.0 / 39916800,
                                   1.0 / 3628800,
                                   1.0 / 362880,
                                   1.0 / 40320,
                                   1.0 / 5040,
                                   1.0 / 720,
                                   1.0 / 120,
                                   1.0 / 24,
                                   1.0 / 6,
                                   1.0 / 2,
                                   1.0,
                                   1.0};
    const double ln_2 = 0.69314718055994530942;
    const int whole = (int)(y < 0 ? y - 0.5 : y + 0.5);
    const double t = (y - whole) * ln_2;
    const uint64_t bits = (uint64_t)(whole + 1023) << 52;
    double scale, sum = terms[0];
    memcpy(&scale, &bits, sizeof scale);
#pragma GCC unroll 16
    for (size_t i = 1; i < sizeof terms / sizeof *terms; i++)
        sum = sum * t + terms[i];
    return sum * scale;
}

/* x^a, for a positive normal x with |a log2 x| at most 1000; within 2^-44 of it, relatively. */
static inline double power(double x, double a)
{
    return power_exp2(a * power_log2(x));
}

#endif
