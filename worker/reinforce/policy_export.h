/* The command `coalesced export` of a policy. One process, one thread, on the CPU; no messages. */
#ifndef WORKER_REINFORCE_POLICY_EXPORT_H
#define WORKER_REINFORCE_POLICY_EXPORT_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"
#include "worker/job/job.h"

/* Writes the policy of `checkpoint` (as in policy_evaluate), for environments of this spec, to the ONNX file
 * `path` (worker/model/onnx.h). Errors as policy_check, checkpoint_load_model and onnx_write_policy. */
enum status policy_export(const char *path, const char *checkpoint, const struct job *job,
                          const struct environment_spec *spec, struct error *error);

#endif
