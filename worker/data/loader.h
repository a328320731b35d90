/* The loader: turns a dataset into batches, ahead of whoever computes on them.
 *
 * ---- Which sample ----
 * Training, step s of trainer t of n with batches of b out of N samples: an epoch has u = floor(N / (n b))
 * steps, epoch e = s / u, place p = s mod u; sample i of the batch is element (p n + t) b + i of epoch e's
 * permutation of [0, N): a Fisher-Yates shuffle by draws of stream RNG_SHUFFLE keyed by (seed, e). All of it
 * is a function of (seed, s, t): a resumed or restarted trainer gets the batches that it would have got.
 * Evaluation, part q of k: the samples [N q / k, N (q + 1) / k) in their order, in batches of
 * evaluation.batch, the last one shorter. A sample that cannot be decoded is replaced by the next one of the
 * permutation that can (evaluation: left out), counted, and named once in the log.
 *
 * ---- What is done to it ----
 * gray to 3 channels (copied) or color to 1 (0.299 R + 0.587 G + 0.114 B); pad with zeros around (before
 * normalizing) or resize (bilinear, with the corners' convention of PyTorch's align_corners=False; shrinking
 * averages, antialias) to size x size; in training a mirror with probability 1/2 and a crop out of the image
 * padded by `crop` on each side, both drawn from RNG_AUGMENT keyed by (seed, sample, epoch); then
 * (pixel / 255 - mean) / std. Images come out as float32 (batch, channels, size, size).
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
    uint64_t first_step;  /* where to begin */
};

/* Opens the dataset and starts the thread. Errors as dataset_open; STATUS_NO_MEMORY. */
enum status loader_new(struct loader **out, const struct loader_config *config, struct error *error);
void loader_free(struct loader *loader);

/* The next batch, valid until the next call. Waits for it until `until`: STATUS_AGAIN, nothing yet, call
 * again. STATUS_NOT_FOUND: an evaluation part has no more. Errors of the thread: STATUS_IO, STATUS_CORRUPT
 * (no sample of a whole batch could be decoded). */
enum status loader_next(struct loader *loader, struct monotime until, const struct batch **batch,
                        struct error *error);

/* Samples that could not be decoded so far. */
uint64_t loader_skipped(const struct loader *loader);

#endif
