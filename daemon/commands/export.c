/* `coalesced export`: writes the model of a checkpoint as ONNX. The command's process. */
#include "daemon/commands/commands.h"

#include "daemon/commands/job_files.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/job/job_table.h"
#include "worker/reinforce/job_open.h"

/* The environment itself says what its spaces are, where the checkpoint does not. */
static enum status export_for_environment(const struct arguments *arguments, const struct job *job,
                                          struct error *error)
{
    struct environments *environments;
    enum status status = job_command_environments_open(&environments, job, 1, 0, error);
    if (status == STATUS_OK)
        status = policy_export(arguments->onnx, arguments->checkpoint, job, environments_spec(environments),
                               error);
    environments_close(environments);
    return status;
}

static enum status export_policy(const struct arguments *arguments, const struct job *job,
                                 struct error *error)
{
    struct environment_description description;
    enum status status = job_read_environment(&description, path_of(arguments->checkpoint), error);
    if (status == STATUS_OK)
        status = policy_export(arguments->onnx, arguments->checkpoint, job, &description.spec, error);
    else if (status == STATUS_NOT_FOUND)
        status = export_for_environment(arguments, job, error);
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
