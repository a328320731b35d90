/* FNV-1a with 64 bits (Fowler, Noll, Vo; constants from draft-eastlake-fnv): a fingerprint by which two
 * processes see that they hold the same thing. It protects against mistakes, not against intent. Pure. */
#ifndef KERNELS_BASE_FNV_H
#define KERNELS_BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_BEGIN UINT64_C(0xcbf29ce484222325)

/* Continues `hash` with these bytes. */
static inline uint64_t fnv1a(uint64_t hash, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Continues `hash` with a number's lowest `bytes` bytes, the lowest first. */
static inline uint64_t fnv1a_number(uint64_t hash, uint64_t number, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (number >> 8 * i & 0xff)) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
