/* The backend on which a job computes. */
#ifndef WORKER_DEVICE_H
#define WORKER_DEVICE_H

#include "kernels/kernels.h"
#include "worker/job/job.h"

/* Opens what the job's /device names, with `threads` math threads. Where the job leaves the choice to us and
 * `tell` is true, a line in the log says what was taken: one of several equal workers is enough for that.
 * Errors as backend_load_device. */
enum status device_open(struct backend **out, const struct job *job, uint32_t threads, bool tell,
                        struct error *error);

#endif
