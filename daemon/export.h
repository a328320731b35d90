/* The command `coalesced export`. The command's process; one thread. */
#ifndef DAEMON_EXPORT_H
#define DAEMON_EXPORT_H

#include "daemon/arguments.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

/* Writes the model of arguments->checkpoint to arguments->onnx, with the job of its run. STATUS_INVALID: it
 * is a language model's. Other errors as job_files_of_checkpoint, policy_export and classifier_export. */
enum status export_model(const struct arguments *arguments, struct job *job, struct error *error);

#endif
