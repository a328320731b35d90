/* Memory that one worker writes and others on its host read: a memfd per worker.
 *
 * The supervisor makes the memfds, empty, and every worker finds all of them at fixed descriptors: that of
 * worker N at SEGMENT_FD_FIRST + N. A worker sizes and seals its own once, and maps it to write; the others
 * map it to read after a look at its size and seals. On the wire a place in a segment is (worker, offset,
 * bytes), never an address, and is checked before it is read. A restarted worker finds its segment as its
 * predecessor left it. Nothing is left behind by any death: the kernel frees a memfd with its last user.
 *
 * worker/data_parallel/shards.h describes the contents of a pserver's and of a trainer's segment. A page of a
 * segment costs memory once it has been written (or read through a mapping). Nothing here blocks. */
#ifndef WORKER_NET_SEGMENT_H
#define WORKER_NET_SEGMENT_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SEGMENT_FD_FIRST = 6 }; /* behind CONTROL_FD, CONTROL_RUN_FD and CONTROL_CALL_FD */

struct segment {
    uint16_t worker;
    unsigned char *data; /* NULL: not mapped */
    size_t bytes;
};

/* The owner's: gives its segment `bytes` (rounded up to pages), seals its size and maps it to write. A
 * segment that has that size and is sealed already is only mapped. STATUS_INTERNAL: it is sealed at another
 * size, or there is no memfd at its descriptor, so that the worker and the supervisor disagree.
 * STATUS_INVALID: no segment can have `bytes`. STATUS_NO_MEMORY, STATUS_IO. */
enum status segment_create(struct segment *segment, uint16_t worker, size_t bytes, struct error *error);

/* A reader's: maps worker `worker`'s segment read-only. STATUS_INVALID names the worker and what was found:
 * no memfd, not sized or sealed yet, fewer than `bytes_min` bytes. */
enum status segment_attach(struct segment *segment, uint16_t worker, size_t bytes_min, struct error *error);

/* Makes a reader's mapping writable, or read-only again. CUDA pins only writable memory. */
void segment_set_writable(const struct segment *segment, bool writable);

/* The address of [offset, offset + bytes). NULL: the range is not within the segment, or `offset` is no
 * multiple of 64. */
void *segment_at(const struct segment *segment, uint64_t offset, uint64_t bytes);

/* The owner's: discards the contents of [at, at + bytes). Whole pages in the range cost no memory until they
 * are written again, and read as zero until then. */
void segment_discard(const struct segment *segment, void *at, size_t bytes);

/* Unmaps the segment. Does nothing to one that is not mapped (all zero). */
void segment_detach(struct segment *segment);

#endif
