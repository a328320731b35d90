/* `coalesced export`: writes the model of a checkpoint as ONNX. The command's process. */
#include "daemon/commands/commands.h"

#include "daemon/commands/job_files.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/job/job_table.h"
#include "worker/reinforce/job_open.h"

/* Where the checkpoint does not say what the environment's spaces are, the environment itself says it. */
static enum status export_policy(const struct arguments *arguments, const struct job *job,
                                 struct error *error)
{
    struct environment_description description;
    struct environments *environments = NULL;
    enum status status = job_read_environment(&description, path_of(arguments->checkpoint), error);
    const struct environment_spec *spec = &description.spec;
    if (status == STATUS_NOT_FOUND) {
        status = job_command_environments_open(&environments, job, 1, 0, error);
        spec = status == STATUS_OK ? environments_spec(environments) : NULL;
    }
    if (status == STATUS_OK)
        status = policy_export(arguments->onnx, arguments->checkpoint, job, spec, error);
    environments_close(environments);
    environment_description_fini(&description);
    return status;
}

enum status export_model(const struct arguments *arguments, struct job *job, struct error *error)
{
    enum status status = job_files_of_checkpoint(job, arguments->checkpoint, JOB_FILES_ANY_KIND, error);
    if (status != STATUS_OK)
        return status;
    job_resolve(job);
    if (job->kind == JOB_REINFORCE)
        return export_policy(arguments, job, error);
    if (job->kind == JOB_PARAMETER_SERVER)
        return classifier_export(arguments->onnx, arguments->checkpoint, job, error);
    return error_set(
        error, STATUS_INVALID,
        "%.300s is of a job of the kind \"%s\": expected a policy or a ResNet, which are what can be "
        "written as ONNX",
        arguments->checkpoint, job_kind_name(job->kind));
}
