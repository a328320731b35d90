/* The life of a checkpoint's folder: made as N.tmp, kept as the best one, published as N, pruned or
 * abandoned. The saver's background thread; abandoning also the loop's; scores any thread.
 *
 * A checkpoint becomes visible by one rename, N.tmp to N (publish_take_name), and ceases to be visible by
 * one rename, N to N.tmp, before its files are removed: a death midway leaves no folder that looks like a
 * damaged checkpoint.
 *
 * RUN/checkpoints/best is a second name for the files of the best checkpoint so far: hard links to files that
 * are written and synced, in a folder that takes its name by one rename. It is made before its checkpoint
 * gets its own name: after a death between the two, the run goes on from an older checkpoint and finds itself
 * equally good, not better. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECKPOINT_BEST "best"

/* ---- removing ---- */

/* Removes a folder with all its files; an absent one is no failure. */
static enum status publish_remove_tree(struct path path, struct error *error)
{
    return file_remove(path) ? STATUS_OK : error_set_errno(error, errno, "%s: cannot be removed", path.text);
}

/* From the rename on the folder is no checkpoint any more. */
static enum status publish_remove_checkpoint(struct path run, uint64_t update, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES], removed_text[CHECKPOINT_PATH_BYTES];
    const struct path path = checkpoint_folder(text, run, update, false);
    const struct path removed = checkpoint_folder(removed_text, run, update, true);
    if (!file_rename(path, removed, 0))
        return error_set_errno(error, errno, "%s: cannot be removed", text);
    return publish_remove_tree(removed, error);
}

void checkpoint_abandon(struct path run, uint64_t update)
{
    char text[CHECKPOINT_PATH_BYTES];
    struct error error = {0};
    if (publish_remove_tree(checkpoint_folder(text, run, update, true), &error) != STATUS_OK)
        log_warning("%s", error.text);
}

/* ---- making N.tmp ---- */

static enum status publish_remove_temporaries(struct path run, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    struct checkpoint_list list;
    enum status status = checkpoint_list(&list, run, true, error);
    for (size_t i = 0; i < list.count && status == STATUS_OK; i++)
        status = publish_remove_tree(checkpoint_folder(text, run, list.numbers[i], true), error);
    free(list.numbers);
    if (status != STATUS_OK)
        return status;
    return publish_remove_tree(checkpoint_path(text, run, "checkpoints/" CHECKPOINT_BEST ".tmp"), error);
}

enum status checkpoint_begin(struct path run, uint64_t update, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    struct path path = checkpoint_path(text, run, "checkpoints");
    enum status status = STATUS_OK;
    if (file_make_folder(path))
        status = file_sync_folder(run, error);
    else if (errno != EEXIST)
        status = error_set_errno(error, errno, "%s: cannot be made", text);
    if (status == STATUS_OK)
        status = publish_remove_temporaries(run, error);
    path = checkpoint_folder(text, run, update, true);
    if (status == STATUS_OK && !file_make_folder(path))
        status = error_set_errno(error, errno, "%s: cannot be made", text);
    return status;
}

enum status checkpoint_probe(struct path run, struct error *error)
{
    enum status status = checkpoint_begin(run, 0, error);
    if (status != STATUS_OK)
        return error_of_output(error);
    checkpoint_abandon(run, 0);
    return STATUS_OK;
}

/* ---- setting aside ---- */

static enum status publish_set_aside_one(struct path run, uint64_t number, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES], aside_text[CHECKPOINT_PATH_BYTES];
    const struct path path = checkpoint_folder(text, run, number, false);
    const struct path aside = checkpoint_path(aside_text, run, "checkpoints/%08" PRIu64 ".ahead", number);
    const enum status status = publish_remove_tree(aside, error);
    if (status != STATUS_OK)
        return status;
    if (!file_rename(path, aside, 0))
        return error_set_errno(error, errno, "%s: cannot be renamed", text);
    log_warning("the checkpoint %s is set aside as %s", text, aside_text);
    return STATUS_OK;
}

enum status checkpoint_set_aside(struct path run, uint64_t update, struct error *error)
{
    struct checkpoint_list list;
    enum status status = checkpoint_list(&list, run, false, error);
    for (size_t i = 0; i < list.count && status == STATUS_OK; i++)
        if (list.numbers[i] > update)
            status = publish_set_aside_one(run, list.numbers[i], error);
    free(list.numbers);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status; /* there is no folder with checkpoints */
}

/* ---- publishing ---- */

/* Removes all but the newest `keep`. A number above `update` can only be a damaged checkpoint, which a
 * resumed run skipped: it is neither counted nor removed. A failure is logged; the new checkpoint stands. */
static void checkpoint_prune(struct path run, uint64_t update, uint32_t keep)
{
    struct checkpoint_list list;
    struct error error = {0};
    enum status status = checkpoint_list(&list, run, false, &error);
    size_t counted = list.count;
    while (counted > 0 && list.numbers[counted - 1] > update)
        counted--;
    for (size_t i = 0; i + keep < counted && status == STATUS_OK; i++)
        status = publish_remove_checkpoint(run, list.numbers[i], &error);
    if (status != STATUS_OK)
        log_warning("%s", error.text);
    free(list.numbers);
}

/* Renames `from` to `to`: the checkpoint is visible from here on. One of that name is exchanged for the new
 * one in the same step, and stands at `from` then. Where the file system cannot exchange, it is removed
 * first.
 */
