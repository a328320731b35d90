/* Reads checkpoints: checking by hash, finding the newest, loading. The caller's thread.
 *
 * The supervisor checks and finds; a pserver loads its shard; a model-parallel job's lead trainer and the
 * commands load the whole model. Loading compares names and shapes with the model before it changes anything.
 */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/params/params_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 16 };

void checkpoint_model_facts(struct params *params, uint32_t *entries, uint64_t *elements)
{
    *entries = params_count(params);
    *elements = 0;
    for (uint32_t i = 0; i < *entries; i++)
        *elements += shape_elements(&params_at(params, i)->tensor.shape);
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

/* Compares size and SHA-256 of a file in the folder with the manifest's. */
static enum status read_check_file(const char *folder, const char *name, const struct manifest_file *expected,
                                   struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    uint8_t sha256[crypto_hash_sha256_BYTES];
    uint64_t bytes = 0;
    int fd = -1;
    enum status status = checkpoint_path(path, error, "%s/%s", folder, name);
    if (status == STATUS_OK)
        status = file_open(&fd, &bytes, path, error);
    if (status != STATUS_OK)
        return status;
    if (bytes != expected->bytes)
        status =
            error_set(error, STATUS_CORRUPT, "%s: %" PRIu64 " bytes, expected %" PRIu64 " by its manifest",
                      path, bytes, expected->bytes);
    else
        status = read_hash_file(fd, path, bytes, sha256, error);
    if (status == STATUS_OK && memcmp(sha256, expected->sha256, sizeof sha256) != 0)
        status = error_set(error, STATUS_CORRUPT, "%s: its SHA-256 differs from the manifest's", path);
    close(fd);
    return status;
}

/* A folder that is named like a checkpoint must hold the checkpoint of that number; other names are not
 * compared. */
static enum status read_check_number(const char *path, const struct manifest *manifest, struct error *error)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    uint64_t number;
    if (!checkpoint_number(path + begin, end - begin, &number) || number == manifest->counters.update)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT,
                     "%s: the manifest names update %" PRIu64 ", expected %" PRIu64 " from the folder's name",
                     path, manifest->counters.update, number);
}

enum status checkpoint_check(const char *path, struct checkpoint_counters *counters, struct error *error)
{
    struct manifest manifest;
    enum status status = manifest_read(&manifest, path, error);
    if (status == STATUS_OK)
        status = read_check_number(path, &manifest, error);
    for (int i = 0; i < CHECKPOINT_FILES_MAX && status == STATUS_OK; i++)
        if (manifest_has(&manifest, i))
            status = read_check_file(path, checkpoint_file_names[i], &manifest.files[i], error);
    if (status == STATUS_OK)
        *counters = manifest.counters;
    return status;
}

enum status checkpoint_counters_read(const char *path, struct checkpoint_counters *counters,
                                     struct error *error)
{
    struct manifest manifest;
    enum status status = manifest_read(&manifest, path, error);
    if (status == STATUS_OK)
        *counters = manifest.counters;
    return status;
}

/* ---- the newest ---- */

/* Finds the largest number below a limit. */
struct search {
    uint64_t limit, best;
    bool limited, found;
};

static enum status read_note_number(void *context, uint64_t update, bool temporary, struct error *error)
{
    struct search *search = context;
    (void)error;
    if (temporary || (search->limited && update >= search->limit) || (search->found && update < search->best))
        return STATUS_OK;
    search->best = update;
    search->found = true;
    return STATUS_OK;
}

