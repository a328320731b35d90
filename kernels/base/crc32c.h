/* CRC-32C (Castagnoli), the checksum of iSCSI: RFC 3720, 12.1 and B.4. Pure; any thread. */
#ifndef KERNELS_BASE_CRC32C_H
#define KERNELS_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *bytes, size_t count);

/* The checksum of bytes that stand in several places: `crc` is that of the bytes before; 0: there are none.
 */
uint32_t crc32c_extend(uint32_t crc, const void *bytes, size_t count);

#endif
