/* Writes a checkpoint's files. The saver's background thread.
 *
 * The model's files are assembled entry by entry, from server 0's memory and the other servers' shard files,
 * so that no process needs room for a second model. They are hashed as they are written: the manifest has the
 * hash of the bytes written, not of the bytes that a disk returns. Shards are synced too: a page that a disk
 * refused would be read back as zeros. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/params/params_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

/* Writes an optional file, unless `text` is NULL. */
static enum status writer_write_optional(struct path folder, int which, const char *text, size_t bytes,
                                         struct manifest *manifest, struct error *error)
{
    struct manifest_file *file = &manifest->files[which];
    if (text == NULL)
        return STATUS_OK;
    assert(bytes > 0);
    file->bytes = bytes;
    crypto_hash_sha256(file->sha256, (const unsigned char *)text, bytes);
    return writer_write_bytes(folder, checkpoint_file_names[which], text, bytes, error);
}

/* A model-parallel job's. */
static enum status writer_write_extra(struct path folder, const struct checkpoint_extra *extra,
                                      struct manifest *manifest, struct error *error)
{
    manifest->text = extra->text;
    const enum status status = writer_write_optional(folder, CHECKPOINT_VOCABULARY, extra->vocabulary,
                                                     extra->vocabulary_bytes, manifest, error);
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
        status = writer_write_optional(folder, CHECKPOINT_ENVIRONMENTS, values->environments,
                                       values->environments_bytes, &manifest, error);
    return status == STATUS_OK ? writer_write_manifest(folder, &manifest, error) : status;
}
