/* Lists the folders of each part of the program, as seen from /proc/self/exe. */
#include "kernels/base/program_folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seen from the program's folder; NULL: no further one. */
static const char *const below_program[PROGRAM_PARTS][PROGRAM_FOLDERS_MAX] = {
    [PROGRAM_PLUGIN] = {"", "/..", "/../lib/coalesced"},
    [PROGRAM_WORKER] = {"/../lib/coalesced", "/../../worker/python"},
    [PROGRAM_COMMAND] = {"/../lib/coalesced", "/../../scripts"},
};

enum status program_folders_find(struct program_folders *folders, enum program_part part, struct error *error)
{
    char program[PATH_MAX];
    const char *set = part == PROGRAM_PLUGIN ? secure_getenv("COALESCED_PLUGINS") : NULL;
    if (set != NULL && *set != '\0') {
        folders->count = 1;
        if ((size_t)snprintf(folders->path[0], PATH_MAX, "%s", set) >= PATH_MAX)
            return error_set(error, STATUS_UNAVAILABLE, "COALESCED_PLUGINS: the path is too long");
        return STATUS_OK;
    }
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return error_set(error, STATUS_UNAVAILABLE,
                         "/proc/self/exe cannot be read: the program's own files are not found");
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    folders->count = 0;
    for (int i = 0; i < PROGRAM_FOLDERS_MAX && below_program[part][i] != NULL; i++) {
        char *path = folders->path[folders->count];
        if ((size_t)snprintf(path, PATH_MAX, "%s%s", program, below_program[part][i]) < PATH_MAX)
            folders->count++;
    }
    return STATUS_OK;
}

enum status program_folders_have(const struct program_folders *folders, const char *file, char path[PATH_MAX])
{
    for (uint32_t i = 0; i < folders->count; i++) {
        const int length = snprintf(path, PATH_MAX, "%s/%s", folders->path[i], file);
        if (length < PATH_MAX && access(path, F_OK) == 0)
            return STATUS_OK;
    }
    return STATUS_NOT_FOUND;
}
