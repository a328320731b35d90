/* The limit on open files (RLIMIT_NOFILE) against what a job needs. Supervisor process, before it forks. */
#ifndef DAEMON_DESCRIPTOR_LIMIT_H
#define DAEMON_DESCRIPTOR_LIMIT_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

/* Raises the soft limit to the hard one, for this process and the workers that it forks. STATUS_INVALID: the
 * job needs more descriptors than the hard limit; the text names both numbers. */
enum status descriptor_limit_raise(const struct job *job, struct error *error);

#endif
