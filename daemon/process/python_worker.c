/* Finds the interpreter and the script of the workers in Python. The supervisor's or a command's only thread.
 */
#include "daemon/process/python_worker.h"

#include "daemon/process/program.h"
#include "kernels/base/program_files.h"
#include "worker/net/wire.h"

#include <errno.h>
#include <stdlib.h>

static enum status find_script(char script[PATH_MAX], const char *name, struct error *error)
{
    char path[PATH_MAX];
    enum status status = program_find(path, PROGRAM_WORKER, name, error);
    if (status == STATUS_OK && realpath(path, script) == NULL)
        status = error_set_errno(error, errno, "%.300s", path);
    return status;
}

static enum status find(struct python_worker *out, enum wire_role role, const char *interpreter,
                        const char *script, struct error *error)
{
    if (!program_exists(interpreter))
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: expected a Python interpreter, a path or a name in PATH", interpreter);
    out->role = (uint8_t)role;
    out->command = (struct spawn_command){.interpreter = interpreter, .script = out->script};
    return find_script(out->script, script, error);
}

enum status python_worker_find(struct python_worker *out, const struct job *job, struct error *error)
{
    *out = (struct python_worker){0};
    if (job_has_python_environments(job))
        return find(out, WIRE_ROLE_OBSERVER, job->environment.python, "observer.py", error);
    if (job->trainers.has_class)
        return find(out, WIRE_ROLE_TRAINER, job->trainers.python, "trainer.py", error);
    return STATUS_OK;
}

const struct spawn_command *python_worker_command(const struct python_worker *python_worker, uint8_t role)
{
    return role == python_worker->role ? &python_worker->command : NULL;
}
