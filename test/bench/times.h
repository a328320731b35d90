/* Times of functions that a benchmark runs alternately, round by round; printed as the median and, in
 * brackets, the fastest and the slowest round. */
#ifndef TEST_BENCH_TIMES_H
#define TEST_BENCH_TIMES_H

#include "kernels/base/monotime.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TIMES_MAX = 101 };

struct times {
    uint32_t count;
    double ms[TIMES_MAX];
};

typedef void work(void *context);

/* One round: the mean of `repeat` runs. */
static inline void times_add(struct times *times, work *run, void *context, uint32_t repeat)
{
    const struct monotime begin = monotime_now();
    for (uint32_t i = 0; i < repeat; i++)
        run(context);
    times->ms[times->count++] = (double)(monotime_now().ns - begin.ns) * 1e-6 / repeat;
}

static inline int times_compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Sorts them. */
static inline double times_median(struct times *times)
{
    qsort(times->ms, times->count, sizeof *times->ms, times_compare);
    return times->ms[times->count / 2];
}

/* Prints a line without its end; returns the median. */
static inline double times_print(const char *name, struct times *times)
{
    const double median = times_median(times);
    printf("  %-36s %9.3f ms [%.3f %.3f]", name, median, times->ms[0], times->ms[times->count - 1]);
    return median;
}

#endif
