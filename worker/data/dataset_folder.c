/* Reads folders of JPEG and PNG files, one folder for each class. The names are listed once, sorted by their
 * bytes: one order on every machine and in every locale. The loader's thread reads and decodes a file each
 * time a batch needs it. */
#include "kernels/base/file.h"
#include "kernels/base/text.h"
#include "worker/data/dataset_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FILE_BYTES_MAX = 256 << 20, /* of a compressed image */
    SPLIT_PATH_BYTES = JOB_PATH_BYTES + 8,
    SHOWN_BYTES = 320, /* of a path in a message */
    SHOWN_CHARACTERS = 70
};

static const char *const split_names[] = {"train", "test"};

struct names {
    struct dirent **entries; /* (count) each malloc'ed */
    size_t count;
};

struct sample {
    struct dirent *file; /* malloc'ed */
    int32_t label;
};

struct folder {
    char path[SPLIT_PATH_BYTES]; /* of the split */
    struct names classes;
    struct sample *samples; /* (count) */
    size_t count;
    uint8_t *bytes; /* of the file that was read last */
    size_t capacity;
};

/* The end of a path, made fit to print. */
static const char *folder_show(char text[SHOWN_BYTES], const char *path)
{
    const size_t length = strlen(path), most = 3 * SHOWN_CHARACTERS;
    const size_t cut = length > most ? length - most : 0;
    text_show(text, SHOWN_BYTES, path + cut, length - cut, most);
    return text;
}

/* ---- listing ---- */

