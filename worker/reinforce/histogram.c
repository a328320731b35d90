/* Log-linear buckets: the top HISTOGRAM_SUB_BITS bits below a value's leading one choose the bucket. */
#include "worker/reinforce/histogram.h"

#include <math.h>

enum { SUB = 1 << HISTOGRAM_SUB_BITS };

static unsigned bucket_of(uint32_t value)
{
    if (value < SUB)
        return value;
    unsigned shift = 31u - (unsigned)__builtin_clz(value) - HISTOGRAM_SUB_BITS;
    return (shift << HISTOGRAM_SUB_BITS) + (value >> shift);
}

/* The largest value of the bucket: a percentile never understates. */
static uint64_t bucket_value(unsigned bucket)
{
    if (bucket < 2 * SUB)
        return bucket;
    unsigned shift = (bucket >> HISTOGRAM_SUB_BITS) - 1;
    return (((uint64_t)(bucket & (SUB - 1)) + SUB + 1) << shift) - 1;
}

void histogram_add(struct histogram *histogram, uint64_t value)
{
    histogram->buckets[bucket_of(value > UINT32_MAX ? UINT32_MAX : (uint32_t)value)]++;
    histogram->count++;
    histogram->sum += value;
}

uint64_t histogram_percentile(const struct histogram *histogram, double fraction)
{
    uint64_t wanted = (uint64_t)ceil(fraction * (double)histogram->count), seen = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (seen >= wanted && seen > 0)
            return bucket_value(i);
    }
    return 0;
}

uint64_t histogram_up_to(const struct histogram *histogram, uint64_t limit)
{
    const unsigned last = bucket_of(limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    uint64_t count = 0;
    for (unsigned i = 0; i <= last; i++)
        count += histogram->buckets[i];
    return count;
}
