/* The memory of the tape's records, its variables and nodes: pools, in which a record stays where it is. The
 * memory of tensors is an arena's (kernels/base/arena.h). */
#include "kernels/tape/tape_internal.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_ITEMS = 64 };

void pool_init(struct pool *pool, size_t item_bytes)
{
    *pool = (struct pool){.item_bytes = item_bytes};
}

void pool_fini(struct pool *pool)
{
    for (uint32_t i = 0; i < pool->chunk_count; i++)
        free(pool->chunks[i]);
    free(pool->chunks);
}

static bool add_chunk(struct pool *pool)
{
    void **chunks = reallocarray(pool->chunks, pool->chunk_count + 1, sizeof *chunks);
    if (chunks == NULL)
        return false;
    pool->chunks = chunks;
    chunks[pool->chunk_count] = calloc(CHUNK_ITEMS, pool->item_bytes);
    if (chunks[pool->chunk_count] == NULL)
        return false;
    pool->chunk_count++;
    return true;
}

void *pool_at(const struct pool *pool, uint32_t index)
{
    return (char *)pool->chunks[index / CHUNK_ITEMS] + index % CHUNK_ITEMS * pool->item_bytes;
}

void *pool_take(struct pool *pool)
{
    if (pool->used == pool->chunk_count * CHUNK_ITEMS && !add_chunk(pool))
        return NULL;
    return memset(pool_at(pool, pool->used++), 0, pool->item_bytes);
}
