/* What dataset.c has of each kind of data: a row of functions. Only the readers and dataset.c include this.
 */
#ifndef WORKER_DATA_READER_H
#define WORKER_DATA_READER_H

#include "worker/data/dataset.h"

enum { READER_SPLITS = 2, READER_CHANNELS = 3 };

/* More samples than this a split cannot have: their numbers are 32 bits wide. */
enum { READER_SAMPLES_MAX = INT32_MAX };

struct data_reader {
    /* Counts both splits' samples by enum dataset_split, /data/limit aside, without reading them. */
    enum status (*probe)(uint64_t counts[READER_SPLITS], const struct job *job, struct error *error);
    /* Opens one split: *state is what the others get, *count its samples, at least one. */
    enum status (*open)(void **state, uint64_t *count, const struct job *job, enum dataset_split split,
                        struct error *error);
    /* As dataset_read. */
    enum status (*read)(void *state, uint64_t index, struct image *image, int32_t *label,
                        struct error *error);
    void (*close)(void *state); /* NULL is nothing */
};

extern const struct data_reader data_synthetic, data_idx, data_cifar, data_folder;

#endif
