/* Checkpoints: one folder per checkpoint, complete or absent.
 *
 *     RUN/checkpoints/00000120/model.safetensors      every entry under PyTorch's name; loads strictly there
 *                              optimizer.safetensors  SGD's momentum under the parameters' names; Adam's two
 *                                                     moments under these names with .exp_avg and .exp_avg_sq
 *                                                     behind, RMSprop's with .square_avg: PyTorch's names
 *                              environments.bin       the environments' states, as worker/reinforce/saving.c
 *                                                     writes them (/rollout/begin "continue")
 *                              environment.json       a reinforce job's: the environment's spaces
 *                                                     (worker/environment/environment_description.h)
 *                              manifest.json          counters, place in the logs, the run's identity,
 *                                                     SHA-256 of all files; written last
 *     RUN/checkpoints/00000120.tmp/    being written, or left by a writer that died
 *     RUN/checkpoints/00000120.ahead/  set aside: the run goes on from an older one
 *     RUN/checkpoints/best/            with /checkpoint/best: like the others, but never counted, pruned or
 *                                      resumed from
 *
 * This room holds the format's one writer and one reader, and the state machine that takes a checkpoint
 * beside a running loop. It knows no job kind: a kind hands over its values as struct checkpoint_values.
 *
 *   update     a checkpoint's number; for reinforce, an episode's
 *   manifest   manifest.json: what the checkpoint says of itself
 *   place      a position in the run's logs (worker/run_place.h)
 *   shard      the part of the model that one server owns, and the file that it writes
 *   score      how good the model is, for the best checkpoint
 *   saver      takes one checkpoint after the other for a running loop
 *
 *     checkpoint.c            folders and files: made, written, published, found, checked, loaded
 *     checkpoint_manifest.c   the text of manifest.json
 *     checkpoint_saver.c      the state machine: due, gather, wait for the log, write, publish
 *
 * Order of writing: checkpoint_begin; every server above 0 writes its shard into N.tmp; checkpoint_write
 * (server 0) merges the shards, writes the manifest and syncs every file; checkpoint_publish syncs the logs,
 * renames N.tmp to N, syncs RUN/checkpoints and removes all but the newest `keep`. A failure at any point
 * leaves the older checkpoints as they are; the unfinished folder is removed by checkpoint_abandon or by the
 * next checkpoint_begin. A file whose write or fsync failed is never retried.
 *
 * Equal runs have equal files, byte for byte, but for the manifest's place and identity: nothing else in a
 * checkpoint depends on when, where, by which process or by how many servers it was written.
 *
 * A folder's name is the update's number, in eight digits or more; the newest checkpoint has the largest.
 * Other names in RUN/checkpoints, and further files in a checkpoint, are ignored.
 *
 * A run's directory and a checkpoint's folder are given as struct path (kernels/base/file.h): a running job
 * holds its directory open and writes below the descriptor, so that a directory that is renamed while the job
 * runs keeps getting the job's checkpoints, and a folder put in its place gets none.
 *
 * All functions block on files. Needs memory for the largest entry beside the parameters. */
#ifndef WORKER_CHECKPOINT_CHECKPOINT_H
#define WORKER_CHECKPOINT_CHECKPOINT_H

#include "kernels/base/file.h"
#include "kernels/params/params_file.h"
#include "worker/checkpoint/checkpoint_manifest.h"

enum {
    CHECKPOINT_PATH_BYTES = 4096 + 128, /* PATH_MAX of a run's folder, and the names below it */
};

/* The contents of a file of bytes, to be written. */
struct checkpoint_bytes {
    const char *text; /* NULL: no such file */
    size_t count;
};

/* For a model-parallel job alone: the manifest's `text`, and two more files.
 *     vocabulary.txt     worker/data/vocabulary.h's text form; absent for synthetic data
 *     state.safetensors  the trainers' hidden state, one entry each (buffers): "trainer0.h", "trainer0.c", …
 */
struct checkpoint_extra {
    struct checkpoint_text text;
    struct checkpoint_bytes vocabulary;
    struct params *state; /* NULL: none */
};

/* The values that this process saves or loads. Layouts are the params'; files are canonical. */
struct checkpoint_values {
    struct params *params;      /* placed on the version to save, or on the slot to load into */
    struct gradients *momentum; /* SGD's, placed likewise; NULL: the optimizer has none */
    struct params *moments;     /* Adam's, as they are named in the file; NULL: the optimizer is SGD */
    struct checkpoint_bytes environments, description; /* of environments.bin and environment.json */

    /* (servers) each server's entries, where the model is cut among several; NULL: all are here. */
    const struct params_range *shards;
    uint32_t server, servers; /* this process's shard, and their number */
};

/* ---- writing ---- */

/* Makes RUN/checkpoints and an empty N.tmp in it; removes older .tmp folders. */
enum status checkpoint_begin(struct path run, uint64_t update, struct error *error);

/* Checks that checkpoint_begin could make a folder in RUN/checkpoints: for the start of a run, long before
 * the first checkpoint is due (daemon/commands/commands.c). Makes RUN/checkpoints. STATUS_IO or
 * STATUS_PERMISSION with the path and the reason. */
enum status checkpoint_probe(struct path run, struct error *error);

/* Writes the shard of a server above 0 into N.tmp: shard-J.model.safetensors, shard-J.optimizer.safetensors.
 */
enum status checkpoint_write_shard(struct path run, uint64_t update, const struct checkpoint_values *values,
                                   struct error *error);

/* Writes the checkpoint's files out of server 0's values and the other servers' shards, which must be there
 * and are removed; then the manifest; syncs all. `extra`: NULL but for a model-parallel job, whose lead
 * writes the whole model alone. STATUS_INVALID: a loss, the score or the learning rate is not finite, or a
 * shard does not fit the model and its cut. */
