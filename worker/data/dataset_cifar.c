/* CIFAR's binary files: records of one label (CIFAR-100: a coarse one, then the fine one) and 32 x 32 pixels
 * of red, then green, then blue. The process that opens the dataset reads them whole, once. */
#include "worker/data/data_file.h"
#include "worker/data/dataset_internal.h"
#include "worker/data/image.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SIDE = 32, PLANE = SIDE * SIDE, PIXELS = DATASET_CHANNELS * PLANE, FILES_MAX = 5 };

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

struct cifar {
    uint32_t label_bytes;
    uint8_t *records;
};

static bool has(const char *folder, const char *name)
{
    char path[DATA_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static enum status variant_of(const struct variant **variant, const char *folder, struct error *error)
{
    *variant = has(folder, cifar10.files[0][0]) ? &cifar10 : &cifar100;
    if (*variant == &cifar100 && !has(folder, cifar100.files[0][0]))
        return error_set(error, STATUS_NOT_FOUND, "%.300s: neither %s (CIFAR-10) nor %s (CIFAR-100) is there",
                         folder, cifar10.files[0][0], cifar100.files[0][0]);
    return STATUS_OK;
}

/* Opens a file, whose size must be a whole number of records. */
static enum status cifar_open_file(struct data_file **file, uint64_t *records, const char *folder,
                                   const char *name, uint32_t label_bytes, struct error *error)
{
    const uint64_t record = PIXELS + label_bytes;
    enum status status = data_file_open(file, folder, name, false, error);
    if (status != STATUS_OK)
        return status;
    *records = data_file_size(*file) / record;
    const uint64_t rest = data_file_size(*file) % record;
    if (*records > 0 && rest == 0)
        return STATUS_OK;
    error_set(error, STATUS_CORRUPT, "%.300s: ends at offset %llu, %llu bytes into a record of %llu",
              data_file_path(*file), (unsigned long long)data_file_size(*file), (unsigned long long)rest,
              (unsigned long long)record);
    data_file_close(*file);
    return STATUS_CORRUPT;
}

static enum status cifar_count_split(uint64_t *count, const struct variant *variant, const char *folder,
                                     enum dataset_split split, struct error *error)
{
    *count = 0;
    for (const char *const *name = variant->files[split]; *name != NULL; name++) {
        struct data_file *file;
        uint64_t records;
        enum status status = cifar_open_file(&file, &records, folder, *name, variant->label_bytes, error);
        if (status != STATUS_OK)
            return status;
        data_file_close(file);
        *count += records;
    }
    if (*count > DATASET_SAMPLES_MAX)
        return error_set(error, STATUS_CORRUPT, "%.300s: expected at most %d samples, got %llu", folder,
                         DATASET_SAMPLES_MAX, (unsigned long long)*count);
    return STATUS_OK;
}

static enum status cifar_probe(uint64_t counts[DATASET_SPLITS], const struct job *job, struct error *error)
{
    const struct variant *variant;
    enum status status = variant_of(&variant, job->data.path, error);
    for (int split = 0; split < DATASET_SPLITS && status == STATUS_OK; split++)
        status = cifar_count_split(&counts[split], variant, job->data.path, split, error);
    return status;
}

static void cifar_close_split(void *state)
{
    struct cifar *cifar = state;
    if (cifar != NULL)
        free(cifar->records);
    free(cifar);
}

static enum status cifar_check_labels(const struct data_file *file, const uint8_t *bytes, uint64_t records,
                                      uint32_t label_bytes, uint32_t classes, struct error *error)
{
    for (uint64_t i = 0; i < records; i++) {
        const uint64_t at = i * (PIXELS + label_bytes) + label_bytes - 1;
        if (bytes[at] >= classes)
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: offset %llu: label %u, where /model/classes is %u",
                             data_file_path(file), (unsigned long long)at, bytes[at], classes);
    }
    return STATUS_OK;
}

/* Appends the records of one file to those already read; there is room for `count` records in all. */
static enum status cifar_read_file(struct cifar *cifar, uint64_t *filled, uint64_t count,
                                   const struct job *job, const char *name, struct error *error)
{
    const uint64_t record = PIXELS + cifar->label_bytes;
    uint8_t *to = cifar->records + *filled * record;
    struct data_file *file;
    uint64_t records;
    enum status status = cifar_open_file(&file, &records, job->data.path, name, cifar->label_bytes, error);
    if (status != STATUS_OK)
        return status;
    if (records > count - *filled)
        status = error_set(error, STATUS_CORRUPT, "%.300s: grew while it was read", data_file_path(file));
    if (status == STATUS_OK)
        status = data_file_read(file, to, records * record, error);
    if (status == STATUS_OK)
        status = data_file_end(file, error);
    if (status == STATUS_OK)
        status = cifar_check_labels(file, to, records, cifar->label_bytes, job->model.classes, error);
    data_file_close(file);
    *filled += records;
    return status;
}

static enum status cifar_read_files(struct cifar *cifar, const struct variant *variant, uint64_t *count,
                                    const struct job *job, enum dataset_split split, struct error *error)
{
    const uint64_t bytes = *count * (PIXELS + variant->label_bytes);
    assert(*count > 0);
    cifar->label_bytes = variant->label_bytes;
    cifar->records = malloc(bytes);
    if (cifar->records == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %llu bytes of %.300s",
                         (unsigned long long)bytes, job->data.path);
    uint64_t filled = 0;
    enum status status = STATUS_OK;
    for (const char *const *name = variant->files[split]; *name != NULL && status == STATUS_OK; name++)
        status = cifar_read_file(cifar, &filled, *count, job, *name, error);
    *count = filled;
    return status;
}

static enum status cifar_open_split(void **state, uint64_t *count, const struct job *job,
                                    enum dataset_split split, struct error *error)
{
    const struct variant *variant;
    enum status status = variant_of(&variant, job->data.path, error);
    if (status == STATUS_OK)
        status = cifar_count_split(count, variant, job->data.path, split, error);
    if (status != STATUS_OK)
        return status;
    struct cifar *cifar = calloc(1, sizeof *cifar);
    if (cifar == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a dataset");
    status = cifar_read_files(cifar, variant, count, job, split, error);
    if (status == STATUS_OK)
        *state = cifar;
    else
        cifar_close_split(cifar);
    return status;
}

static enum status cifar_read_sample(void *state, uint64_t index, struct image *image, int32_t *label,
                                     struct error *error)
{
    const struct cifar *cifar = state;
    const uint8_t *record = cifar->records + index * (PIXELS + cifar->label_bytes);
    const uint8_t *planes = record + cifar->label_bytes;
    enum status status = image_reshape(image, SIDE, SIDE, DATASET_CHANNELS, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < PLANE; i++)
        for (uint32_t c = 0; c < DATASET_CHANNELS; c++)
            image->pixels[DATASET_CHANNELS * i + c] = planes[c * PLANE + i];
    *label = record[cifar->label_bytes - 1];
    return STATUS_OK;
}

const struct dataset_reader dataset_cifar = {
    .probe = cifar_probe, .open = cifar_open_split, .read = cifar_read_sample, .close = cifar_close_split};
