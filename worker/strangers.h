/* What a user sees of strangers at a process's sockets: a line on standard error. Pure but for that line;
 * used by the workers' frame and by the link. */
#ifndef WORKER_STRANGERS_H
#define WORKER_STRANGERS_H

#include "kernels/base/monotime.h"
#include "worker/net/endpoint.h"

#include <stdint.h>

struct strangers {
    struct monotime due; /* when to count again: 10 s after a warning */
    uint64_t sum;        /* of the counts in the last warning */
};

/* Warns if more strangers have come since the last warning; called when `due` has come. `whose`: the process
 * whose socket it is, as in "this worker's"; `ignored`: messages of theirs. */
void strangers_report(struct strangers *reported, const char *whose, const struct endpoint_counts *counts,
                      uint64_t ignored, struct monotime now);

#endif
