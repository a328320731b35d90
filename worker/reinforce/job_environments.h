/* Opens the environments that a job names. */
#ifndef WORKER_REINFORCE_JOB_ENVIRONMENTS_H
#define WORKER_REINFORCE_JOB_ENVIRONMENTS_H

#include "worker/environment/environments.h"
#include "worker/job/job.h"

/* Loads the job's plug-in, if it names one, and opens `count` of its environments, of which the first one has
 * the job-wide number `first`. `job` outlives *out. Errors as environment_load and environments_open;
 * STATUS_UNAVAILABLE: the job's environments are in Python. */
enum status job_environments_open(struct environments **out, const struct job *job, uint32_t first,
                                  uint32_t count, struct error *error);

#endif
