/* safetensors files from memory and to it: for tests that make a file up byte by byte. */
#ifndef TEST_KERNELS_SAFETENSORS_SAFETENSORS_MEMORY_H
#define TEST_KERNELS_SAFETENSORS_SAFETENSORS_MEMORY_H

#include "kernels/safetensors/safetensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Writes `count` entries whose values lie in memory. False: see errno. */
static inline bool safetensors_memory_write(const char *path, const struct safetensors_entry *entries,
                                            const void *const values[], size_t count)
{
    size_t bytes;
    char *header = safetensors_format(entries, count, &bytes);
    FILE *out = fopen(path, "w");
    bool whole = header != NULL && out != NULL && fwrite(header, 1, bytes, out) == bytes;
    for (size_t i = 0; i < count && whole; i++)
        whole = fwrite(values[i], 1, entries[i].bytes, out) == entries[i].bytes;
    free(header);
    return out != NULL && fclose(out) == 0 && whole;
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
