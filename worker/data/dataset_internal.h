/* One row of functions per kind of data: what dataset.c asks of dataset_idx.c, dataset_cifar.c and the
 * others. */
#ifndef WORKER_DATA_READER_H
#define WORKER_DATA_READER_H

#include "worker/data/dataset.h"

enum { DATASET_SPLITS = 2, DATASET_CHANNELS = 3 };

/* A split has at most this many samples: sample numbers are 32 bits wide. */
enum { DATASET_SAMPLES_MAX = INT32_MAX };

struct dataset_reader {
    /* Counts the samples of both splits, indexed by enum dataset_split, without reading them and without
     * /data/limit. */
    enum status (*probe)(uint64_t counts[DATASET_SPLITS], const struct job *job, struct error *error);
    /* Opens one split. *state goes to read and close; *count is the number of samples, at least one. */
    enum status (*open)(void **state, uint64_t *count, const struct job *job, enum dataset_split split,
                        struct error *error);
    /* As dataset_read. */
    enum status (*read)(void *state, uint64_t index, struct image *image, int32_t *label,
                        struct error *error);
    void (*close)(void *state); /* NULL: does nothing */
};

extern const struct dataset_reader dataset_synthetic, dataset_idx, dataset_cifar, dataset_folder;

#endif
