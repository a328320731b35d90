/* Checkpoints: a folder per checkpoint, whole or not there.
 *
 *     RUN/checkpoints/00000120/model.safetensors      every entry under PyTorch's name; loads strictly there
 *                              optimizer.safetensors  momentum under the parameters' names
 *                              manifest.json          counters, and the SHA-256 of both; written last
 *     RUN/checkpoints/00000120.tmp/                   one that is being written, or was when its writer died
 *
 * Order of writing: checkpoint_begin; every server but 0 writes its part; checkpoint_write (server 0) merges
 * them, writes the manifest, and syncs every file; then, when the log has the update's line,
 * checkpoint_publish renames the folder, syncs the one above it, and removes all but the newest `keep`. A
 * failure at any point leaves the older checkpoints as they are; what is unfinished is removed by the next
 * begin, or by checkpoint_abandon. A file whose write or fsync failed is never tried again. Nothing of a
 * checkpoint depends on when, where, by which process or by how many servers it was written: equal runs have
 * equal files, byte for byte.
 *
 * The number of a folder is the update, in eight digits or more; the newest is the largest. What is named
 * otherwise is ignored, as is any further file within a checkpoint.
 *
 * Needs at most the largest entry's memory beside the parameters. Blocks on files: pservers, and a
 * model-parallel job's lead trainer, call the writing half from a thread of its own
 * (worker/server/pserver_save.c, worker/parallel/parallel_trainer_save.c), which has the params as long as it
 * writes, and load at their start. The supervisor checks and finds (no params). */
#ifndef WORKER_CHECKPOINT_CHECKPOINT_H
#define WORKER_CHECKPOINT_CHECKPOINT_H

#include "kernels/params/params.h"
#include "worker/job/job.h"
#include "worker/server/shards.h"

enum { CHECKPOINT_PATH_BYTES = 4096, CHECKPOINT_HASH_BYTES = 32 };

/* What a job's progress is, beside model and momentum. Data order and draws are functions of (seed, step,
 * trainer), so the steps are their position. */
struct checkpoint_counters {
    uint64_t update; /* = version */
    uint32_t trainers;
    uint64_t steps[JOB_TRAINERS_MAX]; /* each trainer's next step */
    uint64_t late;                    /* contributions dropped so far */
    double epoch_loss;                /* sum of the losses of the running epoch's updates so far */
    double line_loss;                 /* model-parallel: the same since the last line in the logs */
    double lr,
        best_loss; /* model-parallel: what the plateau schedule goes on from; best_loss INFINITY: none */
};

/* Which text a language model reads (worker/data/corpus.h): a run goes on with that one alone. */
struct checkpoint_text {
    uint64_t tokens; /* of both parts; 0: there is no text, or a checkpoint from before they told of it */
    uint8_t sha256[CHECKPOINT_HASH_BYTES];
};

/* Of a model-parallel job alone: what the manifest tells of its text, and two more files, which stand there
 * like the others.
 *     vocabulary.txt     worker/data/vocabulary.h's text form; absent for synthetic data
 *     state.safetensors  the trainers' hidden state, one entry each (buffers): "trainer0.h", "trainer0.c", …
 */
struct checkpoint_extra {
    struct checkpoint_text text;
    const char *vocabulary; /* NULL: none */
    size_t vocabulary_bytes;
    struct params *state; /* NULL: none */
};

/* One server's share of what is saved or loaded. Layouts are the params'; files are canonical. */
struct checkpoint_part {
    struct params *params;      /* placed on the version to save, or on the slot to load into */
    struct gradients *momentum; /* placed likewise; NULL: the optimizer has none */
    uint32_t server, servers;
};

/* Makes RUN/checkpoints and an empty N.tmp in it; older .tmp folders are removed. */
enum status checkpoint_begin(const char *run_dir, uint64_t update, struct error *error);

/* Writes the part of a server above 0 into N.tmp: part-J.model.safetensors and part-J.optimizer.safetensors.
 */
enum status checkpoint_write_part(const char *run_dir, uint64_t update, const struct checkpoint_part *part,
                                  struct error *error);

