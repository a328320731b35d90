/* The tape's own memory: pools of records, and the owners of the arena's blocks. */
#include "kernels/tape/tape_internal.h"

#include <assert.h>
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

/* ---- blocks ---- */

enum status blocks_adopt(struct tape *tape, void *data, const struct held *held, uint32_t held_count,
                         struct block **out, struct error *error)
{
    for (uint32_t i = 0; i < held_count; i++) {
        if (held[i].data != data)
            continue;
        *out = held[i].block;
        if (*out != NULL)
            (*out)->owners++;
        return STATUS_OK;
    }
    struct block *block = tape->free_blocks;
    if (block != NULL)
        tape->free_blocks = block->next_free;
    else
        block = pool_take(&tape->blocks);
    if (block == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the tape's record of a block");
    *block = (struct block){.data = data, .owners = 1};
    *out = block;
    return STATUS_OK;
}

void blocks_release(struct tape *tape, struct block *block)
{
    if (block == NULL)
        return;
    assert(block->owners > 0);
    if (--block->owners > 0)
        return;
    arena_release(tape->arena, block->data);
    block->next_free = tape->free_blocks;
    tape->free_blocks = block;
}
