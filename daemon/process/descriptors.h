/* The limit on open files: raises it as far as a job needs. Called by a supervisor before it forks workers;
 * its only thread. */
#ifndef DAEMON_PROCESS_DESCRIPTORS_H
#define DAEMON_PROCESS_DESCRIPTORS_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <stdbool.h>

/* Raises the soft limit on open files to the hard one, for this process and the workers that it forks.
 * STATUS_INVALID: the job needs more than the hard limit. */
enum status descriptors_raise_limit(const struct job *job, struct error *error);

/* How many descriptors the job can do without, for connections to its page: the limit, less those that are
 * open and the most that the supervisor will open for workers, restarts, `coalesced status` and the logs.
 * Called when the supervisor begins to listen, before it starts workers. `has_hosts`: workers of other hosts
 * may come. */
unsigned descriptors_spare(const struct job *job, bool has_hosts);

#endif
