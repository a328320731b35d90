/* The command `coalesced export` of a policy. One process, one thread, on the CPU; no messages. */
#ifndef WORKER_REINFORCE_POLICY_EXPORT_H
#define WORKER_REINFORCE_POLICY_EXPORT_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

/* Writes the policy of `checkpoint` (as in policy_evaluate) to the ONNX file `path` (worker/model/onnx.h).
 * Opens one of the job's environments, for its spaces. Errors as job_environments_open, checkpoint_load_model
 * and onnx_write_policy. */
enum status policy_export(const char *path, const char *checkpoint, const struct job *job,
                          struct error *error);

#endif
