/* safetensors files from memory and to it: for tests that make a file up byte by byte. */
#ifndef TEST_KERNELS_SAFETENSORS_SAFETENSORS_MEMORY_H
#define TEST_KERNELS_SAFETENSORS_SAFETENSORS_MEMORY_H

#include "kernels/safetensors/safetensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct safetensors_memory {
    const struct safetensors_entry *entries;
    const void *const *values; /* of each entry */
};

static inline enum status safetensors_memory_fill(void *context, size_t index, void *values,
                                                  struct error *error)
{
    const struct safetensors_memory *memory = context;
    (void)error;
    if (memory->entries[index].bytes > 0)
        memcpy(values, memory->values[index], memory->entries[index].bytes);
    return STATUS_OK;
}

/* Writes `count` entries whose values lie in memory. Errors as safetensors_write. */
static inline enum status safetensors_memory_write(const char *path, const struct safetensors_entry *entries,
                                                   const void *const values[], size_t count,
                                                   struct error *error)
{
    struct safetensors_memory memory = {entries, values};
    const struct safetensors_stream stream = {.fill = safetensors_memory_fill, .context = &memory};
    return safetensors_write(path, entries, count, &stream, error);
}

/* A file of these bytes that has a path and no name in any folder: SAFETENSORS_MEMORY_PATH, for one at a
 * time. */
#define SAFETENSORS_MEMORY_FD 200
#define SAFETENSORS_MEMORY_PATH "/proc/self/fd/200"

static inline bool safetensors_memory_put(const void *bytes, size_t count)
{
    const int fd = memfd_create("safetensors", MFD_CLOEXEC);
    const bool whole = fd >= 0 && write(fd, bytes, count) == (ssize_t)count;
    const bool placed = whole && dup2(fd, SAFETENSORS_MEMORY_FD) == SAFETENSORS_MEMORY_FD;
    if (fd >= 0)
        close(fd);
    return placed;
}

#endif
