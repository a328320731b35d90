/* Opens a job's data by its kind, applies /data/limit, and reads samples.
 *
 *     idx      the MNIST family: a header of big-endian words, then bytes
 *     cifar    records of one label (CIFAR-100: a coarse one, then the fine one) and 32 x 32 pixels of red,
 *              then green, then blue
 *     folder   JPEG and PNG files, one folder for each class
 *
 * The process that opens a dataset reads the files of idx and cifar whole, once. The names of a folder are
 * listed once, sorted by their bytes: one order on every machine and in every locale. The loader's thread
 * decodes a file each time a batch needs it. */
#include "worker/data/dataset.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

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

/* ---- a file of idx or cifar, read from its beginning to its end: plain, or packed by gzip ---- */

enum {
    DATA_PATH_BYTES = 2048,  /* a job's path, two folders and a file's name */
    DATA_PACKING_MAX = 1040, /* bytes that one byte of a gzip file can inflate to: deflate reaches 1,032 */
    PASS_BYTES_MAX = 1 << 30
};

struct data_file {
    char path[DATA_PATH_BYTES];
    uint64_t size; /* on the disk, in bytes */
    uint64_t at;   /* of the contents: where the next read begins */
    bool packed;   /* by its contents, whatever its name */
    gzFile stream; /* NULL: not open */
};

static const char *data_file_unit(const struct data_file *file)
{
    return file->packed ? "inflated offset" : "offset";
}

/* What zlib says of its last call, which left `errnum` in errno. zlib keeps an error, and refuses later calls
 * with it, but does not keep errno. */
static enum status data_file_status(const struct data_file *file, int errnum, struct error *error)
{
    int code;
    gzerror(file->stream, &code);
    if (code == Z_OK)
        return STATUS_OK;
    if (code == Z_ERRNO)
        return error_set_errno(error, errnum, "reading %.300s at %s %llu", file->path, data_file_unit(file),
                               (unsigned long long)file->at);
    if (code == Z_MEM_ERROR)
        return error_set(error, STATUS_NO_MEMORY, "no memory to read %.300s", file->path);
    return error_set(error, STATUS_CORRUPT, "%.300s: packed data %s behind inflated offset %llu", file->path,
                     code == Z_BUF_ERROR ? "cut off" : "damaged", (unsigned long long)file->at);
}

/* Also after a failure, and where all is zero. */
static void data_file_close(struct data_file *file)
{
    if (file->stream != NULL)
        gzclose_r(file->stream);
    file->stream = NULL;
}

/* Opens FOLDER/NAME or, where `gz` is true and that file does not exist, FOLDER/NAME.gz. */
static enum status data_file_open(struct data_file *file, const char *folder, const char *name, bool gz,
                                  struct error *error)
{
    int fd;
    *file = (struct data_file){0};
    snprintf(file->path, sizeof file->path, "%s/%s", folder, name);
    enum status status = file_open(&fd, &file->size, path_of(file->path), error);
    if (status == STATUS_NOT_FOUND && gz) {
        snprintf(file->path, sizeof file->path, "%s/%s.gz", folder, name);
        status = file_open(&fd, &file->size, path_of(file->path), error);
        if (status == STATUS_NOT_FOUND)
            error_set(error, status, "%.300s/%.60s: no such file, nor one with .gz behind its name", folder,
                      name);
    }
    if (status != STATUS_OK)
        return status;
    file->stream = gzdopen(fd, "rb");
    if (file->stream == NULL) {
        close(fd);
        return error_set(error, STATUS_NO_MEMORY, "no memory to read %.300s", file->path);
    }
    errno = 0;
    const bool direct = gzdirect(file->stream) != 0; /* reads the file's beginning */
    status = data_file_status(file, errno, error);
    file->packed = !direct;
    if (status != STATUS_OK)
        data_file_close(file);
    return status;
}

/* Checks from the file's size alone that it holds `bytes` bytes of contents, or could hold them where packed.
 */
