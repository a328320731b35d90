/* Looks for the program's files, as seen from /proc/self/exe, and loads plug-ins with dlopen. */
#include "kernels/base/program_files.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FOLDERS_MAX = 3 };

/* Seen from the program's folder; NULL: no further one. */
static const char *const below_program[PROGRAM_PARTS][FOLDERS_MAX] = {
    [PROGRAM_PLUGIN] = {"", "/..", "/../lib/coalesced"},
    [PROGRAM_WORKER] = {"/../lib/coalesced", "/../../worker/python"},
    [PROGRAM_COMMAND] = {"/../lib/coalesced", "/../../scripts"},
};

/* Whether the folder, below `of`, has the file. */
static bool has_file(char path[PATH_MAX], const char *of, const char *below, const char *file)
{
    return snprintf(path, PATH_MAX, "%s%s/%s", of, below, file) < PATH_MAX && access(path, F_OK) == 0;
}

enum status program_find(char path[PATH_MAX], enum program_part part, const char *file, struct error *error)
{
    char program[PATH_MAX];
    const char *const *below = below_program[part];
    const char *set = part == PROGRAM_PLUGIN ? secure_getenv("COALESCED_PLUGINS") : NULL;
    if (set != NULL && *set != '\0')
        return has_file(path, set, "", file)
                   ? STATUS_OK
                   : error_set(error, STATUS_UNAVAILABLE, "there is no %s in %.300s", file, set);
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return error_set(error, STATUS_UNAVAILABLE,
                         "/proc/self/exe cannot be read: the program's own files are not found");
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    for (int i = 0; i < FOLDERS_MAX && below[i] != NULL; i++)
        if (has_file(path, program, below[i], file))
            return STATUS_OK;
    if (part == PROGRAM_PLUGIN)
        return error_set(error, STATUS_UNAVAILABLE,
                         "there is no %s in %.300s, above it or in ../lib/coalesced", file, program);
    return error_set(error, STATUS_NOT_FOUND,
                     "there is no %s in %.150s%s, where it is installed, nor in %.150s%s", file, program,
                     below[0], program, below[1]);
}

enum status plugin_load(void (**function)(void), const char *path, const char *name, struct error *error)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "cannot be loaded: %s", dlerror());
    *(void **)function = dlsym(library, name);
    dlclose(library); /* stays loaded: RTLD_NODELETE */
    return *function != NULL
               ? STATUS_OK
               : error_set(error, STATUS_UNAVAILABLE, "is no plug-in: it has no function %s()", name);
}