static enum status publish_take_name(struct path from, struct path to, struct error *error)
{
    if (file_rename(from, to, 0))
        return STATUS_OK;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
        return error_set_errno(error, errno, "%s: cannot be renamed", from.text);
    if (file_rename(from, to, RENAME_EXCHANGE))
        return STATUS_OK;
    enum status status = publish_remove_tree(to, error);
    if (status == STATUS_OK && !file_rename(from, to, 0))
        status = error_set_errno(error, errno, "%s: cannot be renamed", from.text);
    return status;
}

/* Writes a log to the disk. A missing log has been moved away; its writer syncs it before it closes it. What
 * is no file of the run has the log's name then, and the writer does not use it. */
static enum status publish_sync_log(struct path run, const char *name, struct error *error)
{
    int fd;
    enum status status = file_open_below(&fd, run, name, O_RDONLY, error);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND || status == STATUS_IO ? STATUS_OK : status;
    if (fdatasync(fd) != 0)
        status = error_set_errno(error, errno, "%s/%s: cannot be written to the disk", run.text, name);
    close(fd);
    return status;
}

/* Writes the run's logs to the disk: a loss of power must not leave a checkpoint that is ahead of its logs.
 */
static enum status publish_sync_logs(struct path run, struct error *error)
{
    enum status status = STATUS_OK;
    for (int log = 0; log < RUN_LOGS && status == STATUS_OK; log++)
        status = publish_sync_log(run, run_log_name(log), error);
    return status;
}

enum status checkpoint_publish(struct path run, uint64_t update, uint32_t keep, struct error *error)
{
    char from_text[CHECKPOINT_PATH_BYTES], to_text[CHECKPOINT_PATH_BYTES], parent[CHECKPOINT_PATH_BYTES];
    const struct path from = checkpoint_folder(from_text, run, update, true);
    const struct path to = checkpoint_folder(to_text, run, update, false);
    enum status status = publish_sync_logs(run, error);
    if (status == STATUS_OK)
        status = publish_take_name(from, to, error);
    if (status == STATUS_OK)
        status = file_sync_folder(checkpoint_path(parent, run, "checkpoints"), error);
    if (status != STATUS_OK)
        return status;
    checkpoint_abandon(run, update); // a damaged one that was exchanged
    checkpoint_prune(run, update, keep);
    return STATUS_OK;
}

/* ---- scores ---- */

bool checkpoint_score_better(const struct checkpoint_score *score, const struct checkpoint_score *than)
{
    if (score->measure == CHECKPOINT_UNMEASURED || than->measure != score->measure)
        return score->measure != CHECKPOINT_UNMEASURED;
    return score->measure == CHECKPOINT_HELD_OUT_LOSS ? score->value < than->value
                                                      : score->value > than->value;
}

enum status checkpoint_best_score(struct path run, struct checkpoint_score *score, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    struct checkpoint_counters counters = {0};
    struct error why = {0};
    const enum status status =
        checkpoint_check(checkpoint_path(text, run, "checkpoints/" CHECKPOINT_BEST), &counters, &why);
    *score = counters.score;
    if (status == STATUS_OK || status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (status != STATUS_CORRUPT && status != STATUS_IO)
        return error_set(error, status, "%s", why.text);
    log_warning("the best checkpoint, %s, is damaged, and the next one takes its place: %s", text, why.text);
    return STATUS_OK;
}

/* ---- the best checkpoint ---- */

/* A file that the checkpoint does not have is left out. */
static enum status publish_best_link(struct path from, struct path to, const char *name, struct error *error)
{
    char old_text[CHECKPOINT_PATH_BYTES], new_text[CHECKPOINT_PATH_BYTES];
    const struct path old = checkpoint_path(old_text, from, "%s", name);
    const struct path new = checkpoint_path(new_text, to, "%s", name);
    if (file_link(old, new) || errno == ENOENT)
        return STATUS_OK;
    return error_set_errno(error, errno, "%s: cannot be made a link to %s", new_text, old_text);
}

static enum status publish_make_best(struct path from, struct path to, struct error *error)
{
    enum status status = publish_remove_tree(to, error);
    if (status == STATUS_OK && !file_make_folder(to))
        status = error_set_errno(error, errno, "%s: cannot be made", to.text);
    for (int i = 0; i < CHECKPOINT_FILES_MAX && status == STATUS_OK; i++)
        status = publish_best_link(from, to, checkpoint_file_names[i], error);
    if (status == STATUS_OK)
        status = publish_best_link(from, to, MANIFEST_NAME, error);
    return status == STATUS_OK ? file_sync_folder(to, error) : status;
}

enum status checkpoint_keep_best(struct path run, uint64_t update, struct error *error)
{
    char from_text[CHECKPOINT_PATH_BYTES], made_text[CHECKPOINT_PATH_BYTES], best_text[CHECKPOINT_PATH_BYTES],
        parent[CHECKPOINT_PATH_BYTES];
    const struct path from = checkpoint_folder(from_text, run, update, true);
    const struct path made = checkpoint_path(made_text, run, "checkpoints/" CHECKPOINT_BEST ".tmp");
    const struct path best = checkpoint_path(best_text, run, "checkpoints/" CHECKPOINT_BEST);
    enum status status = publish_make_best(from, made, error);
    if (status == STATUS_OK)
        status = publish_sync_logs(run, error);
    if (status == STATUS_OK)
        status = publish_take_name(made, best, error);
    if (status == STATUS_OK)
        status = file_sync_folder(checkpoint_path(parent, run, "checkpoints"), error);
    return status == STATUS_OK ? publish_remove_tree(made, error) : status; // the former best one
}
