/* What the files of this room and their tests share: names and paths (checkpoint_folder.c), folders
 * (checkpoint_publish.c), and the manifest (checkpoint_manifest.c). */
#ifndef WORKER_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define WORKER_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "worker/checkpoint/checkpoint.h"

#include <sodium.h>

/* ---- names ---- */

enum {
    CHECKPOINT_MODEL,
    CHECKPOINT_OPTIMIZER,
    CHECKPOINT_FILES, /* in every checkpoint; the next two only with a struct checkpoint_extra; the last one
                         only with struct checkpoint_values.environments */
    CHECKPOINT_VOCABULARY = CHECKPOINT_FILES,
    CHECKPOINT_STATE,
    CHECKPOINT_ENVIRONMENTS,
    CHECKPOINT_FILES_MAX
};
extern const char *const checkpoint_file_names[CHECKPOINT_FILES_MAX];

/* Whether the optimizer has values to save. */
static inline bool checkpoint_has_moments(const struct checkpoint_values *values)
{
    return values->momentum != NULL || values->moments != NULL;
}

/* Formats the name of something below `folder`; the path's text lies in `text`. One that does not fit is
 * longer than the system takes (PATH_MAX): every call refuses it. */
struct path checkpoint_path(char text[CHECKPOINT_PATH_BYTES], struct path folder, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* RUN/checkpoints/N, or N.tmp. */
struct path checkpoint_folder(char text[CHECKPOINT_PATH_BYTES], struct path run, uint64_t update,
                              bool temporary);

/* Whether `name` is a checkpoint's, or with `temporary` that of one being written. The number has eight
 * digits, or more without a leading zero. */
bool checkpoint_number(const char *name, bool temporary, uint64_t *update);

/* The numbers of all N, or of all N.tmp, in RUN/checkpoints, ascending. The caller frees list->numbers, after
 * a failure too. STATUS_NOT_FOUND: there is no such folder. */
struct checkpoint_list {
    uint64_t *numbers; /* (count) */
    size_t count;
};
enum status checkpoint_list(struct checkpoint_list *list, struct path run, bool temporary,
                            struct error *error);

/* Reads a file of at most `max` bytes, with a zero behind them. The caller frees *text, after a failure too.
 * STATUS_CORRUPT: it is larger. */
enum status checkpoint_read_file(char **text, size_t *bytes, struct path path, size_t max,
                                 struct error *error);

/* ---- the manifest ---- */

/* JSON. The keys: `format` (2), `update`, `steps` (of each trainer), `late`, `epoch_loss` (%.17g, which reads
 * back to the same bits), the score under its measure's name ("running_reward", "accuracy", "held_out_loss")
 * where the model was measured, `entries` and `elements` (of the model, all kinds), `momentum` (the optimizer
 * has moments), `run` (its `id`, `seed` and `numbers`: struct run_identity), `logs` (by name, each with
 * `lines`, `bytes` and `sha256`: struct log_place), `files` (by name, each with `bytes` and `sha256`), and
 * `sha256`: of the manifest's text up to the comma before this key, so that no value can change unseen. A
 * model-parallel job adds `line_loss`, `lr` and `best_loss` (null: none), may have two more files, and for a
 * text adds `text` with its `tokens` and `sha256`; checkpoints of older versions lack `text`.
 *
 * A manifest is read by its values alone, and is sound when manifest_format makes the same text of them, byte
 * for byte: so no key can be missing, of another type, out of range, unknown or there twice. */
struct manifest {
    struct run_place place;
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
    const bool may = file == CHECKPOINT_ENVIRONMENTS ? !manifest->extra : manifest->extra;
    return file < CHECKPOINT_FILES || (may && manifest->files[file].bytes > 0);
}

#define MANIFEST_NAME "manifest.json"
enum { MANIFEST_FORMAT = 2, MANIFEST_BYTES_MAX = 1 << 16 };

/* malloc'ed text of *bytes; NULL: no memory. */
char *manifest_format(const struct manifest *manifest, size_t *bytes);

/* `text` is zero-terminated. STATUS_CORRUPT with name, line and what is expected there; STATUS_INVALID: of an
 * older format; STATUS_NO_MEMORY. */
enum status manifest_parse(struct manifest *manifest, const char *name, const char *text, size_t length,
                           struct error *error);

/* Reads the manifest of a checkpoint's folder. Errors also as file_open. */
enum status manifest_read(struct manifest *manifest, struct path folder, struct error *error);

/* Compares size and SHA-256 of a file in the folder with the manifest's. STATUS_CORRUPT, or as file_open. */
enum status checkpoint_check_file(struct path folder, const char *name, const struct manifest_file *expected,
                                  struct error *error);

#endif
