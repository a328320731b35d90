/* The folders of checkpoints: named, listed, begun, published and removed; see checkpoint.h. The checkpoint
 * thread of a pserver, or of a model-parallel job's lead trainer; their loops, which abandon; and the
 * supervisor for what it reads.
 *
 * A checkpoint becomes one by rename, and ceases to be one by rename, too: it gets its .tmp back before it is
 * removed, so that a death on the way leaves nothing that looks like a damaged checkpoint. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBER_BYTES = 24, DESCRIPTORS_MAX = 8 };

#define TEMPORARY ".tmp"

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
                           temporary ? TEMPORARY : "");
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

static bool is_checkpoint(const char *name, uint64_t *update, bool *temporary)
{
    size_t length = strlen(name), suffix = strlen(TEMPORARY);
    *temporary = length > suffix && strcmp(name + length - suffix, TEMPORARY) == 0;
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
        if (is_checkpoint(entry->d_name, &update, &temporary))
            status = each(context, update, temporary, error);
    }
    closedir(folder);
    return status;
}

/* ---- removing ---- */

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *place)
{
    (void)stat;
    (void)type;
    (void)place;
    return remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

/* A folder with all it holds; what is not there is removed. */
static enum status remove_tree(const char *path, struct error *error)
{
    int failure = nftw(path, remove_one, DESCRIPTORS_MAX, FTW_DEPTH | FTW_PHYS);
    if (failure < 0)
        failure = errno;
    if (failure == 0 || failure == ENOENT)
        return STATUS_OK;
    return error_set_errno(error, failure, "%s: cannot be removed", path);
}

static enum status remove_temporary(void *context, uint64_t update, bool temporary, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = STATUS_OK;
    if (temporary)
        status = checkpoint_folder(path, context, update, true, error);
    if (temporary && status == STATUS_OK)
        status = remove_tree(path, error);
    return status;
}

/* A checkpoint that is none any more from the rename on. */
static enum status remove_checkpoint(const char *run_dir, uint64_t update, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES], doomed[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_folder(path, run_dir, update, false, error);
    if (status == STATUS_OK)
        status = checkpoint_folder(doomed, run_dir, update, true, error);
    if (status == STATUS_OK && rename(path, doomed) != 0)
        status = error_set_errno(error, errno, "%s: cannot be removed", path);
    return status == STATUS_OK ? remove_tree(doomed, error) : status;
}

void checkpoint_abandon(const char *run_dir, uint64_t update)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct error error = {0};
    enum status status = checkpoint_folder(path, run_dir, update, true, &error);
    if (status == STATUS_OK)
        status = remove_tree(path, &error);
    if (status != STATUS_OK)
        log_warning("%s", error.text);
}

/* ---- beginning ---- */

enum status checkpoint_begin(const char *run_dir, uint64_t update, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_path(path, error, "%s/checkpoints", run_dir);
    if (status != STATUS_OK)
        return status;
    if (mkdir(path, 0777) == 0)
        status = file_sync_folder(run_dir, error);
    else if (errno != EEXIST)
        status = error_set_errno(error, errno, "%s: cannot be made", path);
    if (status == STATUS_OK)
        status = checkpoint_list(run_dir, remove_temporary, (void *)(uintptr_t)run_dir, error);
    if (status == STATUS_OK)
        status = checkpoint_folder(path, run_dir, update, true, error);
    if (status == STATUS_OK && mkdir(path, 0777) != 0)
        status = error_set_errno(error, errno, "%s: cannot be made", path);
    return status;
}

/* ---- publishing ---- */

/* The checkpoints before the one that is published. */
struct keeping {
    uint64_t update;
    uint64_t *older; // (capacity), `count` of them used
    size_t count, capacity;
};

static enum status note_older(void *context, uint64_t update, bool temporary, struct error *error)
{
    struct keeping *keeping = context;
    if (temporary || update >= keeping->update)
        return STATUS_OK;
    if (keeping->count == keeping->capacity) {
        size_t capacity = 2 * keeping->capacity + 16;
        uint64_t *older = reallocarray(keeping->older, capacity, sizeof *older);
        if (older == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for %zu checkpoints' numbers", capacity);
        keeping->older = older;
        keeping->capacity = capacity;
    }
    keeping->older[keeping->count++] = update;
    return STATUS_OK;
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/* What is older than the newest `keep`. A later number than `update` can only be a damaged one, which a
 * resumed run passed over: it neither counts nor goes. A failure is told and changes nothing of what was
 * published. */
static void remove_older(const char *run_dir, uint64_t update, uint32_t keep)
{
    const size_t stay = keep > 0 ? keep - 1 : 0;
    struct keeping keeping = {.update = update};
    struct error error = {0};
    enum status status = checkpoint_list(run_dir, note_older, &keeping, &error);
    if (keeping.count > 0)
        qsort(keeping.older, keeping.count, sizeof *keeping.older, compare_numbers);
    for (size_t i = 0; i + stay < keeping.count && status == STATUS_OK; i++)
        status = remove_checkpoint(run_dir, keeping.older[i], &error);
    if (status != STATUS_OK)
        log_warning("%s", error.text);
    free(keeping.older);
}

/* Gives the new folder its name. A checkpoint that has it already, a damaged one, changes places with it at
 * once, or, on a file system that cannot do that, goes first. */
static enum status take_name(const char *from, const char *to, struct error *error)
{
    if (rename(from, to) == 0)
        return STATUS_OK;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
        return error_set_errno(error, errno, "%s: cannot be renamed", from);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return STATUS_OK;
    enum status status = remove_tree(to, error);
    if (status == STATUS_OK && rename(from, to) != 0)
        status = error_set_errno(error, errno, "%s: cannot be renamed", from);
    return status;
}

enum status checkpoint_publish(const char *run_dir, uint64_t update, uint32_t keep, struct error *error)
{
    char from[CHECKPOINT_PATH_BYTES], to[CHECKPOINT_PATH_BYTES], parent[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_folder(from, run_dir, update, true, error);
    if (status == STATUS_OK)
        status = checkpoint_folder(to, run_dir, update, false, error);
    if (status == STATUS_OK)
        status = checkpoint_path(parent, error, "%s/checkpoints", run_dir);
    if (status == STATUS_OK)
        status = take_name(from, to, error);
    if (status == STATUS_OK)
        status = file_sync_folder(parent, error);
    if (status != STATUS_OK)
        return status;
    checkpoint_abandon(run_dir, update); // what it changed places with
    remove_older(run_dir, update, keep);
    return STATUS_OK;
}
