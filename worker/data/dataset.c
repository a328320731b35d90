/* Opens a job's data by its kind, applies /data/limit, and checks and reads the samples that are in memory.
 */
#include "worker/data/dataset.h"

#include "worker/data/dataset_internal.h"

#include <assert.h>
#include <stdlib.h>

/* The tutorial's random data: there is nothing to read, for the loader draws the batches (synthetic.h). */
static enum status dataset_synthetic(struct dataset *dataset, const struct job *job, enum dataset_split split,
                                     bool probe, struct error *error)
{
    (void)dataset;
    (void)job;
    if (split == DATASET_EVALUATION && !probe)
        return error_set(error, STATUS_INVALID, "/data/kind: synthetic data has nothing to evaluate on");
    return STATUS_OK;
}

static dataset_opener *const openers[] = {
    [JOB_DATA_SYNTHETIC] = dataset_synthetic,
    [JOB_DATA_IDX] = dataset_idx,
    [JOB_DATA_CIFAR] = dataset_cifar,
    [JOB_DATA_FOLDER] = dataset_folder,
};

static enum status dataset_open_split(struct dataset **out, const struct job *job, enum dataset_split split,
                                      bool probe, struct error *error)
{
    struct dataset *dataset = calloc(1, sizeof *dataset);
    assert(job->data.kind >= 0 && (size_t)job->data.kind < sizeof openers / sizeof *openers);
    if (dataset == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a dataset");
    enum status status = openers[job->data.kind](dataset, job, split, probe, error);
    if (status != STATUS_OK) {
        dataset_free(dataset);
        return status;
    }
    if (split == DATASET_TRAIN && job->data.has_limit && job->data.limit < dataset->count)
        dataset->count = job->data.limit;
    *out = dataset;
    return STATUS_OK;
}

enum status dataset_probe(struct dataset_info *info, const struct job *job, struct error *error)
{
    uint64_t counts[DATASET_SPLITS];
    for (int split = 0; split < DATASET_SPLITS; split++) {
        struct dataset *dataset;
        enum status status = dataset_open_split(&dataset, job, split, true, error);
        if (status != STATUS_OK)
            return status;
        counts[split] = dataset->count;
        dataset_free(dataset);
    }
    *info = (struct dataset_info){.train = counts[DATASET_TRAIN], .evaluation = counts[DATASET_EVALUATION]};
    return STATUS_OK;
}

enum status dataset_open(struct dataset **out, const struct job *job, enum dataset_split split,
                         struct error *error)
{
    return dataset_open_split(out, job, split, false, error);
}

void dataset_free(struct dataset *dataset)
{
    if (dataset == NULL)
        return;
    folder_free(dataset->folder);
    free(dataset->memory);
    free(dataset);
}

uint64_t dataset_count(const struct dataset *dataset)
{
    return dataset->count;
}

enum status dataset_read(struct dataset *dataset, uint64_t index, struct image *image, int32_t *label,
                         struct error *error)
{
    assert(index < dataset->count);
    if (dataset->folder != NULL)
        return folder_read(dataset->folder, index, image, label, error);
    const uint32_t channels = dataset->channels;
    const size_t plane = (size_t)dataset->width * dataset->height;
    const uint8_t *pixels = dataset->memory + dataset->pixels + index * dataset->pixel_stride;
    enum status status = image_reshape(image, dataset->width, dataset->height, channels, error);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < plane; i++)
        for (uint32_t c = 0; c < channels; c++)
            image->pixels[channels * i + c] = pixels[c * plane + i];
    *label = dataset_label_at(dataset, index);
    return STATUS_OK;
}

enum status dataset_check_labels(const struct dataset *dataset, uint64_t first, const struct data_file *file,
                                 uint64_t offset, const struct job *job, struct error *error)
{
    for (uint64_t i = first; i < dataset->count; i++)
        if (dataset_label_at(dataset, i) >= job->model.classes)
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: offset %llu: label %u, where /model/classes is %u", file->path,
                             (unsigned long long)(offset + (i - first) * dataset->label_stride),
                             dataset_label_at(dataset, i), job->model.classes);
    return STATUS_OK;
}
