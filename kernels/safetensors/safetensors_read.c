/* Reads safetensors files, on the caller's thread: the frame (length, header, data) and the values. What the
 * header says is read and checked in safetensors_header.c.
 *
 * A file is read and not mapped: one that is cut meanwhile gives an error, not a SIGBUS. */
#include "kernels/safetensors/safetensors_internal.h"

#include "kernels/base/file.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are handed out as they lie in the file");

struct safetensors {
    int fd;
    char *path;
    struct safetensors_header header;
};

/* Checks the length before the header, with `count` bytes in the whole file, of which the first are `begin`.
 */
static enum status read_frame(struct safetensors_reading *reading, const void *begin, uint64_t count)
{
    uint64_t header_bytes;
    if (count < SAFETENSORS_LENGTH_BYTES)
        return safetensors_fail_corrupt(reading, "%" PRIu64 " bytes are too few for a safetensors file",
                                        count);
    memcpy(&header_bytes, begin, SAFETENSORS_LENGTH_BYTES);
    if (header_bytes > SAFETENSORS_HEADER_BYTES_MAX || header_bytes > count - SAFETENSORS_LENGTH_BYTES)
        return safetensors_fail_corrupt(
            reading,
            "a header of %" PRIu64 " bytes, expected at most %d and no more than the %" PRIu64 " that follow",
            header_bytes, SAFETENSORS_HEADER_BYTES_MAX, count - SAFETENSORS_LENGTH_BYTES);
    reading->data_offset = SAFETENSORS_LENGTH_BYTES + header_bytes;
    reading->data_bytes = count - reading->data_offset;
    return STATUS_OK;
}

/* The header's bytes, with a zero behind them. */
static enum status take_header(const struct safetensors_reading *reading, int fd, char *text)
{
    const size_t length = (size_t)reading->data_offset - SAFETENSORS_LENGTH_BYTES;
    text[length] = '\0';
    ssize_t n = file_read_at(fd, text, length, SAFETENSORS_LENGTH_BYTES);
    if (n < 0)
        return error_set_errno(reading->error, errno, "%s: cannot be read", reading->name);
    return (size_t)n == length ? STATUS_OK
                               : safetensors_fail_corrupt(reading, "it was cut short while it was read");
}

/* The whole of a file whose frame was read; takes `fd` over if it succeeds. */
static enum status read_file(struct safetensors **out, const struct safetensors_reading *reading, int fd)
{
    struct safetensors *file = calloc(1, sizeof *file);
    char *text = malloc((size_t)reading->data_offset - SAFETENSORS_LENGTH_BYTES + 1);
    char *path = strdup(reading->name);
    if (file == NULL || text == NULL || path == NULL) {
        free(file);
        free(text);
        free(path);
        return safetensors_fail_no_memory(reading);
    }
    file->path = path;
    file->fd = -1;
    enum status status = take_header(reading, fd, text);
    if (status == STATUS_OK)
        status = safetensors_header_read(&file->header, reading, text);
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
    struct safetensors_reading reading = {.name = path, .error = error};
    uint64_t begin = 0;
    if (file_read_at(fd, &begin, sizeof begin, 0) < 0)
        return error_set_errno(error, errno, "%s: cannot be read", path);
    const enum status status = read_frame(&reading, &begin, count);
    return status == STATUS_OK ? read_file(out, &reading, fd) : status;
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
    safetensors_header_free(&file->header);
    free(file->path);
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
    return file->header.count;
}

const struct safetensors_entry *safetensors_at(const struct safetensors *file, size_t index)
{
    assert(index < file->header.count);
    return &file->header.entries[index];
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name)
{
    return safetensors_header_find(&file->header, name);
}
