/* Computes the checksum by the processor's instruction for it, which a replay buffer of gigabytes needs; bit
 * by bit on processors without SSE4.2. Both give the same number. */
#include "kernels/base/crc32c.h"

#include <string.h>

/* The polynomial 0x1edc6f41 with its bits in reverse order: the lowest bit is taken first. */
static const uint32_t reversed_polynomial = 0x82f63b78;

static uint32_t extend_by_bits(uint32_t crc, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? reversed_polynomial : 0);
    }
    return crc;
}

__attribute__((target("sse4.2"))) static uint32_t extend_by_words(uint32_t crc, const uint8_t *bytes,
                                                                  size_t count)
{
    uint64_t wide = crc, word;
    for (; count >= sizeof word; bytes += sizeof word, count -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (size_t i = 0; i < count; i++)
        crc = __builtin_ia32_crc32qi(crc, bytes[i]);
    return crc;
}

uint32_t crc32c_extend(uint32_t crc, const void *bytes, size_t count)
{
    return ~(__builtin_cpu_supports("sse4.2") ? extend_by_words(~crc, bytes, count)
                                              : extend_by_bits(~crc, bytes, count));
}

uint32_t crc32c(const void *bytes, size_t count)
{
    return crc32c_extend(0, bytes, count);
}
