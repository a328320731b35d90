/* The loader: turns a dataset into batches, ahead of whoever computes on them.
 *
 * ---- Which sample ----
 * Training, step s of trainer t of n with batches of b out of N samples: an epoch has u = floor(N / (n b))
 * steps, epoch e = s / u, place p = s mod u; sample i of the batch is element (p n + t) b + i of epoch e's
 * permutation of [0, N): a Fisher-Yates shuffle by draws of stream RNG_SHUFFLE keyed by (seed, e). All of it
 * is a function of (seed, s, t): a resumed or restarted trainer gets the batches that it would have got.
 * Evaluation, part q of k: the samples [N q / k, N (q + 1) / k) in their order, in batches of
 * evaluation.batch, the last one shorter.
 *
 * A sample that cannot be decoded is not tried again; it is counted, and named once in the log. In training
 * the next one of the permutation that can takes its place (after the last comes the first; it may thus come
 * twice), in evaluation it is left out and the next one moves up. When LOADER_BAD_MIN samples in a row, or as
 * many as a batch has if that is more, or all there are, cannot be decoded, loader_next says STATUS_CORRUPT.
 *
 * ---- What is done to it ----
 * Fitted to size x size by padding with zeros or resizing; gray to 3 channels or color to 1; in training a
 * crop out of the image padded by `crop` on each side and a mirror with probability 1/2, both drawn from
 * RNG_AUGMENT keyed by (seed, sample, epoch); then (pixel / 255 - mean) / std. transform.h has the formulas.
 * Images come out as float32 (batch, channels, size, size).
 *
 * Which word of which block each draw takes stands in sampling.h (the permutation, mirror and crop) and
 * synthetic.h (the tutorial's random data, which is none of the above).
 *
 * A thread of its own decodes the next batches (two are kept) while the caller computes. */
#ifndef WORKER_DATA_LOADER_H
#define WORKER_DATA_LOADER_H

#include "kernels/base/monotime.h"
#include "worker/data/dataset.h"

struct loader;

/* So many samples in a row, or a batch's if that is more, that cannot be decoded are an error. */
enum { LOADER_BAD_MIN = 16 };

struct batch {
    uint64_t step;
    uint32_t samples;
    const float *images;   /* (samples, channels, size, size) */
    const int32_t *labels; /* (samples) */
};

struct loader_config {
    const struct job *job; /* outlives the loader */
    enum dataset_split split;
    uint32_t part, parts; /* training: trainer and trainers; evaluation: which part of how many */
    uint64_t first_step;  /* where to begin; evaluation: 0 */
    bool quiet;           /* a loader before this one has named what cannot be decoded */
};

/* Opens the dataset and starts the thread, which has all signals blocked. Errors as dataset_open;
 * STATUS_INVALID: fewer training samples than the trainers take in one step; STATUS_NO_MEMORY. */
enum status loader_new(struct loader **out, const struct loader_config *config, struct error *error);

/* At any time: waits for the sample that the thread is at, at most. */
void loader_free(struct loader *loader);

/* The next batch, valid until the next call. Waits for it until `until`: STATUS_AGAIN, nothing yet, call
 * again. STATUS_NOT_FOUND: an evaluation part has no more. Errors of the thread, once the batches before are
 * taken, and from then on: STATUS_IO, STATUS_NO_MEMORY, STATUS_CORRUPT (see above). */
enum status loader_next(struct loader *loader, struct monotime until, const struct batch **batch,
                        struct error *error);

/* Samples that could not be decoded so far. */
uint64_t loader_skipped(const struct loader *loader);

#endif
