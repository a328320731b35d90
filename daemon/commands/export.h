/* The command `coalesced export`. The command's process; one thread. */
#ifndef DAEMON_COMMANDS_EXPORT_H
#define DAEMON_COMMANDS_EXPORT_H

#include "daemon/commands/arguments.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

/* Writes the model of arguments->checkpoint to arguments->onnx, with the job of its run. For a policy
 * of an environment in Python such an environment is made, for its spaces. STATUS_INVALID: the model is a
 * language model's. Other errors as job_files_of_checkpoint, job_environments_open, python_spaces_read,
 * policy_export and classifier_export. */
enum status export_model(const struct arguments *arguments, struct job *job, struct error *error);

#endif