/* Server 0's: the two files out of its own part and the others', the manifest, syncs. All parts are there,
 * and are removed. STATUS_INVALID: a loss or the learning rate is not finite, or a part is not of this model
 * and cut. */
enum status checkpoint_write(const char *run_dir, const struct checkpoint_counters *counters,
                             const struct checkpoint_part *part, struct error *error);

/* The same, and what a model-parallel job has beside it; its lead writes the whole model alone (server 0 of
 * 1). */
enum status checkpoint_write_extra(const char *run_dir, const struct checkpoint_counters *counters,
                                   const struct checkpoint_part *part, const struct checkpoint_extra *extra,
                                   struct error *error);

/* The text alone, of a checkpoint that was checked before: reads nothing but the manifest. */
enum status checkpoint_text_read(const char *path, struct checkpoint_text *text, struct error *error);

/* The other two back: `vocabulary`, whose hash is compared, malloc'ed and zero-terminated (NULL: there is
 * none); `state`, of a checkpoint that was checked before, must fit entirely, as in checkpoint_load. */
enum status checkpoint_vocabulary(const char *path, char **vocabulary, size_t *bytes, struct error *error);
enum status checkpoint_load_state(const char *path, struct params *state, struct error *error);

/* Gives the folder its name, in place of a damaged checkpoint that has it, and syncs the folder above; from
 * then on it stands. Then removes what is older than the newest `keep` (at least 1), this one counted; later
 * numbers, which can only be damaged, neither count nor go. That an old one cannot be removed is logged and
 * no failure. In all of these an error names the file and the reason: "…/00000120.tmp/model.safetensors.tmp:
 * cannot be written: No space left on device". */
enum status checkpoint_publish(const char *run_dir, uint64_t update, uint32_t keep, struct error *error);

/* Removes N.tmp, for a checkpoint that failed. */
void checkpoint_abandon(const char *run_dir, uint64_t update);

/* Checks a checkpoint folder: manifest, sizes, SHA-256 of all files; that a folder named like a checkpoint
 * holds that one. STATUS_CORRUPT, STATUS_NOT_FOUND. */
enum status checkpoint_check(const char *path, struct checkpoint_counters *counters, struct error *error);

/* The counters alone, of a checkpoint that was checked before: reads nothing but the manifest. */
enum status checkpoint_counters_read(const char *path, struct checkpoint_counters *counters,
                                     struct error *error);

/* The newest sound checkpoint of a run. Each damaged newer one is told to `damaged` (path, why; it may be
 * NULL) and skipped. STATUS_NOT_FOUND: there is none. STATUS_PERMISSION, STATUS_NO_MEMORY: one could not be
 * looked at; it may be sound, so nothing older is taken for it. */
enum status checkpoint_newest(const char *run_dir, char path[CHECKPOINT_PATH_BYTES],
                              struct checkpoint_counters *counters,
                              void (*damaged)(const char *path, const char *why), struct error *error);

/* Loads this server's range (server 0: statistics and num_batches_tracked too) from a checkpoint's two files,
 * which were checked before: hashes are not compared again. The whole model must fit, and nothing else be
 * there: the error names the first few at fault, and nothing changed. STATUS_INVALID: another model, or
 * momentum on one side alone; STATUS_CORRUPT, STATUS_NOT_FOUND. A file that is cut or cannot be read on the
 * way is an error, too, after which the entries hold a mixture. */
enum status checkpoint_load(const char *path, const struct checkpoint_part *part, struct error *error);

/* The model alone, from a checkpoint folder (whose hash is compared) or any safetensors file with matching
 * names; num_batches_tracked may be absent (0 then). Values are F32, or F64, which is rounded; F16 and BF16
 * are refused (STATUS_INVALID: "… holds BF16, expected F32 or F64"). For `coalesced evaluate`, and for /init,
 * for which a job's check admits files alone. */
enum status checkpoint_load_model(const char *path, const struct checkpoint_part *part, struct error *error);

#endif
