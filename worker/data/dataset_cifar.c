/* Reads CIFAR's binary files: records of one label (CIFAR-100: a coarse one, then the fine one) and 32 x 32
 * pixels of red, then green, then blue. The process that opens the dataset reads them whole, once. */
#include "worker/data/dataset_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SIDE = 32, CHANNELS = 3, PIXELS = CHANNELS * SIDE * SIDE, FILES_MAX = 5 };

/* One of the two datasets: its files by split, ended by NULL, and the number of label bytes before an image,
 * of which the last is the label. */
struct variant {
    const char *files[DATASET_SPLITS][FILES_MAX + 1];
    uint32_t label_bytes;
};

static const struct variant cifar10 = {
    .files = {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
               "data_batch_5.bin"},
              {"test_batch.bin"}},
    .label_bytes = 1,
};
static const struct variant cifar100 = {.files = {{"train.bin"}, {"test.bin"}}, .label_bytes = 2};

static bool cifar_has(const char *folder, const char *name)
{
    char path[DATA_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static enum status cifar_variant(const struct variant **variant, const char *folder, struct error *error)
{
    *variant = cifar_has(folder, cifar10.files[0][0]) ? &cifar10 : &cifar100;
    if (*variant == &cifar100 && !cifar_has(folder, cifar100.files[0][0]))
        return error_set(error, STATUS_NOT_FOUND, "%.300s: neither %s (CIFAR-10) nor %s (CIFAR-100) is there",
                         folder, cifar10.files[0][0], cifar100.files[0][0]);
    return STATUS_OK;
}

/* Appends the file's records to the `first` ones in memory. */
static enum status cifar_read_file(struct dataset *dataset, uint64_t first, struct data_file *file,
                                   const struct job *job, struct error *error)
{
    const size_t record = dataset->pixel_stride;
    uint8_t *grown = realloc(dataset->memory, dataset->count * record);
    if (grown == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %llu bytes of %.300s",
                         (unsigned long long)(dataset->count * record), job->data.path);
    dataset->memory = grown;
    enum status status =
        data_file_read(file, grown + first * record, (dataset->count - first) * record, error);
    if (status == STATUS_OK)
        status = data_file_end(file, error);
    return status == STATUS_OK ? dataset_check_labels(dataset, first, file, dataset->labels, job, error)
                               : status;
}

/* Counts the records of an open file, whose size must be a whole number of records. */
static enum status cifar_count(struct dataset *dataset, const struct data_file *file, struct error *error)
{
    const uint64_t record = dataset->pixel_stride;
    if (file->size == 0 || file->size % record != 0)
        return error_set(error, STATUS_CORRUPT,
                         "%.300s: ends at offset %llu, %llu bytes into a record of %llu", file->path,
                         (unsigned long long)file->size, (unsigned long long)(file->size % record),
                         (unsigned long long)record);
    dataset->count += file->size / record;
    if (dataset->count > DATASET_SAMPLES_MAX)
        return error_set(error, STATUS_CORRUPT, "%.300s: expected at most %d samples, got %llu", file->path,
                         DATASET_SAMPLES_MAX, (unsigned long long)dataset->count);
    return STATUS_OK;
}

enum status dataset_cifar(struct dataset *dataset, const struct job *job, enum dataset_split split,
                          bool probe, struct error *error)
{
    const struct variant *variant;
    enum status status = cifar_variant(&variant, job->data.path, error);
    dataset->width = dataset->height = SIDE;
    dataset->channels = CHANNELS;
    dataset->labels = variant->label_bytes - 1;
    dataset->pixels = variant->label_bytes;
    dataset->label_stride = dataset->pixel_stride = variant->label_bytes + PIXELS;
    for (const char *const *name = variant->files[split]; *name != NULL && status == STATUS_OK; name++) {
        const uint64_t first = dataset->count;
        struct data_file file;
        status = data_file_open(&file, job->data.path, *name, false, error);
        if (status == STATUS_OK)
            status = cifar_count(dataset, &file, error);
        if (status == STATUS_OK && !probe)
            status = cifar_read_file(dataset, first, &file, job, error);
        data_file_close(&file);
    }
    return status;
}
