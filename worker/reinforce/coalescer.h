/* The coalescer: gathers waiting requests into one launch.
 *
 * It keeps requests in order of arrival, knows when a batch is due, and calls one function with the batch. It
 * has no sockets, no kernels and no clock: times are arguments. One thread.
 *
 *   off      every request is a batch of its own
 *   barrier  due when every live row has come; coalescer_set_live says how many live
 *   dynamic  due when `max_batch` rows wait, or every live row has come, or the oldest request has waited
 *            `max_delay_us` (0: whatever is pending now); a batch never exceeds max_batch rows unless one
 *            request alone does
 *
 * The delay is anchored to the oldest request, so that a steady trickle cannot postpone a launch. */
#ifndef WORKER_REINFORCE_COALESCER_H
#define WORKER_REINFORCE_COALESCER_H

#include "kernels/base/monotime.h"
#include "kernels/base/status.h"

#include <stddef.h>

enum { COALESCER_BATCH_BUCKETS = 16, COALESCER_WAIT_BUCKETS = 464 };

enum coalescer_mode { COALESCER_OFF, COALESCER_BARRIER, COALESCER_DYNAMIC };

/* One waiting request: the caller's token and its number of rows. */
struct coalescer_slot {
    void *request;
    uint32_t rows;
    struct monotime arrived;
};

/* Computes one batch. The callee may read the slots until it returns, and may not call the coalescer. */
typedef void coalescer_launch(void *context, const struct coalescer_slot *slots, size_t count, uint32_t rows);

/* What several coalescers have launched since the caller made it all zero. */
struct coalescer_stats {
    uint64_t launches, requests, rows;
    uint32_t batch_max;                        /* rows of the largest launch */
    uint32_t batches[COALESCER_BATCH_BUCKETS]; /* [i]: launches of more than 2^(i-1) rows, at most 2^i; the
                                                  last: all greater ones */
    uint64_t wait_us;                          /* the sum of the requests' waits, from arrival to launch */
    uint32_t waits[COALESCER_WAIT_BUCKETS];    /* how many, by their length: 16 buckets per power of two, as
                                                  HdrHistogram has them */
};

struct coalescer_config {
    enum coalescer_mode mode;
    uint32_t slots_max;    /* requests that may wait at a time */
    uint32_t max_batch;    /* rows; dynamic */
    uint64_t max_delay_us; /* dynamic */
    coalescer_launch *launch;
    void *context;
    struct coalescer_stats *stats; /* the caller's: every launch is counted there */
};

struct coalescer;

/* Allocates all memory that the coalescer will ever need. STATUS_NO_MEMORY. */
enum status coalescer_new(struct coalescer **out, const struct coalescer_config *config);
void coalescer_free(struct coalescer *coalescer);

/* The number of live rows: those that can wait at a time, because their environments' episodes go on. When so
 * many wait, no further one can come, and a batch is due (barrier, dynamic). 0: not known; a barrier is then
 * never due. */
void coalescer_set_live(struct coalescer *coalescer, uint32_t rows);

/* Puts a request in line. STATUS_BUSY when slots_max wait already. */
enum status coalescer_add(struct coalescer *coalescer, void *request, uint32_t rows, struct monotime now);

/* Takes a request out of the line, if it stands there. */
void coalescer_remove(struct coalescer *coalescer, const void *request);

/* When the next batch is due: a past time for "now", MONOTIME_NEVER when only an arrival can make it due. */
struct monotime coalescer_due(const struct coalescer *coalescer);

/* Launches every batch that is due at `now`. */
void coalescer_run(struct coalescer *coalescer, struct monotime now);

/* The least time in microseconds that `fraction` (0 < fraction <= 1) of the waits do not exceed, or up to
 * 1/16 more; 0 when there were none. Waits of 2^32 us and more count as 2^32 - 1. */
uint64_t coalescer_wait_us(const struct coalescer_stats *stats, double fraction);

/* How many waits were at most `limit_us`, or up to 1/16 more. */
uint64_t coalescer_waits_up_to(const struct coalescer_stats *stats, uint32_t limit_us);

/* How many requests wait. */
size_t coalescer_waiting(const struct coalescer *coalescer);

/* Removes every waiting request without a launch, and calls `drop` on each. */
void coalescer_clear(struct coalescer *coalescer, void (*drop)(void *context, void *request));

#endif
