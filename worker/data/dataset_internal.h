/* The struct of a dataset, for dataset.c and the files that each open one kind: idx, cifar, folder. */
#ifndef WORKER_DATA_DATASET_INTERNAL_H
#define WORKER_DATA_DATASET_INTERNAL_H

#include "worker/data/data_file.h"
#include "worker/data/dataset.h"

/* A split has at most this many samples: sample numbers are 32 bits wide. */
enum { DATASET_SPLITS = 2, DATASET_SAMPLES_MAX = INT32_MAX };

struct folder;

/* Samples as their files hold them: in memory (idx, cifar), or in a folder of images, or none (synthetic). */
struct dataset {
    uint64_t count;
    uint32_t width, height, channels;
    uint8_t *memory;
    size_t labels, label_stride; /* label i is memory[labels + i * label_stride] */
    size_t pixels, pixel_stride; /* and its image, one plane per channel, begins here in memory */
    struct folder *folder;
};

static inline uint8_t dataset_label_at(const struct dataset *dataset, uint64_t index)
{
    return dataset->memory[dataset->labels + index * dataset->label_stride];
}

/* Opens a split; with `probe` only its headers and names, for the count. *dataset is all zero before, and
 * freed by the caller, after a failure too. With `probe` held-out data may be absent: the count is 0. */
typedef enum status dataset_opener(struct dataset *dataset, const struct job *job, enum dataset_split split,
                                   bool probe, struct error *error);
dataset_opener dataset_idx, dataset_cifar, dataset_folder;

/* Checks the labels of the samples from `first` on, which were read from `file`, where label i is at `offset`
 * + (i - first) * label_stride. STATUS_CORRUPT: one is not below /model/classes. */
enum status dataset_check_labels(const struct dataset *dataset, uint64_t first, const struct data_file *file,
                                 uint64_t offset, const struct job *job, struct error *error);

/* As dataset_read. */
enum status folder_read(struct folder *folder, uint64_t index, struct image *image, int32_t *label,
                        struct error *error);
void folder_free(struct folder *folder);

#endif
