/* Rounding to bfloat16 in loops that the compiler turns into vector code. */
#include "worker/data_parallel/bfloat16.h"

#include <string.h>

static const uint32_t INFINITE_BITS = 0x7f800000, MAGNITUDE_BITS = 0x7fffffff, QUIET_BIT = 0x00400000;

/* The nearest bfloat16, as the bits of a float32. Adding half of the last place, less one where the place is
 * even, carries where the rest is more than half of it. */
static inline uint32_t bfloat16_nearest(uint32_t bits)
{
    const uint32_t nearest = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t quiet = bits | QUIET_BIT;
    return ((bits & MAGNITUDE_BITS) > INFINITE_BITS ? quiet : nearest) & 0xffff0000;
}

void bfloat16_round(uint16_t *rounded, const float *values, float *kept, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float sum = values[i] + kept[i];
        uint32_t bits;
        float sent;
        memcpy(&bits, &sum, sizeof bits);
        bits = bfloat16_nearest(bits);
        memcpy(&sent, &bits, sizeof sent);
        rounded[i] = (uint16_t)(bits >> 16);
        const float rest = sum - sent;
        kept[i] = (bits & MAGNITUDE_BITS) < INFINITE_BITS ? rest : 0;
    }
}

void bfloat16_widen(float *values, const void *rounded, size_t count)
{
    const uint8_t *from = rounded;
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + i * sizeof half, sizeof half);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
}
