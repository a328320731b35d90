/* Memory in this worker's outbox, for arenas: other workers can read there what is lent to them. */
#ifndef WORKER_AUTOGRAD_DIST_MEMORY_H
#define WORKER_AUTOGRAD_DIST_MEMORY_H

#include "kernels/base/arena.h"
#include "worker/net/segment.h"

#include <stdbool.h>

struct dist_memory {
    struct segment *segment; /* the outbox. NULL: there is none */
    bool is_taken;           /* the segment, by the heap */
    struct arena *heap;
};

/* `memory` keeps its address. After a failure, memory_free. */
enum status memory_new(struct dist_memory *memory, struct segment *segment, struct error *error);
void memory_free(struct dist_memory *memory);

/* Chunks in the outbox; in host memory where there is none, or it is full. */
struct arena_source memory_source(struct dist_memory *memory);

#endif
