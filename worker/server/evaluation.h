/* Evaluation on held-out data, in parts: by the trainers of a running job, and by `coalesced evaluate`.
 *
 * A job's data falls into as many parts as it has trainers. Each part's sums run in the order of its samples,
 * and the whole is the sum of the parts in order, so that who computed a part changes nothing. */
#ifndef WORKER_SERVER_EVALUATION_H
#define WORKER_SERVER_EVALUATION_H

#include "kernels/tape/tape.h"
#include "worker/job/job.h"
#include "worker/model/classifier.h"

struct evaluation {
    double loss_sum;
    uint64_t correct, samples;
};

/* Runs one part; with `again`, one that has been run before, and whose samples that cannot be decoded have
 * been named. `progress` (may be NULL) is called at least between batches and while waiting for data. */
enum status evaluation_run_part(struct evaluation *sums, const struct job *job, struct classifier *classifier,
                                struct tape *tape, uint32_t part, uint32_t parts, bool again,
                                void (*progress)(void *arg), void *arg, struct error *error);

/* The command `coalesced evaluate`: loads the model of `checkpoint` (a checkpoint folder or a safetensors
 * file), opens the job's device, runs all parts. STATUS_INVALID: the job has no held-out data;
 * STATUS_CORRUPT: none of it can be decoded. */
enum status evaluation_run(struct evaluation *sums, const char *checkpoint, const struct job *job,
                           struct error *error);

#endif
