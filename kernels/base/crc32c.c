/* The checksum bit by bit: its callers write a few kilobytes a second, so no table is worth its memory. */
#include "kernels/base/crc32c.h"

/* The polynomial 0x1edc6f41 with its bits in reverse order: the lowest bit is taken first. */
static const uint32_t reversed_polynomial = 0x82f63b78;

uint32_t crc32c(const void *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= ((const uint8_t *)bytes)[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? reversed_polynomial : 0);
    }
    return ~crc;
}
