/* `coalesced generate`: prints text that a language model writes. The command's process; its own thread and
 * the math library's. */
#include "daemon/commands/commands.h"
#include "daemon/commands/job_files.h"
#include "worker/model_parallel/language.h"

#include <stdio.h>

enum status generate(const struct arguments *arguments, struct job *job, struct error *error)
{
    enum status status = job_files_of_checkpoint(job, arguments->checkpoint, JOB_MODEL_PARALLEL, error);
    if (status != STATUS_OK)
        return status;
    job_resolve(job);
    return language_generate(job, arguments->checkpoint, &arguments->text, stdout, error);
}
