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

/* From the rename on the folder is no checkpoint any more. */
static enum status publish_remove_checkpoint(const char *run_dir, uint64_t update, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES], removed[CHECKPOINT_PATH_BYTES];
    checkpoint_folder(path, run_dir, update, false);
    checkpoint_folder(removed, run_dir, update, true);
    if (rename(path, removed) != 0)
        return error_set_errno(error, errno, "%s: cannot be removed", path);
    return publish_remove_tree(removed, error);
}

void checkpoint_abandon(const char *run_dir, uint64_t update)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct error error = {0};
    checkpoint_folder(path, run_dir, update, true);
    if (publish_remove_tree(path, &error) != STATUS_OK)
        log_warning("%s", error.text);
}

/* ---- making N.tmp ---- */

static enum status publish_remove_temporaries(const char *run_dir, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct checkpoint_list list;
    enum status status = checkpoint_list(&list, run_dir, true, error);
    for (size_t i = 0; i < list.count && status == STATUS_OK; i++) {
        checkpoint_folder(path, run_dir, list.numbers[i], true);
        status = publish_remove_tree(path, error);
    }
    free(list.numbers);
    return status;
}

enum status checkpoint_begin(const char *run_dir, uint64_t update, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = STATUS_OK;
    checkpoint_path(path, "%s/checkpoints", run_dir);
    if (mkdir(path, 0777) == 0)
        status = file_sync_folder(run_dir, error);
    else if (errno != EEXIST)
        status = error_set_errno(error, errno, "%s: cannot be made", path);
    if (status == STATUS_OK)
        status = publish_remove_temporaries(run_dir, error);
    checkpoint_folder(path, run_dir, update, true);
    if (status == STATUS_OK && mkdir(path, 0777) != 0)
        status = error_set_errno(error, errno, "%s: cannot be made", path);
    return status;
}

enum status checkpoint_probe(const char *run_dir, struct error *error)
{
    enum status status = checkpoint_begin(run_dir, 0, error);
    if (status != STATUS_OK)
        return error_of_output(error); /* checkpoints/ may be a link to nowhere, or a file */
    checkpoint_abandon(run_dir, 0);
    return STATUS_OK;
}

/* ---- publishing ---- */

/* Removes all but the newest `keep`. A number above `update` can only be a damaged checkpoint, which a
 * resumed run skipped: it is neither counted nor removed. A failure is logged; the new checkpoint stands. */
static void checkpoint_prune(const char *run_dir, uint64_t update, uint32_t keep)
{
    struct checkpoint_list list;
    struct error error = {0};
    enum status status = checkpoint_list(&list, run_dir, false, &error);
    size_t counted = list.count;
    while (counted > 0 && list.numbers[counted - 1] > update)
        counted--;
    for (size_t i = 0; i + keep < counted && status == STATUS_OK; i++)
        status = publish_remove_checkpoint(run_dir, list.numbers[i], &error);
    if (status != STATUS_OK)
        log_warning("%s", error.text);
    free(list.numbers);
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
    checkpoint_folder(from, run_dir, update, true);
    checkpoint_folder(to, run_dir, update, false);
    checkpoint_path(parent, "%s/checkpoints", run_dir);
    enum status status = checkpoint_take_name(from, to, error);
    if (status == STATUS_OK)
        status = file_sync_folder(parent, error);
    if (status != STATUS_OK)
        return status;
    checkpoint_abandon(run_dir, update); // a damaged one that was exchanged
    checkpoint_prune(run_dir, update, keep);
    return STATUS_OK;
}
