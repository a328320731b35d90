/* A checkpoint's folder and its files: names, making, writing, publishing, pruning, finding, checking,
 * loading. manifest.json is checkpoint_manifest.c's. Writing and publishing run on the saver's background
 * thread, the rest on the caller's.
 *
 * A checkpoint becomes visible by one rename, N.tmp to N (publish_take_name), and ceases to be visible by
 * one rename, N to N.tmp, before its files are removed: a death midway leaves no folder that looks like a
 * damaged checkpoint.
 *
 * RUN/checkpoints/best is a second name for the files of the best checkpoint so far: hard links to files that
 * are written and synced, in a folder that takes its name by one rename. It is made before its checkpoint
 * gets its own name: after a death between the two, the run goes on from an older checkpoint and finds itself
 * equally good, not better.
 *
 * The model's files are assembled entry by entry, from server 0's memory and the other servers' shard files,
 * so that no process needs room for a second model. They are hashed as they are written: the manifest has the
 * hash of the bytes written, not of the bytes that a disk returns. Shards are synced too: a page that a disk
 * refused would be read back as zeros. */
#include "worker/checkpoint/checkpoint.h"

#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/params/params_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKPOINT_BEST "best"
enum { NAME_BYTES = 32, BLOCK_BYTES = 1 << 16 };

/* Whether the optimizer has values to save. */
static bool checkpoint_has_moments(const struct checkpoint_values *values)
{
    return values->momentum != NULL || values->moments != NULL;
}

/* ---- names ---- */

static const char *const suffixes[] = {"", ".tmp"};

/* Formats the name of something below `folder`; the path's text lies in `text`. One that does not fit is
 * longer than the system takes (PATH_MAX): every call refuses it. */
__attribute__((format(printf, 3, 4))) static struct path
checkpoint_path(char text[CHECKPOINT_PATH_BYTES], struct path folder, const char *format, ...)
{
    va_list list;
    const int length = snprintf(text, CHECKPOINT_PATH_BYTES, "%s/", folder.text);
    const size_t used = length < CHECKPOINT_PATH_BYTES ? (size_t)length : CHECKPOINT_PATH_BYTES - 1;
    va_start(list, format);
    vsnprintf(text + used, CHECKPOINT_PATH_BYTES - used, format, list);
    va_end(list);
    return path_below(folder, text);
}

/* RUN/checkpoints/N, or N.tmp. */
static struct path checkpoint_folder(char text[CHECKPOINT_PATH_BYTES], struct path run, uint64_t update,
                                     bool temporary)
{
    return checkpoint_path(text, run, "checkpoints/%08" PRIu64 "%s", update, suffixes[temporary]);
}

/* Whether `name` is a checkpoint's, or with `temporary` that of one being written. The number has eight
 * digits, or more without a leading zero. */
static bool checkpoint_number(const char *name, bool temporary, uint64_t *update)
{
    char again[NAME_BYTES];
    *update = strtoull(name, NULL, 10);
    snprintf(again, sizeof again, "%08" PRIu64 "%s", *update, suffixes[temporary]);
    return strcmp(again, name) == 0;
}

/* ---- listing ---- */

struct checkpoint_list {
    uint64_t *numbers; /* (count) */
    size_t count;
};

/* The numbers of all N, or of all N.tmp, in RUN/checkpoints, ascending: versionsort orders numbers of any
 * length. The caller frees list->numbers, after a failure too. STATUS_NOT_FOUND: there is no such folder. */
