/* Folders of JPEG and PNG files, named after their classes. The names are listed once; the loader's thread
 * reads and decodes a file each time that the file is asked for. */
#include "kernels/base/text.h"
#include "worker/data/data_file.h"
#include "worker/data/dataset_internal.h"
#include "worker/data/image.h"
#include "worker/data/listing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FILE_BYTES_MAX = 256 << 20, /* of a compressed image */
    SPLIT_PATH_BYTES = JOB_PATH_BYTES + 8,
    SHOWN_BYTES = 320, /* of a path in a message */
    SHOWN_CHARACTERS = 70
};

static const char *const split_names[] = {"train", "test"};

struct folder {
    char path[SPLIT_PATH_BYTES]; /* of the split */
    struct listing classes, files;
    size_t *first; /* a class's first file; one more at the end */
    uint8_t *bytes;
    size_t capacity;
};

/* The end of a path, made fit to print. */
static const char *show(char text[SHOWN_BYTES], const char *path)
{
    const size_t length = strlen(path), most = 3 * SHOWN_CHARACTERS;
    const size_t cut = length > most ? length - most : 0;
    text_show(text, SHOWN_BYTES, path + cut, length - cut, most);
    return text;
}

/* ---- listing ---- */

static void class_path(char path[DATA_PATH_BYTES], const struct folder *folder, size_t class)
{
    snprintf(path, DATA_PATH_BYTES, "%s/%.255s", folder->path, listing_name(&folder->classes, class));
}

static enum status folder_list_classes(struct folder *folder, const struct job *job, enum dataset_split split,
                                       struct error *error)
{
    char shown[SHOWN_BYTES];
    snprintf(folder->path, sizeof folder->path, "%s/%s", job->data.path, split_names[split]);
    enum status status = listing_append(&folder->classes, folder->path, LISTING_FOLDERS, error);
    if (status != STATUS_OK)
        return status;
    if (folder->classes.count == 0)
        return error_set(error, STATUS_INVALID, "%s: expected a folder of images for each class, found none",
                         show(shown, folder->path));
    if (folder->classes.count > job->model.classes)
        return error_set(error, STATUS_INVALID, "%s: %zu class folders, where /model/classes is %u",
                         show(shown, folder->path), folder->classes.count, job->model.classes);
    return STATUS_OK;
}