static enum status data_file_expect(const struct data_file *file, uint64_t bytes, struct error *error)
{
    if (file->packed && bytes / DATA_PACKING_MAX > file->size)
        return error_set(error, STATUS_CORRUPT,
                         "%.300s: the header announces %llu bytes, more than %llu packed bytes can hold",
                         file->path, (unsigned long long)bytes, (unsigned long long)file->size);
    if (!file->packed && bytes != file->size)
        return error_set(error, STATUS_CORRUPT, "%.300s: %s at offset %llu, expected its end at offset %llu",
                         file->path, file->size < bytes ? "ends" : "goes on",
                         (unsigned long long)(file->size < bytes ? file->size : bytes),
                         (unsigned long long)bytes);
    return STATUS_OK;
}

/* Reads up to `bytes` bytes; *got is 0 only at the end of the contents. */
static enum status data_file_read_some(struct data_file *file, void *to, size_t bytes, size_t *got,
                                       struct error *error)
{
    errno = 0;
    const int n = gzread(file->stream, to, bytes < PASS_BYTES_MAX ? (unsigned)bytes : PASS_BYTES_MAX);
    const int errnum = errno;
    *got = n > 0 ? (size_t)n : 0;
    file->at += *got;
    return n > 0 ? STATUS_OK : data_file_status(file, errnum, error);
}

static enum status data_file_read(struct data_file *file, void *to, size_t bytes, struct error *error)
{
    for (size_t done = 0, got = 0; done < bytes; done += got) {
        enum status status = data_file_read_some(file, (uint8_t *)to + done, bytes - done, &got, error);
        if (status != STATUS_OK)
            return status;
        if (got == 0)
            return error_set(error, STATUS_CORRUPT, "%.300s: ends at %s %llu, expected %llu more bytes",
                             file->path, data_file_unit(file), (unsigned long long)file->at,
                             (unsigned long long)(bytes - done));
    }
    return STATUS_OK;
}

/* Checks that the contents end here, and a packed file's own checksum. Bytes behind a packed file's contents
 * that are not gzip are ignored, as gzip does. */
static enum status data_file_end(struct data_file *file, struct error *error)
{
    const uint64_t end = file->at;
    uint8_t byte;
    size_t got;
    enum status status = data_file_read_some(file, &byte, 1, &got, error);
    if (status == STATUS_OK && got > 0)
        return error_set(error, STATUS_CORRUPT, "%.300s: goes on at %s %llu, where it should end", file->path,
                         data_file_unit(file), (unsigned long long)end);
    return status;
}

/* ---- labels in memory ---- */

static inline uint8_t dataset_label_at(const struct dataset *dataset, uint64_t index)
{
    return dataset->memory[dataset->labels + index * dataset->label_stride];
}

/* Checks the labels of the samples from `first` on, which were read from `file`, where label i is at `offset`
 * + (i - first) * label_stride. STATUS_CORRUPT: one is not below /model/classes. */
static enum status dataset_check_labels(const struct dataset *dataset, uint64_t first,
                                        const struct data_file *file, uint64_t offset, const struct job *job,
                                        struct error *error)
{
    for (uint64_t i = first; i < dataset->count; i++)
        if (dataset_label_at(dataset, i) >= job->model.classes)
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: offset %llu: label %u, where /model/classes is %u", file->path,
                             (unsigned long long)(offset + (i - first) * dataset->label_stride),
                             dataset_label_at(dataset, i), job->model.classes);
    return STATUS_OK;
}

/* ---- idx ---- */

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

static enum status dataset_idx(struct dataset *dataset, const struct job *job, enum dataset_split split,
                               bool probe, struct error *error)
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

/* ---- cifar ---- */

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

