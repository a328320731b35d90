/* Takes each array from calloc, behind a link to the array before. */
#include "kernels/base/region.h"

#include <stdalign.h>
#include <stdlib.h>

struct region_block {
    struct region_block *before;
    alignas(max_align_t) char memory[];
};

void *region_take(struct region *region, size_t count, size_t bytes)
{
    struct region_block *block = NULL;
    size_t size;
    if (!__builtin_mul_overflow(count, bytes, &size) && !__builtin_add_overflow(size, sizeof *block, &size))
        block = calloc(1, size);
    if (block == NULL) {
        region->failed = true;
        return NULL;
    }
    block->before = region->newest;
    region->newest = block;
    return block->memory;
}

void region_free(struct region *region)
{
    while (region->newest != NULL) {
        struct region_block *block = region->newest;
        region->newest = block->before;
        free(block);
    }
    region->failed = false;
}