enum status checkpoint_newest(const char *run_dir, char path[CHECKPOINT_PATH_BYTES],
                              struct checkpoint_counters *counters,
                              void (*damaged)(const char *path, const char *why), struct error *error)
{
    struct search search = {0};
    for (;;) {
        struct error why = {0};
        search.found = false;
        enum status status = checkpoint_list(run_dir, read_note_number, &search, error);
        if (status == STATUS_OK && !search.found)
            return error_set(error, STATUS_NOT_FOUND, "%s/checkpoints: no sound checkpoint is there",
                             run_dir);
        if (status == STATUS_OK)
            status = checkpoint_folder(path, run_dir, search.best, false, error);
        if (status != STATUS_OK)
            return status;
        status = checkpoint_check(path, counters, &why);
        if (status != STATUS_CORRUPT && status != STATUS_NOT_FOUND && status != STATUS_IO)
            return status == STATUS_OK ? STATUS_OK : error_set(error, status, "%s", why.text);
        if (damaged != NULL)
            damaged(path, why.text);
        search.limit = search.best;
        search.limited = true;
    }
}

/* ---- loading ---- */

/* The range of a file's entries that this server loads. */
static struct params_range params_own_range(const struct checkpoint_values *values)
{
    return values->shards != NULL ? values->shards[values->server] : PARAMS_RANGE_ALL;
}

static enum status checkpoint_open_file(struct params_file **file, const char *folder, int which,
                                        const struct checkpoint_values *values,
                                        const struct params_range *contents, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_path(path, error, "%s/%s", folder, checkpoint_file_names[which]);
    return status == STATUS_OK ? params_file_open(file, values->params, path, contents, false, error)
                               : status;
}

/* Compares the manifest with the model; the names have been compared already. */
static enum status read_check_facts(const char *path, const struct manifest *manifest,
                                    const struct checkpoint_values *values, struct error *error)
{
    uint32_t entries;
    uint64_t elements;
    checkpoint_model_facts(values->params, &entries, &elements);
    if (manifest->entries != entries || manifest->elements != elements)
        return error_set(error, STATUS_CORRUPT,
                         "%s: the manifest describes a model of %" PRIu32 " entries and %" PRIu64
                         " elements, expected %" PRIu32 " and %" PRIu64,
                         path, manifest->entries, manifest->elements, entries, elements);
    return STATUS_OK;
}

static enum status read_check_momentum(const char *path, const struct manifest *manifest,
                                       const struct checkpoint_values *values, struct error *error)
{
    if (manifest->momentum == (values->momentum != NULL))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: saved %s momentum, but the job's optimizer has %s", path,
                     manifest->momentum ? "with" : "without", manifest->momentum ? "none" : "it");
}

enum status checkpoint_load(const char *path, const struct checkpoint_values *values, struct error *error)
{
    struct params_file *model = NULL, *optimizer = NULL;
    const struct params_range range = params_own_range(values);
    struct params_range trained = PARAMS_RANGE_TRAINED;
    struct manifest manifest;
    enum status status = manifest_read(&manifest, path, error);
    if (status == STATUS_OK)
        status = checkpoint_open_file(&model, path, CHECKPOINT_MODEL, values, &PARAMS_RANGE_ALL, error);
    if (status == STATUS_OK)
        status = read_check_facts(path, &manifest, values, error);
    if (status == STATUS_OK)
        status = read_check_momentum(path, &manifest, values, error);
    if (values->momentum == NULL)
        trained = (struct params_range){0};
    if (status == STATUS_OK)
        status = checkpoint_open_file(&optimizer, path, CHECKPOINT_OPTIMIZER, values, &trained, error);
    if (status == STATUS_OK)
        status = params_file_load(model, NULL, &range, error);
    if (status == STATUS_OK && values->momentum != NULL)
        status = params_file_load(optimizer, values->momentum, &range, error);
    params_file_close(model);
    params_file_close(optimizer);
    return status;
}

