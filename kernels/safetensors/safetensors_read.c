/* Reads safetensors files, on the caller's thread.
 *
 * A file passes four checks: the frame (length, header, data), the header's text (safetensors_header.c), each
 * entry by itself, and all entries together, sorted by offset, as one unbroken row over the data. No offset
 * is used before it is known to be within the data. Names and dtypes point into cJSON's tree, which lives as
 * long as the file is open.
 *
 * A file is read and not mapped: one that is cut meanwhile gives an error, not a SIGBUS. */
#include "kernels/safetensors/safetensors_internal.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are handed out as they lie in the file");

struct safetensors {
    int fd;
    char *path;
    cJSON *header;
    struct safetensors_entry *entries; /* in order of their offsets */
    size_t count;
    const struct safetensors_entry **by_name;
};

/* One file while it is read. */
struct reading {
    const char *name;
    uint64_t data_offset; /* where the data begin: behind the header */
    uint64_t data_bytes;
    struct error *error;
};

/* ---- failures ---- */

__attribute__((format(printf, 2, 3))) static enum status fail_corrupt(const struct reading *reading,
                                                                      const char *format, ...)
{
    char text[320];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return error_set(reading->error, STATUS_CORRUPT, "%s: %s", reading->name, text);
}

__attribute__((format(printf, 3, 4))) static enum status
fail_tensor(const struct reading *reading, const char *name, const char *format, ...)
{
    char text[160], shown[SAFETENSORS_SHOWN_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return fail_corrupt(reading, "tensor \"%s\": %s", safetensors_show(shown, name), text);
}

static enum status fail_no_memory(const struct reading *reading)
{
    return error_set(reading->error, STATUS_NO_MEMORY, "%s: no memory for its header", reading->name);
}

/* ---- one entry ---- */

/* The elements of a JSON array of integers, at most `max`. They are exact: safetensors_check_text saw to it.
 */
static bool read_integers(const cJSON *array, uint64_t *values, uint32_t max, uint32_t *count)
{
    const cJSON *item;
    *count = 0;
    if (!cJSON_IsArray(array))
        return false;
    cJSON_ArrayForEach(item, array)
    {
        if (*count == max || !cJSON_IsNumber(item))
            return false;
        values[(*count)++] = (uint64_t)item->valuedouble;
    }
    return true;
}

static enum status read_dtype(const struct reading *reading, struct safetensors_entry *entry,
                              const cJSON *item, const struct safetensors_format **format)
{
    char shown[SAFETENSORS_SHOWN_BYTES];
    if (!cJSON_IsString(item))
        return fail_tensor(reading, entry->name, "its dtype is no string");
    *format = safetensors_format_find(item->valuestring);
    if (*format == NULL)
        return fail_tensor(reading, entry->name, "there is no dtype \"%s\"",
                           safetensors_show(shown, item->valuestring));
    entry->dtype = (*format)->dtype;
    memcpy(entry->dtype_text, (*format)->text, strlen((*format)->text) + 1);
    return STATUS_OK;
}

static enum status read_offsets(const struct reading *reading, struct safetensors_entry *entry,
                                const cJSON *item, const struct safetensors_format *format)
{
    uint64_t offset[2], bytes;
    uint32_t count;
    if (!read_integers(item, offset, 2, &count) || count != 2)
        return fail_tensor(reading, entry->name, "its data_offsets are not two integers");
    if (offset[0] > offset[1] || offset[1] > reading->data_bytes)
        return fail_tensor(reading, entry->name,
                           "its data_offsets are %" PRIu64 " and %" PRIu64
                           ", expected to ascend within %" PRIu64 " bytes of data",
                           offset[0], offset[1], reading->data_bytes);
    if (!safetensors_bytes(format, entry->rank, entry->size, &bytes))
        return fail_tensor(reading, entry->name,
                           "the product of its shape overflows or fills no whole bytes");
    if (offset[1] - offset[0] != bytes)
        return fail_tensor(reading, entry->name,
                           "its data_offsets span %" PRIu64 " bytes, expected %" PRIu64 " by shape and dtype",
                           offset[1] - offset[0], bytes);
    entry->offset = reading->data_offset + offset[0];
    entry->bytes = (size_t)bytes;
    return STATUS_OK;
}

static enum status read_entry(const struct reading *reading, struct safetensors_entry *entry,
                              const cJSON *item)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    const struct safetensors_format *format = NULL;
    entry->name = item->string;
    if (!cJSON_IsObject(item) || cJSON_GetArraySize(item) != 3 || dtype == NULL || shape == NULL ||
        offsets == NULL)
        return fail_tensor(reading, entry->name, "expected an object of dtype, shape and data_offsets");
    enum status status = read_dtype(reading, entry, dtype, &format);
    if (status != STATUS_OK)
        return status;
    if (!read_integers(shape, entry->size, SAFETENSORS_RANK_MAX, &entry->rank))
        return fail_tensor(reading, entry->name, "its shape is not an array of at most %d integers",
                           SAFETENSORS_RANK_MAX);
    return read_offsets(reading, entry, offsets, format);
}

