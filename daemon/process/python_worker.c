/* Finds the interpreter and the script of workers in Python. The supervisor's or a command's only thread. */
#include "daemon/process/python_worker.h"

#include "daemon/process/program.h"
#include "worker/net/wire.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INSTALLED "../lib/coalesced" /* seen from the folder of this program */
#define IN_SOURCES "../../worker/python"

/* The folder of this program, in `text`. */
static const char *program_folder(char text[PATH_MAX])
{
    const ssize_t length = readlink("/proc/self/exe", text, PATH_MAX - 1);
    text[length > 0 ? length : 0] = '\0';
    return dirname(text);
}

static enum status find_script(char script[PATH_MAX], const char *name, struct error *error)
{
    static const char *const places[] = {INSTALLED, IN_SOURCES};
    char text[PATH_MAX], path[2 * PATH_MAX];
    const char *folder = program_folder(text);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", folder, places[i], name);
        if (access(path, R_OK) == 0 && realpath(path, script) != NULL)
            return STATUS_OK;
    }
    return error_set(error, STATUS_NOT_FOUND,
                     "there is no %s in %.150s/" INSTALLED
                     ", where it is installed, nor in %.150s/" IN_SOURCES,
                     name, folder, folder);
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
