/* Looks through the folders below the program, and loads with dlopen. */
#include "kernels/base/plugin_folders.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the folder, below `of`, has the file. */
static bool has_file(char path[PATH_MAX], const char *of, const char *below, const char *file)
{
    return snprintf(path, PATH_MAX, "%s%s/%s", of, below, file) < PATH_MAX && access(path, F_OK) == 0;
}

enum status plugin_find(char path[PATH_MAX], const char *file, struct error *error)
{
    static const char *const below_program[] = {"", "/..", "/../lib/coalesced"};
    char program[PATH_MAX];
    const char *set = secure_getenv("COALESCED_PLUGINS");
    if (set != NULL && *set != '\0')
        return has_file(path, set, "", file)
                   ? STATUS_OK
                   : error_set(error, STATUS_UNAVAILABLE, "there is no %s in %.300s", file, set);
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return error_set(error, STATUS_UNAVAILABLE, "/proc/self/exe cannot be read: no plug-in is found");
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    for (size_t i = 0; i < sizeof below_program / sizeof below_program[0]; i++)
        if (has_file(path, program, below_program[i], file))
            return STATUS_OK;
    return error_set(error, STATUS_UNAVAILABLE, "there is no %s in %.300s, above it or in ../lib/coalesced",
                     file, program);
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
