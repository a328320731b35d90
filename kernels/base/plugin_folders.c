/* Folders below the program. */
#include "kernels/base/plugin_folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status plugin_folders_find(struct plugin_folders *folders, struct error *error)
{
    static const char *const below_program[PLUGIN_FOLDERS_MAX] = {"", "/..", "/../lib/coalesced"};
    char program[PATH_MAX];
    const char *set = secure_getenv("COALESCED_PLUGINS");
    if (set != NULL && *set != '\0') {
        folders->count = 1;
        if ((size_t)snprintf(folders->path[0], PATH_MAX, "%s", set) >= PATH_MAX)
            return error_set(error, STATUS_UNAVAILABLE, "COALESCED_PLUGINS: the path is too long");
        return STATUS_OK;
    }
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return error_set(error, STATUS_UNAVAILABLE, "/proc/self/exe cannot be read: no plug-in is found");
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    folders->count = 0;
    for (int i = 0; i < PLUGIN_FOLDERS_MAX; i++) {
        char *path = folders->path[folders->count];
        if ((size_t)snprintf(path, PATH_MAX, "%s%s", program, below_program[i]) < PATH_MAX)
            folders->count++;
    }
    return STATUS_OK;
}

enum status plugin_folders_have(const struct plugin_folders *folders, const char *file, char path[PATH_MAX])
{
    for (uint32_t i = 0; i < folders->count; i++) {
        const int length = snprintf(path, PATH_MAX, "%s/%s", folders->path[i], file);
        if (length < PATH_MAX && access(path, F_OK) == 0)
            return STATUS_OK;
    }
    return STATUS_NOT_FOUND;
}
