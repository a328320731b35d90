/* A warning, and what it counts. The thread that owns the counted sockets; no lock. */
#include "worker/strangers.h"

#include "kernels/base/log.h"

#include <inttypes.h>

enum { STRANGERS_EVERY_US = 10000000, STRANGERS_LOOK_US = 100000 };

void strangers_report(struct strangers *reported, const char *whose, const struct endpoint_counts *counts,
                      uint64_t ignored, struct monotime now)
{
    const uint64_t sum = counts->unproven + counts->refused + counts->crowded + ignored;
    reported->due = monotime_add_us(now, sum == reported->sum ? STRANGERS_LOOK_US : STRANGERS_EVERY_US);
    if (sum == reported->sum)
        return;
    reported->sum = sum;
    log_warning("strangers at %s socket since the start: %" PRIu64
                " connections ended without this job's pass, %" PRIu64 " showed a wrong one, %" PRIu64
                " were cut off because too many waited, %" PRIu64 " messages were ignored",
                whose, counts->unproven, counts->refused, counts->crowded, ignored);
}
