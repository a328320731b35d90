/* Names and parses checkpoint folders, lists those in RUN/checkpoints, and reads a small file. Any thread. */
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

struct path checkpoint_path(char text[CHECKPOINT_PATH_BYTES], struct path folder, const char *format, ...)
{
    va_list list;
    const int length = snprintf(text, CHECKPOINT_PATH_BYTES, "%s/", folder.text);
    const size_t used = length < CHECKPOINT_PATH_BYTES ? (size_t)length : CHECKPOINT_PATH_BYTES - 1;
    va_start(list, format);
    vsnprintf(text + used, CHECKPOINT_PATH_BYTES - used, format, list);
    va_end(list);
    return path_below(folder, text);
}

struct path checkpoint_folder(char text[CHECKPOINT_PATH_BYTES], struct path run, uint64_t update,
                              bool temporary)
{
    return checkpoint_path(text, run, "checkpoints/%08" PRIu64 "%s", update, suffixes[temporary]);
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

enum status checkpoint_list(struct checkpoint_list *list, struct path run, bool temporary,
                            struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    uint64_t update;
    int fd;
    *list = (struct checkpoint_list){0};
    enum status status = file_open_folder(&fd, checkpoint_path(text, run, "checkpoints"), error);
    if (status != STATUS_OK)
        return status;
    DIR *folder = fdopendir(fd);
    if (folder == NULL) {
        close(fd);
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory to list it", text);
    }
    while (status == STATUS_OK) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL && errno != 0)
            status = error_set_errno(error, errno, "%s: cannot be listed", text);
        if (entry == NULL)
            break;
        if (checkpoint_number(entry->d_name, temporary, &update) && !list_add(list, update))
            status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to list it", text);
    }
    closedir(folder);
    if (list->count > 0)
        qsort(list->numbers, list->count, sizeof *list->numbers, list_compare);
    return status;
}

/* ---- a small file ---- */

enum status checkpoint_read_file(char **text, size_t *bytes, struct path path, size_t max,
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
        return error_set(error, STATUS_CORRUPT, "%s: expected at most %zu bytes, got %" PRIu64, path.text,
                         max, size);
    }
    *text = calloc(1, (size_t)size + 1);
    const ssize_t read = *text != NULL ? file_read_at(fd, *text, (size_t)size, 0) : 0;
    if (*text == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to read it", path.text);
    else if (read < 0)
        status = error_set_errno(error, errno, "%s: cannot be read", path.text);
    *bytes = (size_t)read;
    close(fd);
    return status;
}