/* ---- all entries ---- */

/* The names of an object's members must differ; `names` is scratch. */
static enum status check_names(const struct reading *reading, const cJSON *object, const char **names)
{
    char shown[SAFETENSORS_SHOWN_BYTES];
    const cJSON *item;
    size_t count = 0;
    cJSON_ArrayForEach(item, object) names[count++] = item->string;
    const char *twice = safetensors_duplicate(names, count);
    if (twice == NULL)
        return STATUS_OK;
    return fail_corrupt(reading, "the name \"%s\" stands twice in its header",
                        safetensors_show(shown, twice));
}

static enum status check_metadata(const struct reading *reading, const cJSON *metadata)
{
    const cJSON *item;
    size_t count = 0;
    if (!cJSON_IsObject(metadata))
        return fail_corrupt(reading, SAFETENSORS_METADATA " is no object");
    cJSON_ArrayForEach(item, metadata)
    {
        if (!cJSON_IsString(item))
            return fail_corrupt(reading, "a value in " SAFETENSORS_METADATA " is no string");
        count++;
    }
    const char **names = malloc((count + 1) * sizeof *names);
    if (names == NULL)
        return fail_no_memory(reading);
    enum status status = check_names(reading, metadata, names);
    free(names);
    return status;
}

/* An empty entry has the offset of the entry behind it. */
static int compare_places(const void *a, const void *b)
{
    const struct safetensors_entry *left = a, *right = b;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

/* Each entry must begin where the one before ends, and the last must end with the file. */
static enum status check_row(const struct reading *reading, const struct safetensors *file)
{
    uint64_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        const uint64_t begin = entry->offset - reading->data_offset;
        if (begin != end)
            return fail_tensor(reading, entry->name,
                               "it begins at byte %" PRIu64 " of the data, expected %" PRIu64
                               ", where the tensor before ends",
                               begin, end);
        end += entry->bytes;
    }
    if (end != reading->data_bytes)
        return fail_corrupt(reading, "its tensors end at byte %" PRIu64 " of %" PRIu64 " bytes of data", end,
                            reading->data_bytes);
    return STATUS_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static enum status read_entries(const struct reading *reading, struct safetensors *file)
{
    size_t members = (size_t)cJSON_GetArraySize(file->header);
    file->entries = calloc(members + 1, sizeof *file->entries);
    file->by_name = calloc(members + 1, sizeof *file->by_name);
    if (file->entries == NULL || file->by_name == NULL)
        return fail_no_memory(reading);
    const cJSON *item;
    enum status status = check_names(reading, file->header, (const char **)file->by_name);
    cJSON_ArrayForEach(item, file->header)
    {
        if (status != STATUS_OK)
            return status;
        if (strcmp(item->string, SAFETENSORS_METADATA) == 0)
            status = check_metadata(reading, item);
        else
            status = read_entry(reading, &file->entries[file->count++], item);
    }
    if (status != STATUS_OK)
        return status;
    qsort(file->entries, file->count, sizeof *file->entries, compare_places);
    for (size_t i = 0; i < file->count; i++)
        file->by_name[i] = &file->entries[i];
    qsort(file->by_name, file->count, sizeof *file->by_name, compare_entries);
    return check_row(reading, file);
}

/* ---- the file ---- */

/* Checks the length before the header, with `count` bytes in the whole file, of which the first are `begin`.
 */
static enum status read_frame(struct reading *reading, const void *begin, uint64_t count)
{
    uint64_t header_bytes;
    if (count < SAFETENSORS_LENGTH_BYTES)
        return fail_corrupt(reading, "%" PRIu64 " bytes are too few for a safetensors file", count);
    memcpy(&header_bytes, begin, SAFETENSORS_LENGTH_BYTES);
    if (header_bytes > SAFETENSORS_HEADER_BYTES_MAX || header_bytes > count - SAFETENSORS_LENGTH_BYTES)
        return fail_corrupt(reading,
                            "a header of %" PRIu64 " bytes, expected at most %d and no more than the %" PRIu64
                            " that follow",
                            header_bytes, SAFETENSORS_HEADER_BYTES_MAX, count - SAFETENSORS_LENGTH_BYTES);
    reading->data_offset = SAFETENSORS_LENGTH_BYTES + header_bytes;
    reading->data_bytes = count - reading->data_offset;
    return STATUS_OK;
}

/* `text` is the header with a zero behind it, without which cJSON of this version reads a byte past a text
 * that ends early. */
static enum status read_header(const struct reading *reading, struct safetensors *file, const char *text)
{
    const size_t length = (size_t)reading->data_offset - SAFETENSORS_LENGTH_BYTES;
    size_t at;
    const char *fault = safetensors_check_text(text, length, &at);
    if (fault != NULL)
        return fail_corrupt(reading, "byte %zu of its header: %s", at, fault);
    errno = 0; // all that tells a want of memory from bad text
    file->header = cJSON_ParseWithLengthOpts(text, length + 1, NULL, 1);
    if (file->header == NULL)
        return errno == ENOMEM ? fail_no_memory(reading)
                               : fail_corrupt(reading, "its header is no JSON object");
    return read_entries(reading, file);
}

/* The header's bytes, with a zero behind them. */
static enum status take_header(const struct reading *reading, int fd, char *text)
{
    const size_t length = (size_t)reading->data_offset - SAFETENSORS_LENGTH_BYTES;
    text[length] = '\0';
    ssize_t n = file_read_at(fd, text, length, SAFETENSORS_LENGTH_BYTES);
    if (n < 0)
        return error_set_errno(reading->error, errno, "%s: cannot be read", reading->name);
    return (size_t)n == length ? STATUS_OK : fail_corrupt(reading, "it was cut short while it was read");
}

/* The whole of a file whose frame was read; takes `fd` over if it succeeds. */
static enum status read_file(struct safetensors **out, const struct reading *reading, int fd)
{
    struct safetensors *file = calloc(1, sizeof *file);
    char *text = malloc((size_t)reading->data_offset - SAFETENSORS_LENGTH_BYTES + 1);
    enum status status = file == NULL || text == NULL ? fail_no_memory(reading) : STATUS_OK;
    if (file != NULL)
        file->fd = -1;
    if (status == STATUS_OK)
        status = take_header(reading, fd, text);
    if (status == STATUS_OK)
        status = read_header(reading, file, text);
    free(text);
    if (status != STATUS_OK) {
        safetensors_close(file);
        return status;
    }
    file->fd = fd;
    *out = file;
    return STATUS_OK;
}

static enum status open_at(struct safetensors **out, int fd, uint64_t count, const char *path,
                           struct error *error)
{
    struct reading reading = {.name = path, .error = error};
    uint64_t begin = 0;
    if (file_read_at(fd, &begin, sizeof begin, 0) < 0)
        return error_set_errno(error, errno, "%s: cannot be read", path);
    char *copy = strdup(path);
    enum status status = copy == NULL ? fail_no_memory(&reading) : read_frame(&reading, &begin, count);
    if (status == STATUS_OK)
        status = read_file(out, &reading, fd);
    if (status == STATUS_OK)
        (*out)->path = copy;
    else
        free(copy);
    return status;
}

enum status safetensors_open(struct safetensors **out, const char *path, struct error *error)
{
    uint64_t count;
    int fd;
    *out = NULL;
    enum status status = file_open(&fd, &count, path, error);
    if (status != STATUS_OK)
        return status;
    status = open_at(out, fd, count, path, error);
    if (status != STATUS_OK)
        close(fd);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    cJSON_Delete(file->header);
    free(file->path);
    free(file->entries);
    free(file->by_name);
    free(file);
}

enum status safetensors_read(const struct safetensors *file, const struct safetensors_entry *entry,
                             void *values, struct error *error)
{
    char shown[SAFETENSORS_SHOWN_BYTES];
    if (entry->bytes == 0)
        return STATUS_OK;
    ssize_t n = file_read_at(file->fd, values, entry->bytes, entry->offset);
    if (n < 0)
        return error_set_errno(error, errno, "%s: cannot be read", file->path);
    if ((size_t)n == entry->bytes)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT, "%s: it ends within tensor \"%s\": it was cut short meanwhile",
                     file->path, safetensors_show(shown, entry->name));
}

size_t safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct safetensors_entry *safetensors_at(const struct safetensors *file, size_t index)
{
    assert(index < file->count);
    return &file->entries[index];
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name)
{
    struct safetensors_entry key = {.name = name};
    const struct safetensors_entry *pointer = &key;
    const struct safetensors_entry **found =
        bsearch(&pointer, file->by_name, file->count, sizeof *file->by_name, compare_entries);
    return found == NULL ? NULL : *found;
}
