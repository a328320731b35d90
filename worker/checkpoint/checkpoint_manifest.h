/* What a checkpoint says of itself: a job's progress, and the text of manifest.json. Pure.
 *
 * JSON. The keys: `format` (2), `update`, `steps` (of each trainer), `late`, `epoch_loss` (%.17g, which reads
 * back to the same bits), `data` where the trainers' class says its samples (`train` and `held_out`), the
 * score under its measure's name ("running_reward", "accuracy", "held_out_loss") where the model was
 * measured, `entries` and `elements` (of the model, all kinds), `momentum` (the optimizer has moments), `run`
 * (its `id`, `seed` and `numbers`: struct run_identity), `logs` (by name, each with `lines`, `bytes` and
 * `sha256`: struct log_place), `files` (by name, each with `bytes` and `sha256`), and
 * `sha256`: of the manifest's text up to the comma before this key, so that no value can change unseen. A
 * model-parallel job adds `line_loss`, `lr` and `best_loss` (null: none), may have two more files, and for a
 * text adds `text` with its `tokens` and `sha256`; checkpoints of older versions lack `text`.
 *
 * A manifest is read by its values alone, and is sound when manifest_format makes the same text of them, byte
 * for byte: so no key can be missing, of another type, out of range, unknown or there twice. */
#ifndef WORKER_CHECKPOINT_CHECKPOINT_MANIFEST_H
#define WORKER_CHECKPOINT_CHECKPOINT_MANIFEST_H

#include "worker/job/job.h"
#include "worker/run_place.h"

enum { CHECKPOINT_HASH_BYTES = 32 };

/* How good the model is, by what the job measures. Of the held-out loss, whose exponential is the perplexity,
 * less is better. */
enum checkpoint_measure {
    CHECKPOINT_UNMEASURED,
    CHECKPOINT_RUNNING_REWARD,
    CHECKPOINT_ACCURACY,
    CHECKPOINT_HELD_OUT_LOSS,
    CHECKPOINT_EVALUATION_REWARD,
    CHECKPOINT_MEASURES
};
struct checkpoint_score {
    int measure; /* enum checkpoint_measure */
    double value;
};

/* A job's progress, beside model and moments. Data order and draws are functions of (seed, step, trainer),
 * so the steps are their position. */
struct checkpoint_counters {
    uint64_t update; /* = version; reinforce: the episode */
    uint32_t trainers;
    uint64_t steps[JOB_TRAINERS_MAX]; /* each trainer's next step; reinforce: one, Adam's steps so far */
    uint64_t late;                    /* contributions dropped so far */
    uint64_t train, held_out;         /* samples of the trainers' class, as it says; 0: it does not */
    double epoch_loss;                /* sum of the losses of the running epoch's updates so far */
    struct checkpoint_score score; /* reinforce: always; else with /checkpoint/best where it was evaluated */
    double running_reward;         /* reinforce; also the score of a job without evaluations */
    double line_loss;              /* model-parallel: the same since the last line in the logs */
    double lr, best_loss;          /* model-parallel: the plateau schedule; best_loss INFINITY: none */
};

/* Identifies the text that a language model reads (worker/data/corpus.h): a run resumes with that text only.
 */
struct checkpoint_text {
    uint64_t tokens; /* training and held out; 0: no text, or a checkpoint older than this field */
    uint8_t sha256[CHECKPOINT_HASH_BYTES];
};

enum {
    CHECKPOINT_MODEL,
    CHECKPOINT_OPTIMIZER,
    CHECKPOINT_FILES, /* in every checkpoint; the next two only with a struct checkpoint_extra; the last two
                         only with the members of struct checkpoint_values */
    CHECKPOINT_VOCABULARY = CHECKPOINT_FILES,
    CHECKPOINT_STATE,
    CHECKPOINT_ENVIRONMENTS,
    CHECKPOINT_DESCRIPTION,
    CHECKPOINT_FILES_MAX
};
extern const char *const checkpoint_file_names[CHECKPOINT_FILES_MAX];

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
        uint8_t sha256[CHECKPOINT_HASH_BYTES];
    } files[CHECKPOINT_FILES_MAX];
};

static inline bool manifest_has(const struct manifest *manifest, int file)
{
    const bool may = file >= CHECKPOINT_ENVIRONMENTS ? !manifest->extra : manifest->extra;
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

#endif
