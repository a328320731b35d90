/* What a user sees of strangers: a line on standard error. One thread of the worker process (its first). */
#include "kernels/base/log.h"
#include "worker/net/rpc.h"
#include "worker/worker.h"

#include <inttypes.h>

enum { STRANGERS_EVERY_US = 10000000 };

void worker_report_strangers(struct worker *worker, struct monotime now)
{
    struct rpc_counters counters;
    if (worker->rpc == NULL || monotime_before(now, worker->strangers_due))
        return;
    rpc_counters(worker->rpc, &counters);
    const uint64_t sum = counters.unproven + counters.refused + counters.crowded + counters.strangers;
    if (sum == worker->strangers)
        return;
    worker->strangers = sum;
    worker->strangers_due = monotime_add_us(now, STRANGERS_EVERY_US);
    log_warning("strangers at this worker's socket since the start: %" PRIu64
                " connections ended without this job's pass, %" PRIu64 " showed a wrong one, %" PRIu64
                " were cut off because too many waited, %" PRIu64 " messages were ignored",
                counters.unproven, counters.refused, counters.crowded, counters.strangers);
}
