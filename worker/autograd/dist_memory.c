/* Gives arenas their chunks out of this worker's outbox, a segment that other workers can read.
 *
 * The chunks are blocks of one arena, the heap, whose only chunk is the whole segment: first fit, neighbours
 * merged. A large chunk that is given back leaves a hole in the memory file. When the outbox is full, chunks
 * come from host memory, and tensors there are copied instead of lent. */
#include "worker/autograd/dist_memory.h"

#include <assert.h>
#include <string.h>

enum { DISCARD_BYTES_MIN = 256 << 10 };

/* The heap's own chunk: all of the segment, or nothing. */
static void *segment_take(void *context, size_t bytes)
{
    struct dist_memory *memory = context;
    if (memory->is_taken || bytes > memory->segment->bytes)
        return NULL;
    memory->is_taken = true;
    return memory->segment->data;
}

static void segment_give(void *context, void *chunk, size_t bytes)
{
    struct dist_memory *memory = context;
    (void)chunk;
    (void)bytes;
    memory->is_taken = false;
}

static void poison(void *context, void *block, size_t bytes)
{
    (void)context;
    memset(block, 0xff, bytes);
}

/* An empty arena takes one chunk as large as its largest step so far. Taking and releasing one block of the
 * segment's size makes that chunk the whole segment. */
enum status memory_new(struct dist_memory *memory, struct segment *segment, struct error *error)
{
    *memory = (struct dist_memory){.segment = segment};
    if (segment == NULL)
        return STATUS_OK;
    const struct arena_source whole = {
        .context = memory, .take = segment_take, .give = segment_give, .poison = poison};
    enum status status = arena_new(&memory->heap, &whole, error);
    if (status != STATUS_OK)
        return status;
    arena_poison(memory->heap, false); // the arenas on top poison their blocks
    void *all = arena_take(memory->heap, segment->bytes);
    if (all == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the outbox's heap");
    arena_release(memory->heap, all);
    return STATUS_OK;
}

void memory_free(struct dist_memory *memory)
{
    arena_free(memory->heap);
    memory->heap = NULL;
}

static bool is_inside(const struct dist_memory *memory, const void *chunk)
{
    const struct segment *segment = memory->segment;
    const unsigned char *at = chunk;
    return segment != NULL && at >= segment->data && at < segment->data + segment->bytes;
}

static void *chunk_take(void *context, size_t bytes)
{
    struct dist_memory *memory = context;
    void *chunk = memory->heap != NULL ? arena_take(memory->heap, bytes) : NULL;
    return chunk != NULL ? chunk : arena_host.take(arena_host.context, bytes);
}

static void chunk_give(void *context, void *chunk, size_t bytes)
{
    struct dist_memory *memory = context;
    if (!is_inside(memory, chunk)) {
        arena_host.give(arena_host.context, chunk, bytes);
        return;
    }
    arena_release(memory->heap, chunk);
    if (bytes >= DISCARD_BYTES_MIN)
        segment_discard(memory->segment, chunk, bytes);
}

struct arena_source memory_source(struct dist_memory *memory)
{
    return (struct arena_source){.context = memory, .take = chunk_take, .give = chunk_give, .poison = poison};
}
