/* Fuzzes the readers of the MNIST family's and CIFAR's files. The input's first byte says how it is laid out:
 * as images, labels, or CIFAR's records, plain or packed; beside it lies what makes a good dataset of two
 * samples.
 *
 * Holds three promises: what is accepted has samples that can all be read, with labels below the number of
 * classes; what is refused is refused with a text that names a file; and what opens, probes. */
#include "worker/data/dataset.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CLASSES = 10, SAMPLES_LOOKED_AT = 100 };

static const uint8_t good_images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4};
static const uint8_t good_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 9, 0};

/* One way to lay the input out: as which file, beside which others. */
static const struct layout {
    int kind;
    const char *name, *beside;
} layouts[] = {
    {JOB_DATA_IDX, "train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
    {JOB_DATA_IDX, "train-labels-idx1-ubyte", "train-images-idx3-ubyte"},
    {JOB_DATA_IDX, "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"},
    {JOB_DATA_IDX, "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte"},
    {JOB_DATA_CIFAR, "train.bin", NULL},
};

static void require(int holds)
{
    if (!holds)
        abort();
}

/* The folder in memory that is used over and over, with a good evaluation split. */
static char folder[64];

static void write_file(const char *name, const uint8_t *bytes, size_t count)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, bytes, count) == (ssize_t)count);
    close(fd);
}

static void remove_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static void write_good(const char *name)
{
    const bool labels = strstr(name, "labels") != NULL;
    write_file(name, labels ? good_labels : good_images, labels ? sizeof good_labels : sizeof good_images);
}

static void remove_folder(void)
{
    remove_file("t10k-images-idx3-ubyte");
    remove_file("t10k-labels-idx1-ubyte");
    rmdir(folder);
}

static void make_folder(void)
{
    if (folder[0] == '\0') {
        snprintf(folder, sizeof folder, "/dev/shm/fuzz-data-XXXXXX");
        require(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
        write_good("t10k-images-idx3-ubyte");
        write_good("t10k-labels-idx1-ubyte");
    }
}

static void check_accepted(struct dataset *dataset)
{
    struct image image = {0};
    const uint64_t count = dataset_count(dataset);
    require(count > 0);
    for (uint64_t i = 0; i < count && i < SAMPLES_LOOKED_AT; i++) {
        struct error error;
        int32_t label;
        require(dataset_read(dataset, i, &image, &label, &error) == STATUS_OK);
        require(label >= 0 && label < CLASSES && image.width > 0 && image.height > 0);
    }
    image_fini(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const struct layout *layout = &layouts[data[0] % (sizeof layouts / sizeof *layouts)];
    make_folder();
    struct job job = {.model = {.classes = CLASSES}, .data = {.kind = layout->kind}};
    struct dataset *dataset = NULL;
    struct dataset_info info;
    struct error error = {0};
    snprintf(job.data.path, sizeof job.data.path, "%s", folder);
    write_file(layout->name, data + 1, size - 1);
    if (layout->beside != NULL)
        write_good(layout->beside);
    enum status status = dataset_open(&dataset, &job, DATASET_TRAIN, &error);
    if (status == STATUS_OK) {
        check_accepted(dataset);
        require(layout->kind != JOB_DATA_IDX || dataset_probe(&info, &job, &error) == STATUS_OK);
    } else {
        require(status == STATUS_CORRUPT && strstr(error.text, folder) != NULL);
    }
    dataset_free(dataset);
    remove_file(layout->name);
    if (layout->beside != NULL)
        remove_file(layout->beside);
    return 0;
}
