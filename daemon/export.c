/* Which model a checkpoint holds. The command's process. */
#include "daemon/export.h"

#include "daemon/job_files.h"
#include "worker/job/job_table.h"
#include "worker/reinforce/policy_export.h"
#include "worker/server/classifier_export.h"

enum status export_model(const struct arguments *arguments, struct job *job, struct error *error)
{
    enum status status = job_files_of_checkpoint(job, arguments->checkpoint, JOB_FILES_ANY_KIND, error);
    if (status != STATUS_OK)
        return status;
    job_resolve(job);
    if (job->kind == JOB_REINFORCE)
        return policy_export(arguments->onnx, arguments->checkpoint, job, error);
    if (job->kind == JOB_PARAMETER_SERVER)
        return classifier_export(arguments->onnx, arguments->checkpoint, job, error);
    return error_set(
        error, STATUS_INVALID,
        "%.300s is of a job of the kind \"%s\": expected a policy or a ResNet, which are what can be "
        "written as ONNX",
        arguments->checkpoint, job_kind_name(job->kind));
}
