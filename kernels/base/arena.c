/* Arenas: places blocks, and takes chunks from a source. The thread that computes a step; nothing is shared.
 *
 * Plan and memory are separate. The plan is one unbounded address space in which blocks are placed first fit;
 * the gap between two blocks is the free memory, so neighbours need no merging. The memory is one chunk
 * behind the beginning of the plan. A block beyond the chunk's end gets a chunk of its own, and the plan
 * remembers its farthest end: a chunk of that size holds every step like the ones so far, whatever their
 * fragmentation. */
#include "kernels/base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef ARENA_POISON
#define ARENA_POISON 0
#endif

enum { MAPPED_BYTES_MIN = 1 << 20, LARGE_PAGE_BYTES = 2 << 20 };

struct block {
    size_t offset, bytes; // in the plan
    void *own;            // a chunk of its own; NULL: it lies in the arena's
    uint64_t serial;      // how many were taken before it
    uint32_t owners;
};

struct arena {
    struct arena_source source;
    bool poison;
    char *chunk;
    size_t chunk_bytes;
    size_t reach;        // of the plan, the furthest so far
    struct block *block; // (count) taken, in order of offset
    size_t count, capacity;
    uint64_t serial;
};

/* A mapping that begins on a large page: what the kernel gave beyond it at both ends goes back. */
static void *map_large(size_t bytes)
{
    const size_t spare = LARGE_PAGE_BYTES, page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX - 2 * spare)
        return NULL;
    const size_t length = (bytes + page - 1) / page * page;
    char *mapping = mmap(NULL, length + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    const size_t before = (spare - (uintptr_t)mapping % spare) % spare;
    if (before > 0)
        munmap(mapping, before);
    if (before < spare)
        munmap(mapping + before + length, spare - before);
    madvise(mapping + before, length, MADV_HUGEPAGE); // a wish: a kernel that has none to give is no failure
    return mapping + before;
}

static void *host_take(void *context, size_t bytes)
{
    (void)context;
    if (bytes >= MAPPED_BYTES_MIN)
        return map_large(bytes);
    return aligned_alloc(ARENA_ALIGNMENT, (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT);
}

static void host_give(void *context, void *chunk, size_t bytes)
{
    (void)context;
    if (bytes < MAPPED_BYTES_MIN)
        free(chunk);
    else
        munmap(chunk, bytes);
}

static void host_poison(void *context, void *block, size_t bytes)
{
    (void)context;
    memset(block, 0xff, bytes);
}

const struct arena_source arena_host = {.take = host_take, .give = host_give, .poison = host_poison};

enum status arena_new(struct arena **out, const struct arena_source *source, struct error *error)
{
    struct arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an arena");
    arena->source = *source;
    arena->poison = ARENA_POISON;
    *out = arena;
    return STATUS_OK;
}

void arena_poison(struct arena *arena, bool on)
{
    arena->poison = on;
}

static void chunk_give(struct arena *arena, void *chunk, size_t bytes)
{
    if (chunk != NULL)
        arena->source.give(arena->source.context, chunk, bytes);
}

void arena_free(struct arena *arena)
{
    if (arena == NULL)
        return;
    arena_reset(arena);
    chunk_give(arena, arena->chunk, arena->chunk_bytes);
    free(arena->block);
    free(arena);
}

/* With no block taken, the chunk can be replaced by one that holds all that ever was. The old one goes first,
 * so that both are never there together. */
static void consolidate(struct arena *arena)
{
    if (arena->count > 0 || arena->reach <= arena->chunk_bytes)
        return;
    chunk_give(arena, arena->chunk, arena->chunk_bytes);
    arena->chunk = arena->source.take(arena->source.context, arena->reach);
    arena->chunk_bytes = arena->chunk != NULL ? arena->reach : 0;
}

static bool make_room(struct arena *arena)
{
    if (arena->count < arena->capacity)
        return true;
    size_t capacity = arena->capacity == 0 ? 64 : 2 * arena->capacity;
    struct block *grown = realloc(arena->block, capacity * sizeof *grown);
    if (grown == NULL)
        return false;
    arena->block = grown;
    arena->capacity = capacity;
    return true;
}

/* The index at which a block of `bytes` belongs, and in *offset its place. */
static size_t first_fit(const struct arena *arena, size_t bytes, size_t *offset)
{
    size_t end = 0, i = 0;
    for (; i < arena->count && arena->block[i].offset - end < bytes; i++)
        end = arena->block[i].offset + arena->block[i].bytes;
    *offset = end;
    return i;
}

static void *block_address(const struct arena *arena, const struct block *block)
{
    return block->own != NULL ? block->own : arena->chunk + block->offset;
}

void *arena_take(struct arena *arena, size_t bytes)
{
    consolidate(arena);
    if (bytes > SIZE_MAX - ARENA_ALIGNMENT || !make_room(arena))
        return NULL;
    struct block block = {.serial = arena->serial, .owners = 1};
    block.bytes = ((bytes == 0 ? 1 : bytes) + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    size_t i = first_fit(arena, block.bytes, &block.offset);
    if (block.offset > SIZE_MAX - block.bytes)
        return NULL;
    size_t end = block.offset + block.bytes;
    if (end > arena->chunk_bytes) {
        block.own = arena->source.take(arena->source.context, block.bytes);
        if (block.own == NULL)
            return NULL;
    }
    memmove(arena->block + i + 1, arena->block + i, (arena->count - i) * sizeof block);
    arena->block[i] = block;
    arena->count++;
    arena->serial++;
    arena->reach = end > arena->reach ? end : arena->reach;
    return block_address(arena, &block);
}

static void release_at(struct arena *arena, size_t i)
{
    struct block block = arena->block[i];
    if (arena->poison)
        arena->source.poison(arena->source.context, block_address(arena, &block), block.bytes);
    arena->count--;
    memmove(arena->block + i, arena->block + i + 1, (arena->count - i) * sizeof block);
    chunk_give(arena, block.own, block.bytes);
}

/* The block that begins at `memory`, or NULL. */
static struct block *find_block(const struct arena *arena, const void *memory)
{
    for (size_t i = arena->count; i-- > 0;)
        if (block_address(arena, &arena->block[i]) == memory)
            return &arena->block[i];
    return NULL;
}

void arena_share(struct arena *arena, const void *memory)
{
    struct block *block = find_block(arena, memory);
    if (block != NULL)
        block->owners++;
}

uint32_t arena_owners(const struct arena *arena, const void *memory)
{
    const struct block *block = find_block(arena, memory);
    return block != NULL ? block->owners : 0;
}

void arena_release(struct arena *arena, void *memory)
{
    if (memory == NULL)
        return;
    struct block *block = find_block(arena, memory);
    assert(block != NULL); // else it is no block of this arena
    if (--block->owners == 0)
        release_at(arena, (size_t)(block - arena->block));
}

void arena_reset(struct arena *arena)
{
    while (arena->count > 0)
        release_at(arena, arena->count - 1);
}

uint64_t arena_mark(const struct arena *arena)
{
    return arena->serial;
}

void arena_rollback(struct arena *arena, uint64_t mark)
{
    for (size_t i = arena->count; i-- > 0;)
        if (arena->block[i].serial >= mark)
            release_at(arena, i);
}

size_t arena_in_use(const struct arena *arena)
{
    size_t bytes = 0;
    for (size_t i = 0; i < arena->count; i++)
        bytes += arena->block[i].bytes;
    return bytes;
}
