/* The life of a checkpoint's folder: made as N.tmp, published as N, pruned or abandoned. The saver's
 * background thread; abandoning also the loop's.
 *
 * A checkpoint becomes visible by one rename, N.tmp to N (checkpoint_take_name), and ceases to be visible by
 * one rename, N to N.tmp, before its files are removed: a death midway leaves no folder that looks like a
 * damaged checkpoint. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DESCRIPTORS_MAX = 8 };

/* ---- removing ---- */

static int publish_remove_one(const char *path, const struct stat *stat, int type, struct FTW *place)
{
    (void)stat;
    (void)type;
    (void)place;
    return remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

/* Removes a folder with all its files; an absent one is no failure. */
static enum status publish_remove_tree(const char *path, struct error *error)
{
    int failure = nftw(path, publish_remove_one, DESCRIPTORS_MAX, FTW_DEPTH | FTW_PHYS);
    if (failure < 0)
        failure = errno;
    if (failure == 0 || failure == ENOENT)
        return STATUS_OK;
    return error_set_errno(error, failure, "%s: cannot be removed", path);
}

static enum status publish_remove_temporary(void *context, uint64_t update, bool temporary,
                                            struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = STATUS_OK;
    if (temporary)
        status = checkpoint_folder(path, context, update, true, error);
    if (temporary && status == STATUS_OK)
        status = publish_remove_tree(path, error);
    return status;
}

/* From the rename on the folder is no checkpoint any more. */
static enum status publish_remove_checkpoint(const char *run_dir, uint64_t update, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES], removed[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_folder(path, run_dir, update, false, error);
    if (status == STATUS_OK)
        status = checkpoint_folder(removed, run_dir, update, true, error);
    if (status == STATUS_OK && rename(path, removed) != 0)
        status = error_set_errno(error, errno, "%s: cannot be removed", path);
    return status == STATUS_OK ? publish_remove_tree(removed, error) : status;
}

void checkpoint_abandon(const char *run_dir, uint64_t update)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct error error = {0};
    enum status status = checkpoint_folder(path, run_dir, update, true, &error);
    if (status == STATUS_OK)
        status = publish_remove_tree(path, &error);
    if (status != STATUS_OK)
        log_warning("%s", error.text);
}

/* ---- making N.tmp ---- */

static enum status publish_make_folder(const char *run_dir, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_path(path, error, "%s/checkpoints", run_dir);
    if (status != STATUS_OK)
        return status;
    if (mkdir(path, 0777) == 0)
        return file_sync_folder(run_dir, error);
    return errno == EEXIST ? STATUS_OK : error_set_errno(error, errno, "%s: cannot be made", path);
}

enum status checkpoint_begin(const char *run_dir, uint64_t update, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = publish_make_folder(run_dir, error);
    if (status == STATUS_OK)
        status = checkpoint_list(run_dir, publish_remove_temporary, (void *)(uintptr_t)run_dir, error);
    if (status == STATUS_OK)
        status = checkpoint_folder(path, run_dir, update, true, error);
    if (status == STATUS_OK && mkdir(path, 0777) != 0)
        status = error_set_errno(error, errno, "%s: cannot be made", path);
    return status;
}

enum status checkpoint_probe(const char *run_dir, struct error *error)
{
    enum status status = checkpoint_begin(run_dir, 0, error);
    if (status == STATUS_OK)
        checkpoint_abandon(run_dir, 0);
    if (status == STATUS_NOT_FOUND) /* a link to nowhere, or a file in its place: no missing input */
        status = error->status = STATUS_IO;
    return status;
}

/* ---- publishing ---- */

/* The numbers of the checkpoints that are older than `update`. */
struct older_list {
    uint64_t update;
    uint64_t *numbers; // (capacity), `count` of them used
    size_t count, capacity;
};

static enum status prune_note_older(void *context, uint64_t update, bool temporary, struct error *error)
{
    struct older_list *older = context;
    if (temporary || update >= older->update)
        return STATUS_OK;
    if (older->count == older->capacity) {
        size_t capacity = 2 * older->capacity + 16;
        uint64_t *numbers = reallocarray(older->numbers, capacity, sizeof *numbers);
        if (numbers == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for %zu checkpoints' numbers", capacity);
        older->numbers = numbers;
        older->capacity = capacity;
    }
    older->numbers[older->count++] = update;
    return STATUS_OK;
}

static int prune_compare_numbers(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/* Removes all but the newest `keep`. A number above `update` can only be a damaged checkpoint, which a
 * resumed run skipped: it is neither counted nor removed. A failure is logged; the new checkpoint stands. */
static void checkpoint_prune(const char *run_dir, uint64_t update, uint32_t keep)
{
    const size_t stay = keep > 0 ? keep - 1 : 0;
    struct older_list older = {.update = update};
    struct error error = {0};
    enum status status = checkpoint_list(run_dir, prune_note_older, &older, &error);
    if (older.count > 0)
        qsort(older.numbers, older.count, sizeof *older.numbers, prune_compare_numbers);
    for (size_t i = 0; i + stay < older.count && status == STATUS_OK; i++)
        status = publish_remove_checkpoint(run_dir, older.numbers[i], &error);
    if (status != STATUS_OK)
        log_warning("%s", error.text);
    free(older.numbers);
}

/* Renames `from` to `to`: the checkpoint is visible from here on. A damaged checkpoint of that name is
 * exchanged for the new one in the same step, or removed first where the file system cannot exchange. */
static enum status checkpoint_take_name(const char *from, const char *to, struct error *error)
{
    if (rename(from, to) == 0)
        return STATUS_OK;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
        return error_set_errno(error, errno, "%s: cannot be renamed", from);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return STATUS_OK;
    enum status status = publish_remove_tree(to, error);
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
        status = checkpoint_take_name(from, to, error);
    if (status == STATUS_OK)
        status = file_sync_folder(parent, error);
    if (status != STATUS_OK)
        return status;
    checkpoint_abandon(run_dir, update); // a damaged one that was exchanged
    checkpoint_prune(run_dir, update, keep);
    return STATUS_OK;
}
