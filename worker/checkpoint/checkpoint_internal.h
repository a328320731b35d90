/* Shared by the files of this room and their tests: names and paths (checkpoint_folder.c), the manifest
 * (checkpoint_manifest.c). */
#ifndef WORKER_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define WORKER_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "worker/checkpoint/checkpoint.h"

#include <sodium.h>

/* ---- names ---- */

enum {
    CHECKPOINT_MODEL,
    CHECKPOINT_OPTIMIZER,
    CHECKPOINT_FILES, /* in every checkpoint; the next two only with a struct checkpoint_extra */
    CHECKPOINT_VOCABULARY = CHECKPOINT_FILES,
    CHECKPOINT_STATE,
    CHECKPOINT_FILES_MAX
};
extern const char *const checkpoint_file_names[CHECKPOINT_FILES_MAX];

/* Formats a path; STATUS_IO when it is too long. */
enum status checkpoint_path(char path[CHECKPOINT_PATH_BYTES], struct error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* RUN/checkpoints/N, or N.tmp. */
enum status checkpoint_folder(char path[CHECKPOINT_PATH_BYTES], const char *run_dir, uint64_t update,
                              bool temporary, struct error *error);

/* True: the first `length` bytes of `name` are a checkpoint's number: eight digits, or more without a leading
 * zero. */
bool checkpoint_number(const char *name, size_t length, uint64_t *update);

/* Calls `each` for every N and N.tmp in RUN/checkpoints, in no order, until the first failure of `each`.
 * STATUS_NOT_FOUND: there is no such folder. */
enum status checkpoint_list(const char *run_dir,
                            enum status (*each)(void *context, uint64_t update, bool temporary,
                                                struct error *error),
                            void *context, struct error *error);

/* The size of a model as a manifest names it: all its entries, and their elements, of every kind. */
void checkpoint_model_facts(struct params *params, uint32_t *entries, uint64_t *elements);

/* ---- the manifest ---- */

/* JSON. The keys: `format` (1), `update`, `steps` (of each trainer), `late`, `epoch_loss` (%.17g, which reads
 * back to the same bits), `entries` and `elements` (of the model, all kinds), `momentum`, `files` (by name,
 * each with `bytes` and `sha256`), and `sha256`: of the manifest's text up to the comma before this key, so
 * that no value can change unseen. A model-parallel job adds `line_loss`, `lr` and `best_loss` (null: none),
 * may have more files, and for a text adds `text` with its `tokens` and `sha256`; checkpoints of older
 * versions lack `text`. All other keys are required, and no further key is allowed. */
struct manifest {
    struct checkpoint_counters counters;
    uint32_t entries;
    uint64_t elements;
    bool momentum;
    bool extra; /* a model-parallel job's */
    struct checkpoint_text text;
    struct manifest_file {
        uint64_t bytes; /* 0, of an optional file: absent */
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

/* Reads the manifest of a checkpoint's folder. Errors also as file_open. */
enum status manifest_read(struct manifest *manifest, const char *folder, struct error *error);

#endif
