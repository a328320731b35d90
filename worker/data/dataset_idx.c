/* Reads the MNIST family's files: a header of big-endian words, then bytes. The process that opens the
 * dataset reads them whole, once. */
#include "worker/data/dataset_internal.h"

#include <stdlib.h>
#include <string.h>

/* Magic numbers: unsigned bytes, in three dimensions or one. */
enum {
    IMAGES_MAGIC = 0x00000803,
    LABELS_MAGIC = 0x00000801,
    IMAGES_HEADER_BYTES = 16,
    LABELS_HEADER_BYTES = 8
};

static const char *const image_files[] = {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"};
static const char *const label_files[] = {"train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"};

static uint32_t idx_word(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Adds the name of the Debian package where the missing folder is the one that the shipped job names. */
static enum status idx_open_file(struct data_file *file, const char *folder, const char *name,
                                 struct error *error)
{
    static const char debian[] = "/usr/share/datasets/fashion-mnist";
    struct error reason;
    enum status status = data_file_open(file, folder, name, true, &reason);
    if (status == STATUS_OK)
        return status;
    const size_t length = strlen(debian);
    if (status == STATUS_NOT_FOUND && strncmp(folder, debian, length) == 0 &&
        folder[length + strspn(folder + length, "/")] == '\0')
        return error_set(error, status, "%.300s: install the Debian package dataset-fashion-mnist",
                         reason.text);
    return error_set(error, status, "%s", reason.text);
}

static enum status idx_read_header(struct data_file *file, uint32_t magic, uint8_t *header, size_t bytes,
                                   uint32_t *count, struct error *error)
{
    enum status status = data_file_read(file, header, bytes, error);
    if (status != STATUS_OK)
        return status;
    if (idx_word(header) != magic)
        return error_set(error, STATUS_CORRUPT, "%.300s: offset 0: expected the magic number %08x, got %08x",
                         file->path, magic, idx_word(header));
    *count = idx_word(header + 4);
    if (*count == 0 || *count > DATASET_SAMPLES_MAX)
        return error_set(error, STATUS_CORRUPT, "%.300s: offset 4: expected 1..%d samples, got %u",
                         file->path, DATASET_SAMPLES_MAX, *count);
    return STATUS_OK;
}

static enum status idx_read_images_header(struct dataset *dataset, struct data_file *images,
                                          struct error *error)
{
    uint8_t header[IMAGES_HEADER_BYTES];
    uint32_t count;
    enum status status = idx_read_header(images, IMAGES_MAGIC, header, sizeof header, &count, error);
    if (status != STATUS_OK)
        return status;
    const uint32_t height = idx_word(header + 8), width = idx_word(header + 12);
    if (height == 0 || width == 0 || height > IMAGE_SIDE_MAX || width > IMAGE_SIDE_MAX ||
        height * width > IMAGE_BYTES_MAX)
        return error_set(error, STATUS_CORRUPT,
                         "%.300s: offset 8: expected images of 1..%d x 1..%d pixels, got %u x %u",
                         images->path, IMAGE_SIDE_MAX, IMAGE_SIDE_MAX, height, width);
    dataset->count = count;
    dataset->width = width;
    dataset->height = height;
    dataset->channels = dataset->label_stride = 1;
    dataset->pixel_stride = (size_t)height * width;
    dataset->pixels = count; // behind the labels
    return data_file_expect(images, IMAGES_HEADER_BYTES + count * (uint64_t)dataset->pixel_stride, error);
}

static enum status idx_read_labels_header(const struct dataset *dataset, struct data_file *labels,
                                          const struct data_file *images, struct error *error)
{
    uint8_t header[LABELS_HEADER_BYTES];
    uint32_t count;
    enum status status = idx_read_header(labels, LABELS_MAGIC, header, sizeof header, &count, error);
    if (status != STATUS_OK)
        return status;
    if (count != dataset->count)
        return error_set(error, STATUS_CORRUPT, "%.200s: offset 4: %u labels, where %.200s has %llu images",
                         labels->path, count, images->path, (unsigned long long)dataset->count);
    return data_file_expect(labels, LABELS_HEADER_BYTES + (uint64_t)count, error);
}

static enum status idx_read_contents(struct dataset *dataset, struct data_file *labels,
                                     struct data_file *images, const struct job *job, struct error *error)
{
    const size_t pixels = dataset->count * dataset->pixel_stride;
    dataset->memory = malloc(dataset->pixels + pixels);
    if (dataset->memory == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu bytes of %.300s", pixels, images->path);
    enum status status = data_file_read(labels, dataset->memory, dataset->count, error);
    if (status == STATUS_OK)
        status = data_file_end(labels, error);
    if (status == STATUS_OK)
        status = dataset_check_labels(dataset, 0, labels, LABELS_HEADER_BYTES, job, error);
    if (status == STATUS_OK)
        status = data_file_read(images, dataset->memory + dataset->pixels, pixels, error);
    return status == STATUS_OK ? data_file_end(images, error) : status;
}

enum status dataset_idx(struct dataset *dataset, const struct job *job, enum dataset_split split, bool probe,
                        struct error *error)
{
    struct data_file images = {0}, labels = {0};
    enum status status = idx_open_file(&images, job->data.path, image_files[split], error);
    if (status == STATUS_OK)
        status = idx_open_file(&labels, job->data.path, label_files[split], error);
    if (status == STATUS_OK)
        status = idx_read_images_header(dataset, &images, error);
    if (status == STATUS_OK)
        status = idx_read_labels_header(dataset, &labels, &images, error);
    if (status == STATUS_OK && !probe)
        status = idx_read_contents(dataset, &labels, &images, job, error);
    data_file_close(&images);
    data_file_close(&labels);
    return status;
}
