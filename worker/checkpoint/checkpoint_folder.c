/* Names of checkpoint folders, the list of those in RUN/checkpoints, and a small file as a whole. Any thread.
 */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 32 };

static const char *const suffixes[] = {"", ".tmp"};

void checkpoint_path(char path[CHECKPOINT_PATH_BYTES], const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(path, CHECKPOINT_PATH_BYTES, format, list);
    va_end(list);
}

void checkpoint_folder(char path[CHECKPOINT_PATH_BYTES], const char *run_dir, uint64_t update, bool temporary)
{
    checkpoint_path(path, "%s/checkpoints/%08" PRIu64 "%s", run_dir, update, suffixes[temporary]);
}

bool checkpoint_number(const char *name, bool temporary, uint64_t *update)
{
    char again[NAME_BYTES];
    *update = strtoull(name, NULL, 10);
    snprintf(again, sizeof again, "%08" PRIu64 "%s", *update, suffixes[temporary]);
    return strcmp(again, name) == 0;
}

/* ---- listing ---- */

static int list_compare(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static bool list_add(struct checkpoint_list *list, uint64_t update)
{
    uint64_t *numbers = reallocarray(list->numbers, list->count + 1, sizeof *numbers);
    if (numbers == NULL)
        return false;
    list->numbers = numbers;
    list->numbers[list->count++] = update;
    return true;
}

enum status checkpoint_list(struct checkpoint_list *list, const char *run_dir, bool temporary,
                            struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = STATUS_OK;
    uint64_t update;
    *list = (struct checkpoint_list){0};
    checkpoint_path(path, "%s/checkpoints", run_dir);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return error_set_errno(error, errno, "%s", path);
    while (status == STATUS_OK) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL && errno != 0)
            status = error_set_errno(error, errno, "%s: cannot be listed", path);
        if (entry == NULL)
            break;
        if (checkpoint_number(entry->d_name, temporary, &update) && !list_add(list, update))
            status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to list it", path);
    }
    closedir(folder);
    if (list->count > 0)
        qsort(list->numbers, list->count, sizeof *list->numbers, list_compare);
    return status;
}

/* ---- a small file ---- */

enum status checkpoint_read_file(char **text, size_t *bytes, const char *path, size_t max,
                                 struct error *error)
{
    uint64_t size;
    int fd;
    *text = NULL;
    enum status status = file_open(&fd, &size, path, error);
    if (status != STATUS_OK)
        return status;
    if (size > max) {
        close(fd);
        return error_set(error, STATUS_CORRUPT, "%s: expected at most %zu bytes, got %" PRIu64, path, max,
                         size);
    }
    *text = calloc(1, (size_t)size + 1);
    const ssize_t read = *text != NULL ? file_read_at(fd, *text, (size_t)size, 0) : 0;
    if (*text == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to read it", path);
    else if (read < 0)
        status = error_set_errno(error, errno, "%s: cannot be read", path);
    *bytes = (size_t)read;
    close(fd);
    return status;
}