enum status checkpoint_write(struct path run, const struct checkpoint_counters *counters,
                             const struct run_place *place, const struct checkpoint_values *values,
                             const struct checkpoint_extra *extra, struct error *error);

/* Syncs RUN/episodes.jsonl and RUN/episodes.log, so that a loss of power leaves no checkpoint without its
 * lines; renames N.tmp to N and syncs RUN/checkpoints: from the rename on the checkpoint is visible. A
 * damaged checkpoint of that name is replaced. Then removes all older checkpoints but the newest `keep` (at
 * least 1), this one included; later numbers, which can only be damaged, are neither counted nor removed. An
 * old checkpoint that cannot be removed is logged and no failure.
 *
 * Errors of all writing functions name file and reason: "…/00000120.tmp/model.safetensors: cannot be
 * written: No space left on device". */
enum status checkpoint_publish(struct path run, uint64_t update, uint32_t keep, struct error *error);

/* Renames each checkpoint later than `update` to N.ahead, with a warning: a run that goes on from an older
 * checkpoint may come to other numbers. An older N.ahead is removed. */
enum status checkpoint_set_aside(struct path run, uint64_t update, struct error *error);

/* Also makes the written N.tmp the best checkpoint. Comes before checkpoint_publish. Syncs the logs. At any
 * moment RUN/checkpoints/best is the former one or the new one, whole; where the file system cannot exchange
 * two names, the former one is removed first. STATUS_IO, STATUS_PERMISSION: the file system has no hard
 * links, or as the other writing functions. */
enum status checkpoint_keep_best(struct path run, uint64_t update, struct error *error);

/* The score of RUN/checkpoints/best; unmeasured: there is none, or it is damaged, which is logged. Errors of
 * checkpoint_newest, but for STATUS_NOT_FOUND. */
enum status checkpoint_best_score(struct path run, struct checkpoint_score *score, struct error *error);

/* Any measured score is better than none or than one of another measure. */
bool checkpoint_score_better(const struct checkpoint_score *score, const struct checkpoint_score *than);

/* Removes N.tmp, of a checkpoint that failed. */
void checkpoint_abandon(struct path run, uint64_t update);

/* ---- reading ---- */

/* Checks a checkpoint's folder: the manifest; size and SHA-256 of each file; that a folder named like a
 * checkpoint holds the checkpoint of that number. STATUS_CORRUPT, STATUS_NOT_FOUND. */
enum status checkpoint_check(struct path path, struct checkpoint_counters *counters, struct error *error);

struct checkpoint_found {
    uint64_t number;
    double unix_s; /* when its folder changed last; NaN: not known */
};

/* Finds a run's checkpoints, oldest first, by their folders' names: no file in them is opened. Returns how
 * many; 0 also after a failure. The caller frees *found. */
size_t checkpoint_find(struct checkpoint_found **found, struct path run);

/* Which checkpoints a run may go on from. */
struct checkpoint_judge {
    /* Whether a sound checkpoint of this place fits the run. STATUS_CORRUPT says why not; other failures end
     * the search. NULL: each fits. */
    enum status (*fits)(void *context, const struct run_place *place, struct error *why);
    /* Hears of each newer checkpoint that is damaged or does not fit. NULL: nobody wants to know. */
    void (*skipped)(void *context, const char *path, const char *why);
    void *context;
};

/* The newest sound checkpoint of a run that fits by `judge`. STATUS_NOT_FOUND: there is none.
 * STATUS_PERMISSION, STATUS_NO_MEMORY: a checkpoint could not be read; STATUS_INVALID: an older version of
 * the program has written one. They may be sound, so no older one is taken in their place. */
enum status checkpoint_newest(struct path run, const struct checkpoint_judge *judge,
                              char path[CHECKPOINT_PATH_BYTES], struct checkpoint_counters *counters,
                              struct run_place *place, struct error *error);

/* The counters and the text of a checkpoint that was checked before: reads the manifest alone. `text` may be
 * NULL. */
enum status checkpoint_facts(struct path path, struct checkpoint_counters *counters,
                             struct checkpoint_text *text, struct error *error);

/* Loads this server's shard (server 0: statistics and num_batches_tracked too) from a checkpoint's two files,
 * which were checked before: hashes are not compared again. The files must hold the whole model and nothing
 * else: otherwise the error names the first few entries at fault, and nothing is changed. STATUS_INVALID:
 * another model, or moments on one side only; STATUS_CORRUPT, STATUS_NOT_FOUND. After a file that is cut or
 * unreadable midway the entries hold a mixture. */
enum status checkpoint_load(struct path path, const struct checkpoint_values *values, struct error *error);

/* Loads the model alone, from a checkpoint's folder (whose hash is compared) or from any safetensors file
 * with matching names; num_batches_tracked may be absent (then 0). Values are F32, or F64, which is rounded;
 * F16 and BF16 are STATUS_INVALID: "… holds BF16, expected F32 or F64". For `coalesced evaluate`, and for
 * /init, which a job's check restricts to files. */
enum status checkpoint_load_model(struct path path, const struct checkpoint_values *values,
                                  struct error *error);

/* Reads one of the files CHECKPOINT_VOCABULARY, CHECKPOINT_ENVIRONMENTS and CHECKPOINT_DESCRIPTION, and
 * compares its hash. *text is malloc'ed and zero-terminated; NULL: the checkpoint has no such file. */
enum status checkpoint_read(struct path path, int file, char **text, size_t *bytes, struct error *error);

/* Loads the state of struct checkpoint_extra, of a checkpoint that was checked before. The file must fit
 * entirely, as in checkpoint_load. */
enum status checkpoint_load_state(struct path path, struct params *state, struct error *error);

#endif
