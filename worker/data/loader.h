/* The loader: turns a dataset into batches, ahead of the thread that computes with them. A thread of its own
 * decodes the next batches (two are kept) while the caller computes.
 *
 * ---- Which sample ----
 * Training. N samples, n trainers with batches of b: an epoch has u = floor(N / (n b)) steps. Step s of
 * trainer t belongs to epoch e = s / u and place p = s mod u; sample i of its batch is element (p n + t) b +
 * i of the epoch's permutation of [0, N). All of this is a function of (seed, s, t), so a resumed or
 * restarted trainer gets the same batches. A trainer t that was added to a running job, t >= n, has the
 * places of trainer t mod n in a permutation of its own, that of lap floor(t / n); the others' batches, and
 * the epochs, stay the same. Trainer t < n has lap 0.
 *
 * The permutation is a Fisher-Yates shuffle: for i = N - 1 down to 1, place i is exchanged with place
 * rng_below(two words, i + 1). The words are 2 (i mod 2) and the next one of stream RNG_SHUFFLE's block `lap`
 * with word 1 = floor(i / 2), word 2 = the epoch's lower and word 3 its upper 32 bits.
 *
 * Evaluation. Share q of k is the samples [N q / k, N (q + 1) / k) in their order, in batches of
 * evaluation.batch, the last batch shorter.
 *
 * A sample that cannot be decoded is not tried again; it is counted, and named once in the log. In training
 * the next sample of the permutation that can be decoded takes its place (after the last comes the first, so
 * a sample may come twice). In evaluation it is left out and the next one moves up. loader_next answers
 * STATUS_CORRUPT after max(LOADER_BAD_MIN, batch) such samples in a row, or after all samples if they are
 * fewer.
 *
 * ---- What happens to it ----
 * Fitted to size x size by padding with zeros or by resizing; gray to 3 channels or color to 1; in training a
 * crop from the image padded by `crop` on each side, and a mirror with probability 1/2; then (pixel / 255 -
 * mean) / std. transform.h has the formulas. Images come out as float32 (batch, channels, size, size).
 *
 * ---- Synthetic data ----
 * The images of step s of trainer t are draws (kernels/lanes/normal.h) of stream RNG_DATA at the job's seed.
 * Word 2 is the step's lower 32 bits, and word 3 is t. The block's number is the step's bits from 32 on, at
 * most 23 bits. All batches of a trainer have the same labels. Label i is rng_below(words 0 and 1, classes)
 * of block RNG_BLOCK_MAX with word 1 = i, word 2 = 0, word 3 = t. */
#ifndef WORKER_DATA_LOADER_H
#define WORKER_DATA_LOADER_H

#include "kernels/base/monotime.h"
#include "worker/data/dataset.h"

struct loader;

/* At least so many samples in a row that cannot be decoded are an error. */
enum { LOADER_BAD_MIN = 16 };

struct batch {
    uint64_t step;
    uint32_t samples; /* 0: an evaluation share has no more */
    float
        *images; /* (samples, channels, size, size); begins at a page, and shares no page with other memory */
    int32_t *labels; /* (samples) */
};

struct loader_config {
    const struct job *job; /* outlives the loader */
    enum dataset_split split;
    uint32_t share, shares; /* training: trainer, and the job's trainers without those that were added;
                               evaluation: which share of how many */
    uint64_t first_step;    /* of the first batch; evaluation: 0 */
};

/* Starts the thread, which has all signals blocked. Training: opens the dataset first; errors as
 * dataset_open, and STATUS_INVALID: fewer training samples than the trainers take in one step. Evaluation:
 * does not block on files; the thread opens the dataset, and loader_next reports its errors.
 * STATUS_NO_MEMORY. */
enum status loader_new(struct loader **out, const struct loader_config *config, struct error *error);

/* Evaluation: the batches of share `share` come next, from its first sample on. The dataset stays open, and
 * an undecodable sample is not tried, counted or named again. Waits at most for the sample that is being
 * decoded (for the dataset, where it is still being opened). After a failure only loader_free is left. */
enum status loader_restart(struct loader *loader, uint32_t share, struct error *error);

/* Ends the thread. Waits at most for the sample that is being decoded. */
void loader_free(struct loader *loader);

/* Gives the next batch, valid until the next call. Blocks until `until`; then STATUS_AGAIN: call again.
 * STATUS_OK with *batch NULL: the evaluation share has no more samples. An error of the thread comes after
 * the batches before it were taken, and with every call from then on: STATUS_IO, STATUS_NO_MEMORY,
 * STATUS_CORRUPT; evaluation: those of dataset_open. */
enum status loader_next(struct loader *loader, struct monotime until, const struct batch **batch,
                        struct error *error);

/* Evaluation, after the first batch: how many samples the share has, with those that cannot be decoded. */
uint64_t loader_share_samples(const struct loader *loader);

#endif