static enum status dataset_cifar(struct dataset *dataset, const struct job *job, enum dataset_split split,
                                 bool probe, struct error *error)
{
    const char *folder = job->data.path, *first10 = cifar10.files[0][0], *first100 = cifar100.files[0][0];
    const struct variant *variant = cifar_has(folder, first10) ? &cifar10 : &cifar100;
    enum status status = STATUS_OK;
    if (variant == &cifar100 && !cifar_has(folder, first100))
        return error_set(error, STATUS_NOT_FOUND, "%.300s: neither %s (CIFAR-10) nor %s (CIFAR-100) is there",
                         folder, first10, first100);
    dataset->width = dataset->height = SIDE;
    dataset->channels = CHANNELS;
    dataset->labels = variant->label_bytes - 1;
    dataset->pixels = variant->label_bytes;
    dataset->label_stride = dataset->pixel_stride = variant->label_bytes + PIXELS;
    for (const char *const *name = variant->files[split]; *name != NULL && status == STATUS_OK; name++) {
        const uint64_t first = dataset->count;
        struct data_file file;
        status = data_file_open(&file, folder, *name, false, error);
        if (status == STATUS_OK)
            status = cifar_count(dataset, &file, error);
        if (status == STATUS_OK && !probe)
            status = cifar_read_file(dataset, first, &file, job, error);
        data_file_close(&file);
    }
    return status;
}

/* ---- folder ---- */

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

static enum status dataset_folder(struct dataset *dataset, const struct job *job, enum dataset_split split,
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
    if (status == STATUS_OK && size > folder->capacity) {
        uint8_t *grown = realloc(folder->bytes, size);
        if (grown != NULL) {
            folder->bytes = grown;
            folder->capacity = size;
        } else {
            status =
                error_set(error, STATUS_NO_MEMORY, "no memory for an image file of %zu bytes", (size_t)size);
        }
    }
    const ssize_t read = status == STATUS_OK ? file_read_at(fd, folder->bytes, (size_t)size, 0) : 0;
    if (read < 0)
        status = error_set_errno(error, errno, "%.300s", path);
    *bytes = (size_t)read;
    if (fd >= 0)
        close(fd);
    return status;
}

static enum status folder_read(struct folder *folder, uint64_t index, struct image *image, int32_t *label,
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

/* ---- every kind ---- */

/* Opens a split; with `probe` only its headers and names, for the count. *dataset is all zero before, and
 * freed by the caller, after a failure too. With `probe` held-out data may be absent: the count is 0. */
typedef enum status dataset_opener(struct dataset *dataset, const struct job *job, enum dataset_split split,
                                   bool probe, struct error *error);

/* There is nothing to open: the loader draws the batches of synthetic data (loader.h), and the trainers in
 * Python have the samples of a class, and say their number. */
static enum status dataset_without_files(struct dataset *dataset, const struct job *job,
                                         enum dataset_split split, bool probe, struct error *error)
{
    (void)dataset;
    if (!probe && job->data.kind == JOB_DATA_CLASS)
        return error_set(error, STATUS_INVALID, "/data/kind: the samples are those of %s",
                         job->trainers.class);
    if (!probe && split == DATASET_EVALUATION)
        return error_set(error, STATUS_INVALID, "/data/kind: synthetic data has nothing to evaluate on");
    return STATUS_OK;
}

static dataset_opener *const openers[] = {
    [JOB_DATA_SYNTHETIC] = dataset_without_files,
    [JOB_DATA_IDX] = dataset_idx,
    [JOB_DATA_CIFAR] = dataset_cifar,
    [JOB_DATA_FOLDER] = dataset_folder,
    [JOB_DATA_CLASS] = dataset_without_files,
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
    struct folder *folder = dataset != NULL ? dataset->folder : NULL;
    if (dataset == NULL)
        return;
    if (folder != NULL) {
        names_free(&folder->classes);
        for (size_t i = 0; i < folder->count; i++)
            free(folder->samples[i].file);
        free(folder->samples);
        free(folder->bytes);
        free(folder);
    }
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
