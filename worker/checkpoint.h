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
 * begin. Nothing of a manifest depends on when, where or by which process it was written.
 *
 * Needs at most the largest entry's memory beside the parameters. Blocks on files: pservers call the writing
 * half from a thread of its own (worker/pserver.c). The supervisor calls the reading half (no params). */
#ifndef WORKER_CHECKPOINT_H
#define WORKER_CHECKPOINT_H

#include "kernels/params.h"
#include "worker/job/job.h"
#include "worker/parameter_server.h"

enum { CHECKPOINT_PATH_BYTES = 4096 };

/* What a job's progress is, beside model and momentum. Data order and draws are functions of (seed, step,
 * trainer), so the steps are their position. */
struct checkpoint_counters {
    uint64_t update; /* = version */
    uint32_t trainers;
    uint64_t steps[JOB_TRAINERS_MAX]; /* each trainer's next step */
    uint64_t late;                    /* contributions dropped so far */
    double epoch_loss;                /* sum of the losses of the running epoch's updates so far */
};

/* One server's share of what is saved or loaded. Layouts are the params'; files are canonical. */
struct checkpoint_part {
    struct params *params;      /* placed on the version to save, or on the slot to load into */
    struct gradients *momentum; /* placed likewise; NULL: the optimizer has none */
    uint32_t server, servers;
};

/* Makes RUN/checkpoints and an empty N.tmp in it; older .tmp folders are removed. */
enum status checkpoint_begin(const char *run_dir, uint64_t update, struct error *error);

/* Writes the part of a server above 0 into N.tmp. */
enum status checkpoint_write_part(const char *run_dir, uint64_t update, const struct checkpoint_part *part,
                                  struct error *error);

/* Server 0's: the two files out of its own part and the others', the manifest, syncs. All parts are there. */
enum status checkpoint_write(const char *run_dir, const struct checkpoint_counters *counters,
                             const struct checkpoint_part *part, struct error *error);

/* STATUS_IO etc. name the file in all of these: "…/00000120.tmp/model.safetensors: No space left on device".
 */
enum status checkpoint_publish(const char *run_dir, uint64_t update, uint32_t keep, struct error *error);

/* Removes N.tmp, for a checkpoint that failed. */
void checkpoint_abandon(const char *run_dir, uint64_t update);

/* Checks a checkpoint folder: manifest, sizes, SHA-256 of both files; that a folder named like a checkpoint
 * holds that one. STATUS_CORRUPT, STATUS_NOT_FOUND. */
enum status checkpoint_check(const char *path, struct checkpoint_counters *counters, struct error *error);

/* The counters alone, of a checkpoint that was checked before: reads nothing but the manifest. */
enum status checkpoint_counters_read(const char *path, struct checkpoint_counters *counters,
                                     struct error *error);

/* The newest sound checkpoint of a run. Each damaged newer one is told to `damaged` (path, why) and skipped.
 * STATUS_NOT_FOUND: there is none. */
enum status checkpoint_newest(const char *run_dir, char path[CHECKPOINT_PATH_BYTES],
                              struct checkpoint_counters *counters,
                              void (*damaged)(const char *path, const char *why), struct error *error);

/* Loads this server's range (server 0: statistics and counters too) from a checkpoint's two files. The whole
 * model must fit, and nothing else be there: the error names the first few at fault, and nothing changed. */
enum status checkpoint_load(const char *path, const struct checkpoint_part *part, struct error *error);

/* The model alone, from a checkpoint folder or any safetensors file with matching names; num_batches_tracked
 * may be absent (0 then). For /init and `coalesced evaluate`. */
enum status checkpoint_load_model(const char *path, const struct checkpoint_part *part, struct error *error);

#endif
