/* Percentiles of waits, from counts in buckets: constant memory, no allocation, pure.
 *
 * Buckets are logarithmic with 16 per power of two (HdrHistogram's scheme), so that a percentile is exact to
 * 1/16 of its value. Values from 0 to 2^32 - 1; larger ones count as the largest. */
#ifndef WORKER_REINFORCE_HISTOGRAM_H
#define WORKER_REINFORCE_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_SUB_BITS = 4, HISTOGRAM_BUCKETS = (32 - HISTOGRAM_SUB_BITS + 1) << HISTOGRAM_SUB_BITS };

struct histogram {
    uint64_t count, sum;
    uint32_t buckets[HISTOGRAM_BUCKETS];
};

/* A histogram begins as zeros. */
void histogram_add(struct histogram *histogram, uint64_t value);

/* The least bucket value that `fraction` (0 < fraction <= 1) of all values do not exceed; 0 when empty. */
uint64_t histogram_percentile(const struct histogram *histogram, double fraction);

/* How many values are at most `limit`, or up to 1/16 more: those of the buckets that begin there. */
uint64_t histogram_up_to(const struct histogram *histogram, uint64_t limit);

#endif
