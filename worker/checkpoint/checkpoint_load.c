/* Loads a checkpoint, after comparing its names and shapes with the model's. A pserver loads its shard; a
 * model-parallel job's lead and the commands load the whole model. The caller's thread. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "kernels/params/params_file.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    status = checkpoint_check_file(folder, name, facts, error);
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
