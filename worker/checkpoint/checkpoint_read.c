/* Reads checkpoints: checking by hash, finding the newest, loading. The caller's thread.
 *
 * The supervisor checks and finds; a pserver loads its shard; a model-parallel job's lead trainer and the
 * commands load the whole model. Loading compares names and shapes with the model before it changes anything.
 */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/params/params_file.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 16 };

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

/* Compares size and SHA-256 of a file in the folder with the manifest's. */
static enum status read_check_file(struct path folder, const char *name, const struct manifest_file *expected,
                                   struct error *error)
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
static enum status read_check_number(const char *path, const struct manifest *manifest, struct error *error)
{
    char copy[CHECKPOINT_PATH_BYTES];
    uint64_t number;
    snprintf(copy, sizeof copy, "%s", path);
    if (!checkpoint_number(basename(copy), false, &number) || number == manifest->counters.update)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT,
                     "%s: the manifest names update %" PRIu64 ", expected %" PRIu64 " from the folder's name",
                     path, manifest->counters.update, number);
}

static enum status read_check(struct path path, struct manifest *manifest, struct error *error)
{
    enum status status = manifest_read(manifest, path, error);
    if (status == STATUS_OK)
        status = read_check_number(path.text, manifest, error);
    for (int i = 0; i < CHECKPOINT_FILES_MAX && status == STATUS_OK; i++)
        if (manifest_has(manifest, i))
            status = read_check_file(path, checkpoint_file_names[i], &manifest->files[i], error);
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

uint64_t checkpoint_latest(struct path run)
{
    struct checkpoint_list list;
    struct error why;
    const bool is_listed = checkpoint_list(&list, run, false, &why) == STATUS_OK;
    const uint64_t latest = is_listed && list.count > 0 ? list.numbers[list.count - 1] : 0;
    free(list.numbers);
    return latest;
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
        if (found == STATUS_OK)
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

static enum status read_check_momentum(const char *path, const struct manifest *manifest,
                                       const struct checkpoint_values *values, struct error *error)
{
    if (manifest->momentum == checkpoint_has_moments(values))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: saved %s momentum, but the job's optimizer has %s", path,
                     manifest->momentum ? "with" : "without", manifest->momentum ? "none" : "it");
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
    if (status == STATUS_OK)
        status = read_check_momentum(path.text, &manifest, values, error);
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
    return status == STATUS_OK ? read_check_file(folder, checkpoint_file_names[CHECKPOINT_MODEL],
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

/* Reads an optional file, after its hash was compared. */
static enum status read_optional(struct path folder, int which, char **text, size_t *bytes,
                                 struct error *error)
{
    const char *name = checkpoint_file_names[which];
    char path_text[CHECKPOINT_PATH_BYTES];
    struct manifest manifest;
    *text = NULL;
    *bytes = 0;
    enum status status = manifest_read(&manifest, folder, error);
    if (status != STATUS_OK || !manifest_has(&manifest, which))
        return status;
    const struct manifest_file *facts = &manifest.files[which];
    status = read_check_file(folder, name, facts, error);
    if (status != STATUS_OK)
        return status;
    return checkpoint_read_file(text, bytes, checkpoint_path(path_text, folder, "%s", name),
                                (size_t)facts->bytes, error);
}

enum status checkpoint_vocabulary(struct path path, char **vocabulary, size_t *bytes, struct error *error)
{
    return read_optional(path, CHECKPOINT_VOCABULARY, vocabulary, bytes, error);
}

enum status checkpoint_environments(struct path path, char **environments, size_t *bytes, struct error *error)
{
    return read_optional(path, CHECKPOINT_ENVIRONMENTS, environments, bytes, error);
}

enum status checkpoint_load_state(struct path path, struct params *state, struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct path file = checkpoint_path(text, path, "%s", checkpoint_file_names[CHECKPOINT_STATE]);
    return read_whole(file, state, false, &PARAMS_RANGE_ALL, error);
}
