/* What the files of checkpoint.h share: names and paths (checkpoint_folder.c) and the manifest
 * (checkpoint_manifest.c). Nobody else includes it, but for their tests. */
#ifndef WORKER_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define WORKER_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "worker/checkpoint/checkpoint.h"

#include <sodium.h>

/* ---- names ---- */

enum {
    CHECKPOINT_MODEL,
    CHECKPOINT_OPTIMIZER,
    CHECKPOINT_FILES,                         /* of every checkpoint; the next two are of a struct */
    CHECKPOINT_VOCABULARY = CHECKPOINT_FILES, /* checkpoint_extra, if at all */
    CHECKPOINT_STATE,
    CHECKPOINT_FILES_MAX
};
extern const char *const checkpoint_file_names[CHECKPOINT_FILES_MAX];

/* Puts a path together; STATUS_IO when it is too long. */
enum status checkpoint_path(char path[CHECKPOINT_PATH_BYTES], struct error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* RUN/checkpoints/N, with .tmp behind it or not. */
enum status checkpoint_folder(char path[CHECKPOINT_PATH_BYTES], const char *run_dir, uint64_t update,
                              bool temporary, struct error *error);

/* Whether the first `length` bytes of `name` are a number as a checkpoint's folder is named: eight digits, or
 * more without a leading zero. */
bool checkpoint_number(const char *name, size_t length, uint64_t *update);

/* Calls `each` for every folder in RUN/checkpoints that is named like a checkpoint, or with .tmp behind it,
 * in no order. Ends with the first failure of `each`. STATUS_NOT_FOUND: there is no such folder. */
enum status checkpoint_list(const char *run_dir,
                            enum status (*each)(void *context, uint64_t update, bool temporary,
                                                struct error *error),
                            void *context, struct error *error);

/* What of a model a manifest names: all entries, and their elements, whatever their kind and layout. */
void checkpoint_model_facts(struct params *params, uint32_t *entries, uint64_t *elements);

/* ---- the manifest ---- */

/* JSON: `format` (1), `update`, `steps` (of each trainer), `late`, `epoch_loss` (%.17g: it is read back to
 * the same bits), `entries` and `elements` (of the model: all kinds), `momentum`, `files` (by name, each with
 * its `bytes` and its `sha256`), and `sha256`: of this text as it is written here, up to the comma before
 * that key, so that no value can change unseen. A model-parallel job's has `line_loss`, `lr` and `best_loss`
 * (null: none) besides, and may have more files; of a text's, `text` with its `tokens` and its `sha256`
 * follows, which older ones lack. Every other key is there, and none besides. */
struct manifest {
    struct checkpoint_counters counters;
    uint32_t entries;
    uint64_t elements;
    bool momentum;
    bool extra; /* of a model-parallel job */
    struct checkpoint_text text;
    struct manifest_file {
        uint64_t bytes; /* of a file that only some checkpoints have, 0: it is not there */
        uint8_t sha256[crypto_hash_sha256_BYTES];
    } files[CHECKPOINT_FILES_MAX];
};

static inline bool manifest_has(const struct manifest *manifest, int file)
{
    return file < CHECKPOINT_FILES || (manifest->extra && manifest->files[file].bytes > 0);
}

#define MANIFEST_NAME "manifest.json"
enum { MANIFEST_FORMAT = 1, MANIFEST_BYTES_MAX = 1 << 16 };

/* malloc'ed text of *bytes; NULL: no memory. */
char *manifest_format(const struct manifest *manifest, size_t *bytes);

/* STATUS_CORRUPT with name, line, column and key; STATUS_NO_MEMORY. */
enum status manifest_parse(struct manifest *manifest, const char *name, const char *text, size_t length,
                           struct error *error);

/* The manifest of a checkpoint's folder. Besides: STATUS_NOT_FOUND and the like. */
enum status manifest_read(struct manifest *manifest, const char *folder, struct error *error);

#endif
