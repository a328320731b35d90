/* Finds Python and the scripts of its workers. The supervisor's or a command's only thread. */
#include "daemon/process/python_program.h"

#include "kernels/base/program_files.h"
#include "worker/net/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool program_exists(const char *name)
{
    const char *path = getenv("PATH");
    char *copy = strchr(name, '/') == NULL && path != NULL ? strdup(path) : NULL;
    bool found = copy == NULL && access(name, X_OK) == 0;
    char *rest = NULL;
    for (char *folder = copy != NULL ? strtok_r(copy, ":", &rest) : NULL; folder != NULL && !found;
         folder = strtok_r(NULL, ":", &rest)) {
        char whole[PATH_MAX];
        found = (size_t)snprintf(whole, sizeof whole, "%s/%s", folder, name) < sizeof whole &&
                access(whole, X_OK) == 0;
    }
    free(copy);
    return found;
}

/* ---- workers in Python ---- */

static enum status find_worker(struct python_worker *out, enum wire_role role, const char *interpreter,
                               const char *script, struct error *error)
{
    char path[PATH_MAX];
    out->role = (uint8_t)role;
    out->interpreter = interpreter;
    if (!program_exists(interpreter))
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: expected a Python interpreter, a path or a name in PATH", interpreter);
    const enum status status = program_find(path, PROGRAM_WORKER, script, error);
    return status == STATUS_OK && realpath(path, out->script) == NULL
               ? error_set_errno(error, errno, "%.300s", path)
               : status;
}

enum status python_worker_find(struct python_worker *out, const struct job *job, struct error *error)
{
    *out = (struct python_worker){0};
    if (job_has_python_environments(job))
        return find_worker(out, WIRE_ROLE_OBSERVER, job->environment.python, "observer.py", error);
    if (job->trainers.has_class)
        return find_worker(out, WIRE_ROLE_TRAINER, job->trainers.python, "trainer.py", error);
    return STATUS_OK;
}
