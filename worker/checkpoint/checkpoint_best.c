/* Keeps the best checkpoint so far under a second name, RUN/checkpoints/best. The saver's background thread;
 * checkpoint_best_score runs on any.
 *
 * The folder holds hard links to files that are written and synced, and takes its name by one rename: it is
 * complete at any moment. It is made before its checkpoint gets its own name. After a death between the two,
 * the run continues from an older checkpoint and finds itself equally good, not better. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/base/log.h"

#include <errno.h>

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

/* ---- the folder ---- */

/* A file that the checkpoint does not have is left out. */
static enum status best_link(struct path from, struct path to, const char *name, struct error *error)
{
    char old_text[CHECKPOINT_PATH_BYTES], new_text[CHECKPOINT_PATH_BYTES];
    const struct path old = checkpoint_path(old_text, from, "%s", name);
    const struct path new = checkpoint_path(new_text, to, "%s", name);
    if (file_link(old, new) || errno == ENOENT)
        return STATUS_OK;
    return error_set_errno(error, errno, "%s: cannot be made a link to %s", new_text, old_text);
}

static enum status best_make_folder(struct path from, struct path to, struct error *error)
{
    enum status status = checkpoint_remove_tree(to, error);
    if (status == STATUS_OK && !file_make_folder(to))
        status = error_set_errno(error, errno, "%s: cannot be made", to.text);
    for (int i = 0; i < CHECKPOINT_FILES_MAX && status == STATUS_OK; i++)
        status = best_link(from, to, checkpoint_file_names[i], error);
    if (status == STATUS_OK)
        status = best_link(from, to, MANIFEST_NAME, error);
    return status == STATUS_OK ? file_sync_folder(to, error) : status;
}

enum status checkpoint_keep_best(struct path run, uint64_t update, struct error *error)
{
    char from_text[CHECKPOINT_PATH_BYTES], made_text[CHECKPOINT_PATH_BYTES], best_text[CHECKPOINT_PATH_BYTES],
        parent[CHECKPOINT_PATH_BYTES];
    const struct path from = checkpoint_folder(from_text, run, update, true);
    const struct path made = checkpoint_path(made_text, run, "checkpoints/" CHECKPOINT_BEST ".tmp");
    const struct path best = checkpoint_path(best_text, run, "checkpoints/" CHECKPOINT_BEST);
    enum status status = best_make_folder(from, made, error);
    if (status == STATUS_OK)
        status = checkpoint_sync_logs(run, error);
    if (status == STATUS_OK)
        status = checkpoint_take_name(made, best, error);
    if (status == STATUS_OK)
        status = file_sync_folder(checkpoint_path(parent, run, "checkpoints"), error);
    return status == STATUS_OK ? checkpoint_remove_tree(made, error) : status; // the former best one
}
