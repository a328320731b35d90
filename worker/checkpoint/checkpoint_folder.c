/* Names of checkpoint folders, and the list of those in RUN/checkpoints. Any thread. */
#include "worker/checkpoint/checkpoint_internal.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NUMBER_BYTES = 24 };

#define TEMPORARY_SUFFIX ".tmp"

/* ---- names ---- */

enum status checkpoint_path(char path[CHECKPOINT_PATH_BYTES], struct error *error, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(path, CHECKPOINT_PATH_BYTES, format, list);
    va_end(list);
    if (length >= 0 && length < CHECKPOINT_PATH_BYTES)
        return STATUS_OK;
    return error_set_errno(error, ENAMETOOLONG, "%.100s...", path);
}

enum status checkpoint_folder(char path[CHECKPOINT_PATH_BYTES], const char *run_dir, uint64_t update,
                              bool temporary, struct error *error)
{
    return checkpoint_path(path, error, "%s/checkpoints/%08" PRIu64 "%s", run_dir, update,
                           temporary ? TEMPORARY_SUFFIX : "");
}

bool checkpoint_number(const char *name, size_t length, uint64_t *update)
{
    char again[NUMBER_BYTES];
    *update = 0;
    for (size_t i = 0; i < length; i++) {
        const unsigned digit = (unsigned char)name[i] - (unsigned)'0';
        if (digit > 9 || __builtin_mul_overflow(*update, 10, update) ||
            __builtin_add_overflow(*update, digit, update))
            return false;
    }
    return (size_t)snprintf(again, sizeof again, "%08" PRIu64, *update) == length;
}

/* ---- listing ---- */

static bool folder_is_checkpoint(const char *name, uint64_t *update, bool *temporary)
{
    size_t length = strlen(name), suffix = strlen(TEMPORARY_SUFFIX);
    *temporary = length > suffix && strcmp(name + length - suffix, TEMPORARY_SUFFIX) == 0;
    return checkpoint_number(name, *temporary ? length - suffix : length, update);
}

enum status checkpoint_list(const char *run_dir,
                            enum status (*each)(void *context, uint64_t update, bool temporary,
                                                struct error *error),
                            void *context, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_path(path, error, "%s/checkpoints", run_dir);
    if (status != STATUS_OK)
        return status;
    DIR *folder = opendir(path);
    if (folder == NULL)
        return error_set_errno(error, errno, "%s", path);
    while (status == STATUS_OK) {
        uint64_t update;
        bool temporary;
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL && errno != 0)
            status = error_set_errno(error, errno, "%s: cannot be listed", path);
        if (entry == NULL)
            break;
        if (folder_is_checkpoint(entry->d_name, &update, &temporary))
            status = each(context, update, temporary, error);
    }
    closedir(folder);
    return status;
}
