/* An arena: the memory of one step, freed at once.
 *
 * Blocks are cut from chunks of a source: arena_host, or the GPU's allocator. The arena never touches the
 * bytes, so device addresses are fine. A block may be released early, and its bytes then serve the next block
 * that fits: first fit by address, neighbours merged, so that equal sequences of calls give equal addresses.
 * arena_reset ends the step and releases every block. If the step needed more than one chunk, the next
 * allocation replaces them by one chunk of the largest size needed so far; from the second equal step on, the
 * source is not called any more.
 *
 * One thread at a time. Nothing here blocks. With poison on (the default in a sanitizer's build), the source
 * fills a released block with 0xff bytes (a NaN in every float format). */
#ifndef KERNELS_BASE_ARENA_H
#define KERNELS_BASE_ARENA_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every block begins at a multiple of this and is a multiple of it long. */
enum { ARENA_ALIGNMENT = 64 };

/* Where chunks come from. All functions get `context`. */
struct arena_source {
    void *context;
    void *(*take)(void *context, size_t bytes);             /* aligned to ARENA_ALIGNMENT; NULL: no memory */
    void (*give)(void *context, void *chunk, size_t bytes); /* as it was taken */
    void (*poison)(void *context, void *block, size_t bytes);
};

/* Host memory. A chunk of a mebibyte or more is a mapping of its own, in large pages where the kernel has
 * some: what a step gives back then leaves the process, which malloc's heap would keep. */
extern const struct arena_source arena_host;

struct arena;

/* STATUS_NO_MEMORY. Takes nothing from the source yet. `source` is copied. */
enum status arena_new(struct arena **out, const struct arena_source *source, struct error *error);
void arena_free(struct arena *arena);

/* A block of at least `bytes` (0 counts as 1), or NULL when the source has no more or `bytes` is so large
 * that rounding it up overflows. Not initialized. */
void *arena_take(struct arena *arena, size_t bytes);

/* A new block has one owner. arena_share adds one; it does nothing where no block of this arena begins at
 * `memory`. arena_owners: 0 for such memory. */
void arena_share(struct arena *arena, const void *memory);
uint32_t arena_owners(const struct arena *arena, const void *memory);

/* Takes one owner away; a block without owners is released before the step ends. NULL is nothing. A pointer
 * that is no block of this arena fails an assertion. */
void arena_release(struct arena *arena, void *memory);

/* A point in the sequence of blocks taken. arena_rollback releases every block taken since: a failed
 * operation thus leaves nothing behind. */
uint64_t arena_mark(const struct arena *arena);
void arena_rollback(struct arena *arena, uint64_t mark);

/* Poison on or off, for this arena. */
void arena_poison(struct arena *arena, bool on);

/* Ends the step: all blocks are gone. */
void arena_reset(struct arena *arena);

/* The bytes of all blocks that are taken. */
size_t arena_in_use(const struct arena *arena);

#endif