/* The path of the model's file: in a checkpoint's folder, after its hash was compared; else `path` itself. */
static enum status read_model_path(char file[CHECKPOINT_PATH_BYTES], const char *path, struct error *error)
{
    struct manifest manifest;
    struct stat stat_of;
    if (stat(path, &stat_of) != 0)
        return error_set_errno(error, errno, "%s", path);
    if (!S_ISDIR(stat_of.st_mode))
        return checkpoint_path(file, error, "%s", path);
    enum status status = manifest_read(&manifest, path, error);
    if (status == STATUS_OK)
        status = read_check_file(path, checkpoint_file_names[CHECKPOINT_MODEL],
                                 &manifest.files[CHECKPOINT_MODEL], error);
    if (status == STATUS_OK)
        status = checkpoint_path(file, error, "%s/%s", path, checkpoint_file_names[CHECKPOINT_MODEL]);
    return status;
}

enum status checkpoint_load_model(const char *path, const struct checkpoint_values *values,
                                  struct error *error)
{
    char file[CHECKPOINT_PATH_BYTES];
    struct params_file *model = NULL;
    const struct params_range range = params_own_range(values);
    enum status status = read_model_path(file, path, error);
    if (status == STATUS_OK)
        status = params_file_open(&model, values->params, file, &PARAMS_RANGE_ALL, true, error);
    if (status == STATUS_OK)
        status = params_file_load(model, NULL, &range, error);
    params_file_close(model);
    return status;
}

/* ---- a model-parallel job's further files ---- */

/* Reads a file of `bytes`, malloc'ed, with a zero appended. */
static enum status checkpoint_read_text(char **text, const char *path, uint64_t bytes, struct error *error)
{
    uint64_t there;
    int fd;
    *text = NULL;
    enum status status = file_open(&fd, &there, path, error);
    if (status != STATUS_OK)
        return status;
    char *room = malloc((size_t)bytes + 1);
    const ssize_t length = room == NULL ? 0 : file_read_at(fd, room, (size_t)bytes, 0);
    if (room == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to read it", path);
    else if (length < 0)
        status = error_set_errno(error, errno, "%s: cannot be read", path);
    else if ((uint64_t)length < bytes)
        status = error_set(error, STATUS_CORRUPT, "%s: it was cut short while it was read", path);
    close(fd);
    if (status != STATUS_OK) {
        free(room);
        return status;
    }
    room[bytes] = '\0';
    *text = room;
    return STATUS_OK;
}

enum status checkpoint_vocabulary(const char *path, char **vocabulary, size_t *bytes, struct error *error)
{
    const char *name = checkpoint_file_names[CHECKPOINT_VOCABULARY];
    char file[CHECKPOINT_PATH_BYTES];
    struct manifest manifest;
    *vocabulary = NULL;
    *bytes = 0;
    enum status status = manifest_read(&manifest, path, error);
    if (status != STATUS_OK || !manifest_has(&manifest, CHECKPOINT_VOCABULARY))
        return status;
    const struct manifest_file *facts = &manifest.files[CHECKPOINT_VOCABULARY];
    status = read_check_file(path, name, facts, error);
    if (status == STATUS_OK)
        status = checkpoint_path(file, error, "%s/%s", path, name);
    if (status == STATUS_OK)
        status = checkpoint_read_text(vocabulary, file, facts->bytes, error);
    if (status == STATUS_OK)
        *bytes = (size_t)facts->bytes;
    return status;
}

enum status checkpoint_text_read(const char *path, struct checkpoint_text *text, struct error *error)
{
    struct manifest manifest;
    const enum status status = manifest_read(&manifest, path, error);
    if (status == STATUS_OK)
        *text = manifest.text;
    return status;
}

enum status checkpoint_load_state(const char *path, struct params *state, struct error *error)
{
    const struct params_range all = PARAMS_RANGE_ALL;
    char file[CHECKPOINT_PATH_BYTES];
    struct params_file *open = NULL;
    enum status status = checkpoint_path(file, error, "%s/%s", path, checkpoint_file_names[CHECKPOINT_STATE]);
    if (status == STATUS_OK)
        status = params_file_open(&open, state, file, &all, false, error);
    if (status == STATUS_OK)
        status = params_file_load(open, NULL, &all, error);
    params_file_close(open);
    return status;
}
