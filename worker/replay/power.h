/* x^a in double, without libm: its last bits differ between versions of the library. Here every machine has
 * the same bits, because IEEE 754 rounds each +, -, *, / in one way, and the compiler contracts none.
 *
 * x^a = 2^(a log2 x). With x = 2^e m, m within sqrt(1/2) … sqrt(2), and s = (m - 1) / (m + 1):
 * ln m = 2 (s + s^3/3 + s^5/5 + …), up to s^21. And 2^f, for f within ±1/2, is the series of e^(f ln 2) up to
 * the 13th power. Both series leave out less than 2^-55. */
#ifndef WORKER_REPLAY_POWER_H
#define WORKER_REPLAY_POWER_H

#include <stdint.h>
#include <string.h>

/* log2 of a positive normal number. */
static inline double power_log2(double x)
{
    const double log2_e = 1.44269504088896340736, sqrt2 = 1.41421356237309504880;
    uint64_t bits;
    double mantissa, sum = 0;
    memcpy(&bits, &x, sizeof bits);
    double exponent = (double)((int)(bits >> 52) - 1023);
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa > sqrt2) {
        mantissa *= 0.5;
        exponent += 1;
    }
    const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
    for (int odd = 21; odd >= 1; odd -= 2)
        sum = sum * square + 1.0 / odd;
    return exponent + 2 * s * sum * log2_e;
}

/* 2^y, for y within ±1000. */
static inline double power_exp2(double y)
{
    const double ln_2 = 0.69314718055994530942;
    const int whole = (int)(y < 0 ? y - 0.5 : y + 0.5);
    const double t = (y - whole) * ln_2;
    const uint64_t bits = (uint64_t)(whole + 1023) << 52;
    double scale, sum = 1;
    memcpy(&scale, &bits, sizeof scale);
    for (int n = 13; n >= 1; n--)
        sum = 1 + sum * t / n;
    return sum * scale;
}

/* x^a, for a positive normal x with |a log2 x| at most 1000; within 2^-44 of it, relatively. */
static inline double power(double x, double a)
{
    return power_exp2(a * power_log2(x));
}

#endif