static enum status checkpoint_list(struct checkpoint_list *list, struct path run, bool temporary,
                                   struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    struct dirent **entries;
    int fd;
    *list = (struct checkpoint_list){0};
    enum status status = file_open_folder(&fd, checkpoint_path(text, run, "checkpoints"), error);
    if (status != STATUS_OK)
        return status;
    const int found = scandirat(fd, ".", &entries, NULL, versionsort);
    if (found < 0)
        status = error_set_errno(error, errno, "%s: cannot be listed", text);
    else if ((list->numbers = calloc((size_t)found + 1, sizeof *list->numbers)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to list it", text);
    for (int i = 0; i < found; i++) {
        if (status == STATUS_OK)
            list->count += checkpoint_number(entries[i]->d_name, temporary, &list->numbers[list->count]);
        free(entries[i]);
    }
    if (found >= 0)
        free(entries);
    close(fd);
    return status;
}

/* ---- a small file ---- */

/* Reads a file of at most `max` bytes, with a zero behind them. The caller frees *text, after a failure too.
 * STATUS_CORRUPT: it is larger. */
static enum status checkpoint_read_file(char **text, size_t *bytes, struct path path, size_t max,
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

/* Reads the manifest of a checkpoint's folder. Errors also as file_open. */
static enum status manifest_read(struct manifest *manifest, struct path folder, struct error *error)
{
    char path_text[CHECKPOINT_PATH_BYTES], *text;
    size_t bytes;
    const struct path path = checkpoint_path(path_text, folder, MANIFEST_NAME);
    enum status status = checkpoint_read_file(&text, &bytes, path, MANIFEST_BYTES_MAX, error);
    if (status == STATUS_OK)
        status = manifest_parse(manifest, path.text, text, bytes, error);
    free(text);
    return status;
}

/* ---- removing ---- */

/* Removes a folder with all its files; an absent one is no failure. */
static enum status publish_remove_tree(struct path path, struct error *error)
{
    return file_remove(path) ? STATUS_OK : error_set_errno(error, errno, "%s: cannot be removed", path.text);
}

void checkpoint_abandon(struct path run, uint64_t update)
{
    char text[CHECKPOINT_PATH_BYTES];
    struct error error = {0};
    if (publish_remove_tree(checkpoint_folder(text, run, update, true), &error) != STATUS_OK)
        log_warning("%s", error.text);
}

/* ---- making N.tmp ---- */

enum status checkpoint_begin(struct path run, uint64_t update, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    struct path path = checkpoint_path(text, run, "checkpoints");
    struct checkpoint_list list = {0};
    enum status status = STATUS_OK;
    if (file_make_folder(path))
        status = file_sync_folder(run, error);
    else if (errno != EEXIST)
        status = error_set_errno(error, errno, "%s: cannot be made", text);
    if (status == STATUS_OK)
        status = checkpoint_list(&list, run, true, error);
    for (size_t i = 0; i < list.count && status == STATUS_OK; i++)
        status = publish_remove_tree(checkpoint_folder(text, run, list.numbers[i], true), error);
    free(list.numbers);
    if (status == STATUS_OK)
        status =
            publish_remove_tree(checkpoint_path(text, run, "checkpoints/" CHECKPOINT_BEST ".tmp"), error);
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

/* ---- writing ---- */

/* The contents of one of a checkpoint's two files, for a range of the model. */
static struct params_saving writer_saving_of(const struct checkpoint_values *values, int file,
                                             const struct params_range *range)
{
    struct params_saving saving = {.params = values->params, .contents = *range};
    if (file == CHECKPOINT_OPTIMIZER) {
        saving.parallel = values->momentum;
        saving.contents.others = false;
        if (values->momentum == NULL)
            saving.contents = (struct params_range){0};
    }
    if (file == CHECKPOINT_OPTIMIZER && values->moments != NULL)
        saving = (struct params_saving){.params = values->moments, .contents = PARAMS_RANGE_TRAINED};
    return saving;
}

static struct path writer_shard_path(char text[CHECKPOINT_PATH_BYTES], struct path folder, uint32_t server,
                                     int file)
{
    return checkpoint_path(text, folder, "shard-%" PRIu32 ".%s", server, checkpoint_file_names[file]);
}

enum status checkpoint_write_shard(struct path run, uint64_t update, const struct checkpoint_values *values,
                                   struct error *error)
{
    char folder_text[CHECKPOINT_PATH_BYTES], text[CHECKPOINT_PATH_BYTES];
    const struct path folder = checkpoint_folder(folder_text, run, update, true);
    enum status status = STATUS_OK;
    assert(values->server > 0 && values->server < values->servers);
    for (int file = 0; file < CHECKPOINT_FILES && status == STATUS_OK; file++) {
        const struct params_saving saving = writer_saving_of(values, file, &values->shards[values->server]);
        status = params_file_save(writer_shard_path(text, folder, values->server, file), &saving, error);
    }
    return status;
}

/* ---- merging ---- */

struct hashing {
    crypto_hash_sha256_state state;
    uint64_t bytes;
};

static void writer_hash_bytes(void *observer, const void *bytes, size_t count)
{
    struct hashing *hashing = observer;
    crypto_hash_sha256_update(&hashing->state, bytes, count);
    hashing->bytes += count;
}

/* The same file of all other servers' shards, open. */
struct shard_files {
    struct params_file *files[JOB_SERVERS_MAX];
    size_t count;
};

static enum status writer_open_shards(struct shard_files *shards, struct path folder,
                                      const struct checkpoint_values *values, int file, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    enum status status = STATUS_OK;
    shards->count = 0;
    for (uint32_t server = 1; server < values->servers && status == STATUS_OK; server++) {
        const struct params_saving theirs = writer_saving_of(values, file, &values->shards[server]);
        status =
            params_file_open(&shards->files[shards->count], values->params,
                             writer_shard_path(text, folder, server, file), &theirs.contents, false, error);
        shards->count += status == STATUS_OK;
    }
    return status;
}

/* Writes one file and records its size and hash for the manifest. */
static enum status writer_save_hashed(struct path folder, int file, struct params_saving saving,
                                      struct manifest_file *facts, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct path path = checkpoint_path(text, folder, "%s", checkpoint_file_names[file]);
    struct hashing hashing = {0};
    crypto_hash_sha256_init(&hashing.state);
    saving.written = writer_hash_bytes;
    saving.observer = &hashing;
    enum status status = params_file_save(path, &saving, error);
    crypto_hash_sha256_final(&hashing.state, facts->sha256);
    facts->bytes = hashing.bytes;
    return status;
}

static enum status writer_write_file(struct path folder, const struct checkpoint_values *values, int file,
                                     struct manifest_file *facts, struct error *error)
{
    struct params_saving saving = writer_saving_of(values, file, &PARAMS_RANGE_ALL);
    struct shard_files shards;
    enum status status = writer_open_shards(&shards, folder, values, file, error);
    saving.sources = shards.files;
    saving.source_count = shards.count;
    if (status == STATUS_OK)
        status = writer_save_hashed(folder, file, saving, facts, error);
    for (size_t i = 0; i < shards.count; i++)
        params_file_close(shards.files[i]);
    return status;
}

static enum status writer_remove_shards(struct path folder, uint32_t servers, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    for (uint32_t server = 1; server < servers; server++)
        for (int file = 0; file < CHECKPOINT_FILES; file++) {
            const struct path path = writer_shard_path(text, folder, server, file);
            if (!file_remove(path))
                return error_set_errno(error, errno, "%s: cannot be removed", text);
        }
    return STATUS_OK;
}

/* ---- further files ---- */

static enum status writer_write_bytes(struct path folder, const char *name, const char *text, size_t bytes,
                                      struct error *error)
{
    int fd;
    enum status status = file_open_below(&fd, folder, name, O_WRONLY | O_CREAT | O_EXCL, error);
    if (status != STATUS_OK)
        return status;
    if (!file_write(fd, text, bytes) || fsync(fd) != 0)
        status = error_set_errno(error, errno, "%s/%s: cannot be written", folder.text, name);
    if (close(fd) != 0 && status == STATUS_OK)
        status = error_set_errno(error, errno, "%s/%s: cannot be written", folder.text, name);
    return status;
}

/* Writes an optional file. */
static enum status writer_write_optional(struct path folder, int which, const struct checkpoint_bytes *bytes,
                                         struct manifest *manifest, struct error *error)
{
    struct manifest_file *file = &manifest->files[which];
    if (bytes->text == NULL)
        return STATUS_OK;
    assert(bytes->count > 0);
    file->bytes = bytes->count;
    crypto_hash_sha256(file->sha256, (const unsigned char *)bytes->text, bytes->count);
    return writer_write_bytes(folder, checkpoint_file_names[which], bytes->text, bytes->count, error);
}

/* A model-parallel job's. */
static enum status writer_write_extra(struct path folder, const struct checkpoint_extra *extra,
                                      struct manifest *manifest, struct error *error)
{
    manifest->text = extra->text;
    const enum status status =
        writer_write_optional(folder, CHECKPOINT_VOCABULARY, &extra->vocabulary, manifest, error);
    if (status != STATUS_OK || extra->state == NULL)
        return status;
    const struct params_saving saving = {.params = extra->state, .contents = PARAMS_RANGE_ALL};
    return writer_save_hashed(folder, CHECKPOINT_STATE, saving, &manifest->files[CHECKPOINT_STATE], error);
}

/* ---- the manifest ---- */

static enum status writer_write_manifest(struct path folder, const struct manifest *manifest,
                                         struct error *error)
{
    size_t bytes = 0;
    char *text = manifest_format(manifest, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for its manifest", folder.text);
    enum status status = writer_write_bytes(folder, MANIFEST_NAME, text, bytes, error);
    free(text);
    return status == STATUS_OK ? file_sync_folder(folder, error) : status;
}

/* A manifest holds finite numbers alone. */
static enum status writer_check_counters(const struct checkpoint_counters *counters, bool extra,
                                         struct error *error)
{
    const struct {
        const char *name;
        double value;
        bool used;
    } checks[] = {{"the epoch's loss", counters->epoch_loss, true},
                  {"the score", counters->score.value, true},
                  {"the running reward", counters->running_reward, true},
                  {"the loss since the last line", counters->line_loss, extra},
                  {"the learning rate", counters->lr, extra},
                  {"the lowest loss", counters->best_loss, extra && counters->best_loss != (double)INFINITY}};
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (checks[i].used && !isfinite(checks[i].value))
            return error_set(error, STATUS_INVALID, "checkpoint %08" PRIu64 ": %s is %g", counters->update,
                             checks[i].name, checks[i].value);
    return STATUS_OK;
}

enum status checkpoint_write(struct path run, const struct checkpoint_counters *counters,
                             const struct run_place *place, const struct checkpoint_values *values,
                             const struct checkpoint_extra *extra, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct path folder = checkpoint_folder(text, run, counters->update, true);
    struct manifest manifest = {.place = *place,
                                .counters = *counters,
                                .entries = params_count(values->params),
                                .momentum = checkpoint_has_moments(values),
                                .extra = extra != NULL};
    assert(values->server == 0 && values->servers <= JOB_SERVERS_MAX);
    assert(counters->trainers >= 1 && counters->trainers <= JOB_TRAINERS_MAX);
    for (uint32_t i = 0; i < manifest.entries; i++)
        manifest.elements += shape_elements(&params_at(values->params, i)->tensor.shape);
    enum status status = writer_check_counters(counters, manifest.extra, error);
    for (int file = 0; file < CHECKPOINT_FILES && status == STATUS_OK; file++)
        status = writer_write_file(folder, values, file, &manifest.files[file], error);
    if (status == STATUS_OK)
        status = writer_remove_shards(folder, values->servers, error);
    if (status == STATUS_OK && extra != NULL)
        status = writer_write_extra(folder, extra, &manifest, error);
    if (status == STATUS_OK)
        status =
            writer_write_optional(folder, CHECKPOINT_ENVIRONMENTS, &values->environments, &manifest, error);
    if (status == STATUS_OK)
        status =
            writer_write_optional(folder, CHECKPOINT_DESCRIPTION, &values->description, &manifest, error);
    return status == STATUS_OK ? writer_write_manifest(folder, &manifest, error) : status;
}

/* ---- setting aside ---- */

enum status checkpoint_set_aside(struct path run, uint64_t update, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES], aside_text[CHECKPOINT_PATH_BYTES];
    struct checkpoint_list list;
    enum status status = checkpoint_list(&list, run, false, error);
    for (size_t i = 0; i < list.count && status == STATUS_OK; i++) {
        const uint64_t number = list.numbers[i];
        const struct path path = checkpoint_folder(text, run, number, false);
        const struct path aside = checkpoint_path(aside_text, run, "checkpoints/%08" PRIu64 ".ahead", number);
        if (number <= update)
            continue;
        status = publish_remove_tree(aside, error);
        if (status == STATUS_OK && !file_rename(path, aside, 0))
            status = error_set_errno(error, errno, "%s: cannot be renamed", text);
        if (status == STATUS_OK)
            log_warning("%s is set aside as %s: the run goes on from an older checkpoint", text, aside_text);
    }
    free(list.numbers);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status; /* there is no folder with checkpoints */
}

/* ---- publishing ---- */

/* Removes all but the newest `keep`. Checkpoints behind `update` were set aside; one that could not be
 * renamed is neither counted nor removed. A failure is logged; the new checkpoint stands. */
static void checkpoint_prune(struct path run, uint64_t update, uint32_t keep)
{
    char text[CHECKPOINT_PATH_BYTES], removed_text[CHECKPOINT_PATH_BYTES];
    struct checkpoint_list list;
    struct error error = {0};
    enum status status = checkpoint_list(&list, run, false, &error);
    size_t counted = list.count;
    while (counted > 0 && list.numbers[counted - 1] > update)
        counted--;
    for (size_t i = 0; i + keep < counted && status == STATUS_OK; i++) {
        const struct path path = checkpoint_folder(text, run, list.numbers[i], false);
        const struct path removed = checkpoint_folder(removed_text, run, list.numbers[i], true);
        status = file_rename(path, removed, 0) /* from here on it is no checkpoint any more */
                     ? publish_remove_tree(removed, &error)
                     : error_set_errno(&error, errno, "%s: cannot be removed", text);
    }
    if (status != STATUS_OK)
        log_warning("%s", error.text);
    free(list.numbers);
}

/* Writes the run's logs to the disk: a loss of power must not leave a checkpoint that is ahead of its logs. A
 * missing log was moved away: its writer syncs it before closing it. The same holds where something that is
 * no file of the run has taken the log's name. */
static enum status publish_sync_logs(struct path run, struct error *error)
{
    enum status status = STATUS_OK;
    for (int log = 0; log < RUN_LOGS && status == STATUS_OK; log++) {
        const char *name = run_log_name(log);
        int fd;
        status = file_open_below(&fd, run, name, O_RDONLY, error);
        if (status == STATUS_NOT_FOUND || status == STATUS_IO)
            status = STATUS_OK;
        else if (status == STATUS_OK && fdatasync(fd) != 0)
            status = error_set_errno(error, errno, "%s/%s: cannot be written to the disk", run.text, name);
        if (fd >= 0)
            close(fd);
    }
    return status;
}

/* Syncs the logs, renames `from` to `to`, and syncs the folder: the checkpoint is visible from the rename on.
 * One of that name is exchanged for the new one in the same step, and stands at `from` then. Where the file
 * system cannot exchange, it is removed first.
 */
static enum status publish_take_name(struct path run, struct path from, struct path to, struct error *error)
{
    char parent[CHECKPOINT_PATH_BYTES];
    enum status status = publish_sync_logs(run, error);
    bool has_name = status == STATUS_OK && file_rename(from, to, 0);
    if (status == STATUS_OK && !has_name && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)) {
        has_name = file_rename(from, to, RENAME_EXCHANGE);
        status = has_name ? STATUS_OK : publish_remove_tree(to, error);
        has_name = has_name || (status == STATUS_OK && file_rename(from, to, 0));
    }
    if (status == STATUS_OK && !has_name)
        status = error_set_errno(error, errno, "%s: cannot be renamed", from.text);
    return status == STATUS_OK ? file_sync_folder(checkpoint_path(parent, run, "checkpoints"), error)
                               : status;
}

enum status checkpoint_publish(struct path run, uint64_t update, uint32_t keep, struct error *error)
{
    char from_text[CHECKPOINT_PATH_BYTES], to_text[CHECKPOINT_PATH_BYTES];
    const struct path from = checkpoint_folder(from_text, run, update, true);
    const struct path to = checkpoint_folder(to_text, run, update, false);
    const enum status status = publish_take_name(run, from, to, error);
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
    char from_text[CHECKPOINT_PATH_BYTES], made_text[CHECKPOINT_PATH_BYTES], best_text[CHECKPOINT_PATH_BYTES];
    const struct path from = checkpoint_folder(from_text, run, update, true);
    const struct path made = checkpoint_path(made_text, run, "checkpoints/" CHECKPOINT_BEST ".tmp");
    const struct path best = checkpoint_path(best_text, run, "checkpoints/" CHECKPOINT_BEST);
    enum status status = publish_make_best(from, made, error);
    if (status == STATUS_OK)
        status = publish_take_name(run, made, best, error);
    return status == STATUS_OK ? publish_remove_tree(made, error) : status; // the former best one
}

/* ---- checking ---- */

static enum status read_hash_file(int fd, const char *path, uint64_t bytes,
                                  uint8_t sha256[crypto_hash_sha256_BYTES], struct error *error)
{
    char block[BLOCK_BYTES];
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    for (uint64_t at = 0; at < bytes;) {
        ssize_t n = file_read_at(fd, block, sizeof block, at);
        if (n < 0)
            return error_set_errno(error, errno, "%s: cannot be read", path);
        if (n == 0)
            return error_set(error, STATUS_CORRUPT, "%s: it was cut short while it was read", path);
        crypto_hash_sha256_update(&state, (const unsigned char *)block, (size_t)n);
        at += (size_t)n;
    }
    crypto_hash_sha256_final(&state, sha256);
    return STATUS_OK;
}

/* Compares size and SHA-256 of a file in the folder with the manifest's. STATUS_CORRUPT, or as file_open. */
static enum status checkpoint_check_file(struct path folder, const char *name,
                                         const struct manifest_file *expected, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct path path = checkpoint_path(text, folder, "%s", name);
    uint8_t sha256[crypto_hash_sha256_BYTES];
    uint64_t bytes = 0;
    int fd = -1;
    enum status status = file_open(&fd, &bytes, path, error);
    if (status != STATUS_OK)
        return status;
    if (bytes != expected->bytes)
        status =
            error_set(error, STATUS_CORRUPT, "%s: %" PRIu64 " bytes, expected %" PRIu64 " by its manifest",
                      text, bytes, expected->bytes);
    else
        status = read_hash_file(fd, text, bytes, sha256, error);
    if (status == STATUS_OK && memcmp(sha256, expected->sha256, sizeof sha256) != 0)
        status = error_set(error, STATUS_CORRUPT, "%s: its SHA-256 differs from the manifest's", text);
    close(fd);
    return status;
}

/* A folder that is named like a checkpoint must hold the checkpoint of that number; other names are not
 * compared. */
static enum status read_check(struct path path, struct manifest *manifest, struct error *error)
{
    char copy[CHECKPOINT_PATH_BYTES];
    uint64_t number;
    enum status status = manifest_read(manifest, path, error);
    snprintf(copy, sizeof copy, "%s", path.text);
    if (status == STATUS_OK && checkpoint_number(basename(copy), false, &number) &&
        number != manifest->counters.update)
        status = error_set(error, STATUS_CORRUPT,
                           "%s: the manifest names update %" PRIu64 ", expected %" PRIu64
                           " from the folder's name",
                           path.text, manifest->counters.update, number);
    for (int i = 0; i < CHECKPOINT_FILES_MAX && status == STATUS_OK; i++)
        if (manifest_has(manifest, i))
            status = checkpoint_check_file(path, checkpoint_file_names[i], &manifest->files[i], error);
    return status;
}

enum status checkpoint_check(struct path path, struct checkpoint_counters *counters, struct error *error)
{
    struct manifest manifest;
    const enum status status = read_check(path, &manifest, error);
    if (status == STATUS_OK)
        *counters = manifest.counters;
    return status;
}

enum status checkpoint_facts(struct path path, struct checkpoint_counters *counters,
                             struct checkpoint_text *text, struct error *error)
{
    struct manifest manifest;
    enum status status = manifest_read(&manifest, path, error);
    if (status != STATUS_OK)
        return status;
    *counters = manifest.counters;
    if (text != NULL)
        *text = manifest.text;
    return STATUS_OK;
}

/* ---- the newest ---- */

/* Whether another checkpoint may be taken in place of one that failed so. */
static bool read_is_damage(enum status status)
{
    return status == STATUS_CORRUPT || status == STATUS_NOT_FOUND || status == STATUS_IO;
}

size_t checkpoint_find(struct checkpoint_found **found, struct path run)
{
    struct checkpoint_list list;
    struct error why;
    char text[CHECKPOINT_PATH_BYTES], name[NAME_BYTES];
    size_t count = 0;
    int folder = -1;
    const bool is_listed =
        checkpoint_list(&list, run, false, &why) == STATUS_OK &&
        file_open_folder(&folder, checkpoint_path(text, run, "checkpoints"), &why) == STATUS_OK;
    *found = is_listed ? calloc(list.count + 1, sizeof **found) : NULL;
    for (; *found != NULL && count < list.count; count++) {
        struct stat info;
        snprintf(name, sizeof name, "%08" PRIu64, list.numbers[count]);
        const bool is_seen = fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
        (*found)[count] = (struct checkpoint_found){
            .number = list.numbers[count],
            .unix_s =
                is_seen ? (double)info.st_mtim.tv_sec + (double)info.st_mtim.tv_nsec * 1e-9 : (double)NAN};
    }
    if (folder >= 0)
        close(folder);
    free(list.numbers);
    return count;
}

enum status checkpoint_newest(struct path run, const struct checkpoint_judge *judge,
                              char path[CHECKPOINT_PATH_BYTES], struct checkpoint_counters *counters,
                              struct run_place *place, struct error *error)
{
    struct checkpoint_list list;
    struct manifest manifest;
    struct error why = {0};
    enum status status = checkpoint_list(&list, run, false, error), found = STATUS_NOT_FOUND;
    for (size_t i = list.count; status == STATUS_OK && read_is_damage(found) && i-- > 0;) {
        found = read_check(checkpoint_folder(path, run, list.numbers[i], false), &manifest, &why);
        if (found == STATUS_OK && judge->fits != NULL)
            found = judge->fits(judge->context, &manifest.place, &why);
        if (read_is_damage(found) && judge->skipped != NULL)
            judge->skipped(judge->context, path, why.text);
    }
    free(list.numbers);
    if (status != STATUS_OK)
        return status;
    if (found == STATUS_OK) {
        *counters = manifest.counters;
        *place = manifest.place;
        return STATUS_OK;
    }
    if (!read_is_damage(found))
        return error_set(error, found, "%s", why.text);
    return error_set(error, STATUS_NOT_FOUND, "%s/checkpoints: no sound checkpoint is there", run.text);
}

/* ---- loading ---- */

/* The range of a file's entries that this server loads. */
static struct params_range params_own_range(const struct checkpoint_values *values)
{
    return values->shards != NULL ? values->shards[values->server] : PARAMS_RANGE_ALL;
}

static enum status checkpoint_open_file(struct params_file **file, struct path folder, int which,
                                        struct params *params, const struct params_range *contents,
                                        struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct path path = checkpoint_path(text, folder, "%s", checkpoint_file_names[which]);
    return params_file_open(file, params, path, contents, false, error);
}

enum status checkpoint_load(struct path path, const struct checkpoint_values *values, struct error *error)
{
    struct params_file *model = NULL, *optimizer = NULL;
    const struct params_range range = params_own_range(values);
    struct params *of_optimizer = values->moments != NULL ? values->moments : values->params;
    struct params_range trained = PARAMS_RANGE_TRAINED;
    struct manifest manifest;
    enum status status = manifest_read(&manifest, path, error);
    if (status == STATUS_OK)
        status =
            checkpoint_open_file(&model, path, CHECKPOINT_MODEL, values->params, &PARAMS_RANGE_ALL, error);
    if (status == STATUS_OK && manifest.momentum != checkpoint_has_moments(values))
        status = error_set(error, STATUS_INVALID, "%s: saved %s optimizer state, but the job's optimizer %s",
                           path.text, manifest.momentum ? "with" : "without",
                           manifest.momentum ? "has none" : "needs it");
    if (!checkpoint_has_moments(values))
        trained = (struct params_range){0};
    if (status == STATUS_OK)
        status = checkpoint_open_file(&optimizer, path, CHECKPOINT_OPTIMIZER, of_optimizer, &trained, error);
    if (status == STATUS_OK)
        status = params_file_load(model, NULL, &range, error);
    if (status == STATUS_OK && checkpoint_has_moments(values))
        status =
            params_file_load(optimizer, values->momentum, values->moments != NULL ? &trained : &range, error);
    params_file_close(model);
    params_file_close(optimizer);
    return status;
}

/* The path of the model's file: in a checkpoint's folder, after its hash was compared; else *path as it is, a
 * caller's own. `text` has room for it. */
static enum status read_model_path(struct path *path, char text[CHECKPOINT_PATH_BYTES], struct error *error)
{
    const struct path folder = *path;
    struct manifest manifest;
    struct stat stat_of;
    assert(folder.folder_bytes == 0);
    if (stat(folder.text, &stat_of) != 0)
        return error_set_errno(error, errno, "%s", folder.text);
    if (!S_ISDIR(stat_of.st_mode))
        return STATUS_OK;
    *path = checkpoint_path(text, folder, "%s", checkpoint_file_names[CHECKPOINT_MODEL]);
    enum status status = manifest_read(&manifest, folder, error);
    return status == STATUS_OK ? checkpoint_check_file(folder, checkpoint_file_names[CHECKPOINT_MODEL],
                                                       &manifest.files[CHECKPOINT_MODEL], error)
                               : status;
}

/* Loads the entries of `range` out of a file that holds the whole of `params`. */
static enum status read_whole(struct path path, struct params *params, bool counters_optional,
                              const struct params_range *range, struct error *error)
{
    struct params_file *file = NULL;
    enum status status = params_file_open(&file, params, path, &PARAMS_RANGE_ALL, counters_optional, error);
    if (status == STATUS_OK)
        status = params_file_load(file, NULL, range, error);
    params_file_close(file);
    return status;
}

enum status checkpoint_load_model(struct path path, const struct checkpoint_values *values,
                                  struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct params_range range = params_own_range(values);
    const enum status status = read_model_path(&path, text, error);
    return status == STATUS_OK ? read_whole(path, values->params, true, &range, error) : status;
}

/* ---- further files ---- */

enum status checkpoint_read(struct path folder, int file, char **text, size_t *bytes, struct error *error)
{
    const char *name = checkpoint_file_names[file];
    char path_text[CHECKPOINT_PATH_BYTES];
    struct manifest manifest;
    *text = NULL;
    *bytes = 0;
    enum status status = manifest_read(&manifest, folder, error);
    if (status != STATUS_OK || !manifest_has(&manifest, file))
        return status;
    const struct manifest_file *facts = &manifest.files[file];
    status = checkpoint_check_file(folder, name, facts, error);
    if (status != STATUS_OK)
        return status;
    return checkpoint_read_file(text, bytes, checkpoint_path(path_text, folder, "%s", name),
                                (size_t)facts->bytes, error);
}

enum status checkpoint_load_state(struct path path, struct params *state, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct path file = checkpoint_path(text, path, "%s", checkpoint_file_names[CHECKPOINT_STATE]);
    return read_whole(file, state, false, &PARAMS_RANGE_ALL, error);
}
