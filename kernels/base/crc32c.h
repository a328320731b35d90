/* CRC-32C (Castagnoli), the checksum of iSCSI: RFC 3720, 12.1 and B.4. Pure; any thread. */
#ifndef KERNELS_BASE_CRC32C_H
#define KERNELS_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *bytes, size_t count);

#endif
