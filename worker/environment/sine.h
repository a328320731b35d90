/* Sine and cosine of any angle that an environment reaches, with the same bits on every processor.
 *
 * libm chooses a variant by the processor, and now and then that changes the last bit. These functions use
 * additions, multiplications and bits alone, so a loop over them becomes vector code.
 *
 * An angle is reduced to r within a quarter turn (Cody and Waite, "Software Manual for the Elementary
 * Functions", 1980):
 *
 *     sine:   x = n pi + r,         sin(x) = (-1)^n sin(r)
 *     cosine: x = (n + 1/2) pi + r, cos(x) = -(-1)^n sin(r)
 *
 * Pi has three pieces, of 33, 33 and 53 bits: n times the first is exact for |n| < 2^20. sin(r) is Taylor's
 * polynomial to r^21; the first term that it omits is below 2e-18.
 *
 * The error is below 2^-52 in absolute terms and 4 units in the last place near a zero, for |x| <=
 * SINE_ANGLE_MAX. Beyond it precision is lost, and beyond 2^51 pi the results are no sines. Pure functions.
 */
#ifndef WORKER_ENVIRONMENT_SINE_H
#define WORKER_ENVIRONMENT_SINE_H

#include <stdint.h>
#include <string.h>

#define SINE_ANGLE_MAX 1e6 /* radians */

/* Adding it to a number below 2^51 leaves the nearest integer in the low bits. */
#define SINE_ROUND 0x1.8p52

static inline uint64_t sine_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* x - n pi. */
static inline double sine_reduce(double x, double n)
{
    return ((x - n * 0x1.921fb544p+1) - n * 0x1.0b4611a6p-33) - n * 0x1.3198a2e037073p-68;
}

/* sin(r) for |r| <= pi/2, with the sign changed where the last bit of `flips` is 1. */
static inline double sine_of_rest(double r, uint64_t flips)
{
    const uint64_t bits = sine_bits(r) ^ flips << 63;
    memcpy(&r, &bits, sizeof r);
    const double z = r * r;
    double tail = -1.0 / 121645100408832000.0 + z * (1.0 / 51090942171709440000.0);
    tail = -1.0 / 1307674368000.0 + z * (1.0 / 355687428096000.0 + z * tail);
    tail = -1.0 / 39916800.0 + z * (1.0 / 6227020800.0 + z * tail);
    tail = -1.0 / 5040.0 + z * (1.0 / 362880.0 + z * tail);
    return r + r * (z * (-1.0 / 6.0 + z * (1.0 / 120.0 + z * tail)));
}

static inline double sine(double x)
{
    const double shifted = x * 0x1.45f306dc9c883p-2 + SINE_ROUND; /* x / pi */
    return sine_of_rest(sine_reduce(x, shifted - SINE_ROUND), sine_bits(shifted));
}

static inline double cosine(double x)
{
    const double shifted = (x * 0x1.45f306dc9c883p-2 - 0.5) + SINE_ROUND;
    return sine_of_rest(sine_reduce(x, (shifted - SINE_ROUND) + 0.5), ~sine_bits(shifted));
}

#endif
