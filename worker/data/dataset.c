/* Chooses the reader of a job's data, and applies /data/limit, which all readers share. */
#include "worker/data/dataset.h"

#include "worker/data/dataset_internal.h"

#include <assert.h>
#include <stdlib.h>

struct dataset {
    const struct dataset_reader *reader;
    void *state;
    uint64_t count;
};

static const struct dataset_reader *const readers[] = {
    [JOB_DATA_SYNTHETIC] = &dataset_synthetic,
    [JOB_DATA_IDX] = &dataset_idx,
    [JOB_DATA_CIFAR] = &dataset_cifar,
    [JOB_DATA_FOLDER] = &dataset_folder,
};

static const struct dataset_reader *reader_of(const struct job *job)
{
    assert(job->data.kind >= 0 && (size_t)job->data.kind < sizeof readers / sizeof *readers);
    return readers[job->data.kind];
}

static uint64_t limited(uint64_t count, const struct job *job)
{
    return job->data.has_limit && job->data.limit < count ? job->data.limit : count;
}

enum status dataset_probe(struct dataset_info *info, const struct job *job, struct error *error)
{
    uint64_t counts[DATASET_SPLITS] = {0};
    enum status status = reader_of(job)->probe(counts, job, error);
    if (status == STATUS_OK)
        *info = (struct dataset_info){.train = limited(counts[DATASET_TRAIN], job),
                                      .evaluation = counts[DATASET_EVALUATION]};
    return status;
}

enum status dataset_open(struct dataset **out, const struct job *job, enum dataset_split split,
                         struct error *error)
{
    struct dataset *dataset = calloc(1, sizeof *dataset);
    if (dataset == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a dataset");
    dataset->reader = reader_of(job);
    enum status status = dataset->reader->open(&dataset->state, &dataset->count, job, split, error);
    if (status != STATUS_OK) {
        free(dataset);
        return status;
    }
    if (split == DATASET_TRAIN)
        dataset->count = limited(dataset->count, job);
    *out = dataset;
    return STATUS_OK;
}

void dataset_free(struct dataset *dataset)
{
    if (dataset == NULL)
        return;
    dataset->reader->close(dataset->state);
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
    return dataset->reader->read(dataset->state, index, image, label, error);
}