static int names_compare(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int names_take_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static bool has_image_ending(const char *name)
{
    static const char *const endings[] = {".jpg", ".jpeg", ".png"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof endings / sizeof *endings && dot != NULL; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

/* An entry that cannot be examined counts as no folder; reading it as an image will name it. */
static bool is_folder(const char *path, const struct dirent *entry)
{
    char whole[DATA_PATH_BYTES];
    struct stat about;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    snprintf(whole, sizeof whole, "%s/%s", path, entry->d_name);
    return stat(whole, &about) == 0 && S_ISDIR(about.st_mode);
}

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->entries[i]);
    free(names->entries);
    *names = (struct names){0};
}

/* The folders in `path`, or else the images: what is no folder and has the ending of one. A symbolic link
 * counts as its target. */
static enum status names_read(struct names *names, const char *path, bool folders, struct error *error)
{
    *names = (struct names){0};
    const int found = scandir(path, &names->entries, names_take_visible, names_compare);
    if (found < 0)
        return error_set_errno(error, errno, "%.300s", path);
    for (int i = 0; i < found; i++) {
        struct dirent *entry = names->entries[i];
        if (folders ? is_folder(path, entry) : has_image_ending(entry->d_name) && !is_folder(path, entry))
            names->entries[names->count++] = entry;
        else
            free(entry);
    }
    return STATUS_OK;
}

static enum status folder_list_classes(struct names *classes, const char *path, const struct job *job,
                                       struct error *error)
{
    char shown[SHOWN_BYTES];
    enum status status = names_read(classes, path, true, error);
    if (status != STATUS_OK)
        return status;
    if (classes->count == 0)
        return error_set(error, STATUS_INVALID, "%s: expected a folder of images for each class, found none",
                         folder_show(shown, path));
    if (classes->count > job->model.classes)
        return error_set(error, STATUS_INVALID, "%s: %zu class folders, where /model/classes is %u",
                         folder_show(shown, path), classes->count, job->model.classes);
    return STATUS_OK;
}

static void folder_class_path(char path[DATA_PATH_BYTES], const struct folder *folder, size_t class)
{
    snprintf(path, DATA_PATH_BYTES, "%s/%s", folder->path, folder->classes.entries[class]->d_name);
}

/* Appends the images of a class, of which there must be one. */
static enum status folder_list_class(struct folder *folder, size_t class, struct error *error)
{
    char path[DATA_PATH_BYTES], shown[SHOWN_BYTES];
    struct names files;
    folder_class_path(path, folder, class);
    enum status status = names_read(&files, path, false, error);
    if (status == STATUS_OK && files.count == 0)
        status = error_set(error, STATUS_INVALID, "%s: a class folder without a .jpg, .jpeg or .png file",
                           folder_show(shown, path));
    struct sample *grown = reallocarray(folder->samples, folder->count + files.count + 1, sizeof *grown);
    if (grown == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a list of files");
    else
        folder->samples = grown;
    for (size_t i = 0; i < files.count && status == STATUS_OK; i++) {
        folder->samples[folder->count++] = (struct sample){files.entries[i], (int32_t) class};
        files.entries[i] = NULL;
    }
    names_free(&files);
    return status;
}

/* A label is the index of its class in the list, so both splits must have the same list. */
static enum status folder_check_classes(const struct folder *folder, const struct job *job,
                                        struct error *error)
{
    char path[SPLIT_PATH_BYTES], shown[2][SHOWN_BYTES];
    const struct names *ours = &folder->classes;
    struct names theirs;
    snprintf(path, sizeof path, "%s/%s", job->data.path, split_names[DATASET_TRAIN]);
    enum status status = folder_list_classes(&theirs, path, job, error);
    for (size_t i = 0; status == STATUS_OK && (i < ours->count || i < theirs.count); i++) {
        const char *left = i < ours->count ? ours->entries[i]->d_name : "nothing";
        const char *right = i < theirs.count ? theirs.entries[i]->d_name : "nothing";
        if (i >= ours->count || i >= theirs.count || strcmp(left, right) != 0)
            status =
                error_set(error, STATUS_INVALID,
                          "%.200s: expected the same class folders in train and test; number %zu is %s "
                          "in train, %s in test",
                          job->data.path, i + 1, folder_show(shown[0], right), folder_show(shown[1], left));
    }
    names_free(&theirs);
    return status;
}

void folder_free(struct folder *folder)
{
    if (folder == NULL)
        return;
    names_free(&folder->classes);
    for (size_t i = 0; i < folder->count; i++)
        free(folder->samples[i].file);
    free(folder->samples);
    free(folder->bytes);
    free(folder);
}

enum status dataset_folder(struct dataset *dataset, const struct job *job, enum dataset_split split,
                           bool probe, struct error *error)
{
    char shown[SHOWN_BYTES];
    struct folder *folder = calloc(1, sizeof *folder);
    dataset->folder = folder;
    if (folder == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a dataset");
    snprintf(folder->path, sizeof folder->path, "%s/%s", job->data.path, split_names[split]);
    if (split == DATASET_EVALUATION && access(folder->path, F_OK) != 0)
        return probe ? STATUS_OK
                     : error_set(error, STATUS_INVALID, "%.300s: no such folder: nothing to evaluate on",
                                 folder->path);
    enum status status = folder_list_classes(&folder->classes, folder->path, job, error);
    if (status == STATUS_OK && split == DATASET_EVALUATION)
        status = folder_check_classes(folder, job, error);
    for (size_t class = 0; class < folder->classes.count && status == STATUS_OK; class ++)
        status = folder_list_class(folder, class, error);
    if (status == STATUS_OK && folder->count > DATASET_SAMPLES_MAX)
        status = error_set(error, STATUS_INVALID, "%s: expected at most %d images, found %zu",
                           folder_show(shown, folder->path), DATASET_SAMPLES_MAX, folder->count);
    dataset->count = folder->count;
    return status;
}

/* ---- reading ---- */

/* Whether the error concerns this file alone (0: it is no regular file). Then the file is skipped, as a job
 * may have thousands; other errors, such as those of a failing disk, end the job. */
static bool is_the_file(int errnum)
{
    return errnum == 0 || errnum == ENOENT || errnum == EACCES || errnum == EPERM || errnum == ELOOP ||
           errnum == ENOTDIR || errnum == ENXIO;
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

static enum status folder_read_file(struct folder *folder, const char *path, size_t *bytes,
                                    struct error *error)
{
    uint64_t size;
    int fd;
    errno = 0;
    enum status status = file_open(&fd, &size, path_of(path), error);
    if (status != STATUS_OK && !is_the_file(errno))
        return status;
    if (status != STATUS_OK && errno != 0)
        return error_set(error, STATUS_CORRUPT, "%.100s", strerrordesc_np(errno));
    if (status != STATUS_OK || size > FILE_BYTES_MAX)
        status =
            error_set(error, STATUS_CORRUPT, "expected a regular file of at most %d bytes", FILE_BYTES_MAX);
    if (status == STATUS_OK)
        status = folder_make_room(folder, (size_t)size, error);
    const ssize_t read = status == STATUS_OK ? file_read_at(fd, folder->bytes, (size_t)size, 0) : 0;
    if (read < 0)
        status = error_set_errno(error, errno, "%.300s", path);
    *bytes = (size_t)read;
    if (fd >= 0)
        close(fd);
    return status;
}

enum status folder_read(struct folder *folder, uint64_t index, struct image *image, int32_t *label,
                        struct error *error)
{
    const struct sample *sample = &folder->samples[index];
    char path[DATA_PATH_BYTES], shown[SHOWN_BYTES];
    struct error reason = {0};
    size_t bytes = 0;
    *label = sample->label;
    folder_class_path(path, folder, (size_t)sample->label);
    const size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "/%s", sample->file->d_name);
    enum status status = folder_read_file(folder, path, &bytes, &reason);
    if (status == STATUS_OK)
        status = image_decode(image, folder->bytes, bytes, &reason);
    if (status == STATUS_CORRUPT)
        return error_set(error, status, "%s cannot be decoded (%.100s)", folder_show(shown, path),
                         reason.text);
    return status == STATUS_OK ? STATUS_OK : error_set(error, status, "%s", reason.text);
}
