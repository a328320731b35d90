/* The limit on open files. Supervisor process, before it forks. Included by commands.c and follow.c. */
#ifndef DAEMON_DESCRIPTORS_H
#define DAEMON_DESCRIPTORS_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

/* Raises the soft limit on open files to the hard one, for this process and the workers that it forks.
 * STATUS_INVALID: the job needs more than the hard limit. */
enum status descriptors_raise_limit(const struct job *job, struct error *error);

#endif