static enum status folder_list_files(struct folder *folder, struct error *error)
{
    char path[DATA_PATH_BYTES], shown[SHOWN_BYTES];
    const size_t classes = folder->classes.count;
    folder->first = calloc(classes + 1, sizeof *folder->first);
    if (folder->first == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu classes", classes);
    for (size_t class = 0; class < classes; class ++) {
        class_path(path, folder, class);
        enum status status = listing_append(&folder->files, path, LISTING_IMAGES, error);
        if (status != STATUS_OK)
            return status;
        folder->first[class + 1] = folder->files.count;
        if (folder->files.count == folder->first[class])
            return error_set(error, STATUS_INVALID, "%s: a class folder without a .jpg, .jpeg or .png file",
                             show(shown, path));
    }
    if (folder->files.count > DATASET_SAMPLES_MAX)
        return error_set(error, STATUS_INVALID, "%s: expected at most %d images, found %zu",
                         show(shown, folder->path), DATASET_SAMPLES_MAX, folder->files.count);
    return STATUS_OK;
}

/* A label is the index of its class in the list, so both splits must have the same list. */
static enum status check_same_classes(const struct folder *folder, const struct job *job, struct error *error)
{
    struct folder train = {0};
    char shown[2][SHOWN_BYTES];
    const struct listing *ours = &folder->classes, *theirs = &train.classes;
    enum status status = folder_list_classes(&train, job, DATASET_TRAIN, error);
    for (size_t i = 0; status == STATUS_OK && (i < ours->count || i < theirs->count); i++) {
        const char *left = i < ours->count ? listing_name(ours, i) : "nothing";
        const char *right = i < theirs->count ? listing_name(theirs, i) : "nothing";
        if (i >= ours->count || i >= theirs->count || strcmp(left, right) != 0)
            status = error_set(error, STATUS_INVALID,
                               "%.200s: expected the same class folders in train and test; number %zu is %s "
                               "in train, %s in test",
                               job->data.path, i + 1, show(shown[0], right), show(shown[1], left));
    }
    listing_fini(&train.classes);
    return status;
}

static void folder_close_split(void *state)
{
    struct folder *folder = state;
    if (folder == NULL)
        return;
    listing_fini(&folder->classes);
    listing_fini(&folder->files);
    free(folder->first);
    free(folder->bytes);
    free(folder);
}

static enum status folder_open_split(void **state, uint64_t *count, const struct job *job,
                                     enum dataset_split split, struct error *error)
{
    struct folder *folder = calloc(1, sizeof *folder);
    if (folder == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a dataset");
    enum status status = folder_list_classes(folder, job, split, error);
    if (status == STATUS_NOT_FOUND && split != DATASET_TRAIN)
        status = error_set(error, STATUS_INVALID, "%.300s/%s: no such folder: nothing to evaluate on",
                           job->data.path, split_names[split]);
    if (status == STATUS_OK && split != DATASET_TRAIN)
        status = check_same_classes(folder, job, error);
    if (status == STATUS_OK)
        status = folder_list_files(folder, error);
    if (status != STATUS_OK) {
        folder_close_split(folder);
        return status;
    }
    *count = folder->files.count;
    *state = folder;
    return STATUS_OK;
}

static enum status folder_probe(uint64_t counts[DATASET_SPLITS], const struct job *job, struct error *error)
{
    for (int split = 0; split < DATASET_SPLITS; split++) {
        void *state = NULL;
        char path[DATA_PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", job->data.path, split_names[split]);
        counts[split] = 0;
        if (split == DATASET_EVALUATION && access(path, F_OK) != 0)
            return STATUS_OK; // the one thing that may be absent
        enum status status = folder_open_split(&state, &counts[split], job, split, error);
        folder_close_split(state);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* ---- reading ---- */

static int32_t label_of(const struct folder *folder, size_t index)
{
    size_t low = 0, high = folder->classes.count; // first[low] <= index < first[high]
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (folder->first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return (int32_t)low;
}

/* Whether the error concerns this file alone. Then the file is skipped, as a job may have thousands; other
 * errors, such as those of a failing disk, end the job. */
static bool is_the_file(int errnum)
{
    return errnum == ENOENT || errnum == EACCES || errnum == EPERM || errnum == ELOOP || errnum == ENOTDIR ||
           errnum == ENXIO;
}

static enum status system_refuses(int errnum, const char *path, struct error *error)
{
    enum status status = error_set_errno(error, errnum, "%.300s", path);
    if (!is_the_file(errnum))
        return status;
    return error_set(error, STATUS_CORRUPT, "%.100s", strerrordesc_np(errnum));
}

static enum status folder_make_room(struct folder *folder, size_t bytes, struct error *error)
{
    if (bytes <= folder->capacity)
        return STATUS_OK;
    uint8_t *grown = realloc(folder->bytes, bytes);
    if (grown == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an image file of %zu bytes", bytes);
    folder->bytes = grown;
    folder->capacity = bytes;
    return STATUS_OK;
}

static enum status read_open_file(struct folder *folder, int fd, const char *path, size_t *bytes,
                                  struct error *error)
{
    struct stat about;
    if (fstat(fd, &about) != 0)
        return system_refuses(errno, path, error);
    if (!S_ISREG(about.st_mode) || about.st_size > FILE_BYTES_MAX)
        return error_set(error, STATUS_CORRUPT, "expected a regular file of at most %d bytes",
                         FILE_BYTES_MAX);
    enum status status = folder_make_room(folder, (size_t)about.st_size, error);
    if (status != STATUS_OK)
        return status;
    for (*bytes = 0; *bytes < (size_t)about.st_size;) {
        ssize_t n = read(fd, folder->bytes + *bytes, (size_t)about.st_size - *bytes);
        if (n == 0)
            break;
        if (n > 0)
            *bytes += (size_t)n;
        else if (errno != EINTR)
            return system_refuses(errno, path, error);
    }
    return STATUS_OK;
}

static enum status folder_read_file(struct folder *folder, const char *path, size_t *bytes,
                                    struct error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not hold us up
    if (fd < 0)
        return system_refuses(errno, path, error);
    enum status status = read_open_file(folder, fd, path, bytes, error);
    close(fd);
    return status;
}

static enum status folder_read_sample(void *state, uint64_t index, struct image *image, int32_t *label,
                                      struct error *error)
{
    struct folder *folder = state;
    char path[DATA_PATH_BYTES], shown[SHOWN_BYTES];
    struct error reason = {0};
    size_t bytes = 0, used;
    *label = label_of(folder, index);
    class_path(path, folder, (size_t)*label);
    used = strlen(path);
    snprintf(path + used, sizeof path - used, "/%s", listing_name(&folder->files, index));
    enum status status = folder_read_file(folder, path, &bytes, &reason);
    if (status == STATUS_OK)
        status = image_decode(image, folder->bytes, bytes, &reason);
    if (status == STATUS_CORRUPT)
        return error_set(error, status, "%s cannot be decoded (%.100s)", show(shown, path), reason.text);
    if (status != STATUS_OK)
        return error_set(error, status, "%s", reason.text);
    return STATUS_OK;
}

const struct dataset_reader dataset_folder = {.probe = folder_probe,
                                              .open = folder_open_split,
                                              .read = folder_read_sample,
                                              .close = folder_close_split};
