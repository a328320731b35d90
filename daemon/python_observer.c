/* Looks for files. Supervisor process; its only thread. */
#include "daemon/python_observer.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INSTALLED "../lib/coalesced/observer.py" /* seen from the folder of this program */
#define IN_SOURCES "../../scripts/observer.py"

/* The folder of this program, in `text`. */
static const char *program_folder(char text[PATH_MAX])
{
    const ssize_t length = readlink("/proc/self/exe", text, PATH_MAX - 1);
    text[length > 0 ? length : 0] = '\0';
    return dirname(text);
}

static enum status find_script(char script[PATH_MAX], struct error *error)
{
    static const char *const places[] = {INSTALLED, IN_SOURCES};
    char text[PATH_MAX], path[PATH_MAX + sizeof INSTALLED];
    const char *folder = program_folder(text);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, places[i]);
        if (access(path, R_OK) == 0 && realpath(path, script) != NULL)
            return STATUS_OK;
    }
    return error_set(error, STATUS_NOT_FOUND,
                     "there is no observer.py at %.150s/" INSTALLED
                     ", where it is installed, nor at %.150s/" IN_SOURCES,
                     folder, folder);
}

/* Whether execvp would find the program. */
static bool is_executable(const char *name)
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

enum status python_observer_find(struct python_observer *out, const struct job *job, struct error *error)
{
    *out = (struct python_observer){0};
    if (!job->environment.has_gymnasium && !job->environment.has_class)
        return STATUS_OK;
    if (!is_executable(job->environment.python))
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: expected a Python interpreter, a path or a name in PATH",
                         job->environment.python);
    const enum status status = find_script(out->script, error);
    out->command = (struct child_command){.interpreter = job->environment.python, .script = out->script};
    return status;
}

const struct child_command *python_observer_command(const struct python_observer *observer)
{
    return observer->script[0] != '\0' ? &observer->command : NULL;
}
