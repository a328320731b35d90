/* The MNIST family's files: a header of big-endian words, then bytes. The process that opens the dataset
 * reads them whole, once. */
#include "worker/data/data_file.h"
#include "worker/data/dataset_internal.h"
#include "worker/data/image.h"

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

/* The two files of a split, read up to the end of their headers. */
struct pair {
    struct data_file *images, *labels;
    uint32_t count, height, width;
};

struct idx {
    uint32_t height, width;
    uint8_t *pixels, *labels;
};

/* ---- headers ---- */

static uint32_t word(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Adds the name of the Debian package where the missing folder is the one that the shipped job names. */
static enum status idx_open_file(struct data_file **file, const char *folder, const char *name,
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

static enum status read_header(struct data_file *file, uint32_t magic, uint8_t *header, size_t bytes,
                               uint32_t *count, struct error *error)
{
    enum status status = data_file_read(file, header, bytes, error);
    if (status != STATUS_OK)
        return status;
    if (word(header) != magic)
        return error_set(error, STATUS_CORRUPT, "%.300s: offset 0: expected the magic number %08x, got %08x",
                         data_file_path(file), magic, word(header));
    *count = word(header + 4);
    if (*count == 0 || *count > DATASET_SAMPLES_MAX)
        return error_set(error, STATUS_CORRUPT, "%.300s: offset 4: expected 1..%d samples, got %u",
                         data_file_path(file), DATASET_SAMPLES_MAX, *count);
    return STATUS_OK;
}

static enum status read_images_header(struct pair *pair, struct error *error)
{
    uint8_t header[IMAGES_HEADER_BYTES];
    enum status status = read_header(pair->images, IMAGES_MAGIC, header, sizeof header, &pair->count, error);
    if (status != STATUS_OK)
        return status;
    pair->height = word(header + 8);
    pair->width = word(header + 12);
    if (pair->height == 0 || pair->width == 0 || pair->height > IMAGE_SIDE_MAX ||
        pair->width > IMAGE_SIDE_MAX || pair->height * pair->width > IMAGE_BYTES_MAX)
        return error_set(
            error, STATUS_CORRUPT, "%.300s: offset 8: expected images of 1..%d x 1..%d pixels, got %u x %u",
            data_file_path(pair->images), IMAGE_SIDE_MAX, IMAGE_SIDE_MAX, pair->height, pair->width);
    const uint64_t pixels = (uint64_t)pair->count * pair->height * pair->width;
    return data_file_expect(pair->images, IMAGES_HEADER_BYTES + pixels, error);
}

static enum status read_labels_header(struct pair *pair, struct error *error)
{
    uint8_t header[LABELS_HEADER_BYTES];
    uint32_t count;
    enum status status = read_header(pair->labels, LABELS_MAGIC, header, sizeof header, &count, error);
    if (status != STATUS_OK)
        return status;
    if (count != pair->count)
        return error_set(error, STATUS_CORRUPT, "%.200s: offset 4: %u labels, where %.200s has %u images",
                         data_file_path(pair->labels), count, data_file_path(pair->images), pair->count);
    return data_file_expect(pair->labels, LABELS_HEADER_BYTES + (uint64_t)count, error);
}

static void pair_close(struct pair *pair)
{
    data_file_close(pair->images);
    data_file_close(pair->labels);
}

/* The caller closes the pair, after a failure too. */
static enum status pair_open(struct pair *pair, const struct job *job, enum dataset_split split,
                             struct error *error)
{
    *pair = (struct pair){0};
    enum status status = idx_open_file(&pair->images, job->data.path, image_files[split], error);
    if (status == STATUS_OK)
        status = idx_open_file(&pair->labels, job->data.path, label_files[split], error);
    if (status == STATUS_OK)
        status = read_images_header(pair, error);
    if (status == STATUS_OK)
        status = read_labels_header(pair, error);
    return status;
}

static enum status idx_probe(uint64_t counts[DATASET_SPLITS], const struct job *job, struct error *error)
{
    enum status status = STATUS_OK;
    for (int split = 0; split < DATASET_SPLITS && status == STATUS_OK; split++) {
        struct pair pair;
        status = pair_open(&pair, job, split, error);
        counts[split] = pair.count;
        pair_close(&pair);
    }
    return status;
}

/* ---- contents ---- */

static void idx_close_split(void *state)
{
    struct idx *idx = state;
    if (idx == NULL)
        return;
    free(idx->pixels);
    free(idx->labels);
    free(idx);
}

static enum status read_whole(struct data_file *file, uint8_t **to, size_t bytes, struct error *error)
{
    *to = malloc(bytes);
    if (*to == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu bytes of %.300s", bytes,
                         data_file_path(file));
    enum status status = data_file_read(file, *to, bytes, error);
    return status == STATUS_OK ? data_file_end(file, error) : status;
}

static enum status idx_check_labels(const struct data_file *file, const uint8_t *labels, uint32_t count,
                                    uint32_t classes, struct error *error)
{
    for (uint32_t i = 0; i < count; i++)
        if (labels[i] >= classes)
            return error_set(
                error, STATUS_CORRUPT, "%.300s: offset %llu: label %u, where /model/classes is %u",
                data_file_path(file), (unsigned long long)i + LABELS_HEADER_BYTES, labels[i], classes);
    return STATUS_OK;
}

static enum status idx_open_split(void **state, uint64_t *count, const struct job *job,
                                  enum dataset_split split, struct error *error)
{
    struct pair pair;
    struct idx *idx = calloc(1, sizeof *idx);
    enum status status = pair_open(&pair, job, split, error);
    if (status == STATUS_OK && idx == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a dataset");
    if (status == STATUS_OK)
        status = read_whole(pair.labels, &idx->labels, pair.count, error);
    if (status == STATUS_OK)
        status = idx_check_labels(pair.labels, idx->labels, pair.count, job->model.classes, error);
    if (status == STATUS_OK)
        status = read_whole(pair.images, &idx->pixels, (size_t)pair.count * pair.height * pair.width, error);
    if (status == STATUS_OK) {
        idx->height = pair.height;
        idx->width = pair.width;
        *state = idx;
        *count = pair.count;
    } else {
        idx_close_split(idx);
    }
    pair_close(&pair);
    return status;
}

static enum status idx_read_sample(void *state, uint64_t index, struct image *image, int32_t *label,
                                   struct error *error)
{
    const struct idx *idx = state;
    const size_t pixels = (size_t)idx->height * idx->width;
    enum status status = image_reshape(image, idx->width, idx->height, 1, error);
    if (status != STATUS_OK)
        return status;
    memcpy(image->pixels, idx->pixels + index * pixels, pixels);
    *label = idx->labels[index];
    return STATUS_OK;
}

const struct dataset_reader dataset_idx = {
    .probe = idx_probe, .open = idx_open_split, .read = idx_read_sample, .close = idx_close_split};
