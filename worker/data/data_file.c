/* Sequential reading of plain and packed files, on the thread that opens a dataset.
 *
 * zlib's own gzread is not used: it takes bytes that are not gzip for contents, and overlooks garbage behind
 * the end. A gzip file may be several members, one behind the other (RFC 1952, 2.2). */
#include "worker/data/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { INPUT_BYTES = 1 << 16, GZIP_WINDOW_BITS = 15 + 16, PASS_BYTES_MAX = 1 << 30 };

struct data_file {
    char path[DATA_PATH_BYTES];
    int fd;
    uint64_t size, at; /* bytes on the disk; of the contents, where the next read begins */
    bool packed, inflating, member_ended;
    z_stream stream;
    uint8_t input[INPUT_BYTES];
};

/* ---- opening ---- */

static enum status data_file_begin_inflating(struct data_file *file, struct error *error)
{
    if (inflateInit2(&file->stream, GZIP_WINDOW_BITS) != Z_OK)
        return error_set(error, STATUS_NO_MEMORY, "no memory to inflate %.300s", file->path);
    file->inflating = true;
    return STATUS_OK;
}

static enum status data_file_open_path(struct data_file *file, struct error *error)
{
    struct stat about;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not hold us up
    if (file->fd < 0)
        return error_set_errno(error, errno, "%.300s", file->path);
    if (fstat(file->fd, &about) != 0)
        return error_set_errno(error, errno, "%.300s", file->path);
    if (!S_ISREG(about.st_mode))
        return error_set(error, STATUS_INVALID, "%.300s: expected a regular file", file->path);
    file->size = (uint64_t)about.st_size;
    return file->packed ? data_file_begin_inflating(file, error) : STATUS_OK;
}

enum status data_file_open(struct data_file **out, const char *folder, const char *name, bool packed,
                           struct error *error)
{
    struct data_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to read %.300s/%.60s", folder, name);
    file->fd = -1;
    snprintf(file->path, sizeof file->path, "%s/%s", folder, name);
    enum status status = data_file_open_path(file, error);
    if (status == STATUS_NOT_FOUND && packed) {
        file->packed = true;
        snprintf(file->path, sizeof file->path, "%s/%s.gz", folder, name);
        status = data_file_open_path(file, error);
        if (status == STATUS_NOT_FOUND)
            error_set(error, status, "%.300s/%.60s: no such file, nor one with .gz behind its name", folder,
                      name);
    }
    if (status != STATUS_OK) {
        data_file_close(file);
        return status;
    }
    *out = file;
    return STATUS_OK;
}

void data_file_close(struct data_file *file)
{
    if (file == NULL)
        return;
    if (file->inflating)
        inflateEnd(&file->stream);
    if (file->fd >= 0)
        close(file->fd);
    free(file);
}

const char *data_file_path(const struct data_file *file)
{
    return file->path;
}

uint64_t data_file_size(const struct data_file *file)
{
    return file->size;
}

enum status data_file_expect(const struct data_file *file, uint64_t bytes, struct error *error)
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

/* ---- reading ---- */

static const char *data_file_unit(const struct data_file *file)
{
    return file->packed ? "inflated offset" : "offset";
}

static enum status data_file_ends_early(const struct data_file *file, uint64_t wanted, struct error *error)
{
    return error_set(error, STATUS_CORRUPT, "%.300s: ends at %s %llu, expected %llu more bytes", file->path,
                     data_file_unit(file), (unsigned long long)file->at, (unsigned long long)wanted);
}

/* Reads up to `bytes` bytes from the disk; *got is 0 only at the end of the file. */
static enum status data_file_read_disk(struct data_file *file, void *to, size_t bytes, size_t *got,
                                       struct error *error)
{
    ssize_t n;
    do
        n = read(file->fd, to, bytes < PASS_BYTES_MAX ? bytes : PASS_BYTES_MAX);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return error_set_errno(error, errno, "reading %.300s at %s %llu", file->path, data_file_unit(file),
                               (unsigned long long)file->at);
    *got = (size_t)n;
    return STATUS_OK;
}

/* Reads packed input from the disk when none is left; at the end of the file none is left afterwards. */
static enum status data_file_refill(struct data_file *file, struct error *error)
{
    if (file->stream.avail_in > 0)
        return STATUS_OK;
    size_t got = 0;
    enum status status = data_file_read_disk(file, file->input, sizeof file->input, &got, error);
    if (status != STATUS_OK)
        return status;
    file->stream.next_in = file->input;
    file->stream.avail_in = (uInt)got;
    return STATUS_OK;
}

/* Inflates up to `bytes` bytes of contents; *got is 0 only at their end: the end of a gzip member that
 * nothing follows. */
static enum status data_file_read_packed(struct data_file *file, void *to, size_t bytes, size_t *got,
                                         struct error *error)
{
    z_stream *stream = &file->stream;
    const uInt room = (uInt)(bytes < PASS_BYTES_MAX ? bytes : PASS_BYTES_MAX);
    stream->next_out = to;
    stream->avail_out = room;
    while (stream->avail_out == room) {
        enum status status = data_file_refill(file, error);
        if (status != STATUS_OK)
            return status;
        if (stream->avail_in == 0 && file->member_ended)
            break;
        if (stream->avail_in == 0)
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: cut off within the packed data, at inflated offset %llu", file->path,
                             (unsigned long long)file->at);
        if (file->member_ended)
            inflateReset(stream);
        int result = inflate(stream, Z_NO_FLUSH);
        if (result != Z_OK && result != Z_STREAM_END)
            return error_set(error, STATUS_CORRUPT, "%.300s: packed data damaged at inflated offset %llu: %s",
                             file->path, (unsigned long long)file->at,
                             stream->msg == NULL ? "no gzip data" : stream->msg);
        file->member_ended = result == Z_STREAM_END;
    }
    *got = room - stream->avail_out;
    return STATUS_OK;
}

static enum status data_file_read_some(struct data_file *file, void *to, size_t bytes, size_t *got,
                                       struct error *error)
{
    enum status status = file->packed ? data_file_read_packed(file, to, bytes, got, error)
                                      : data_file_read_disk(file, to, bytes, got, error);
    if (status == STATUS_OK)
        file->at += *got;
    return status;
}

enum status data_file_read(struct data_file *file, void *to, size_t bytes, struct error *error)
{
    for (size_t done = 0, got = 0; done < bytes; done += got) {
        enum status status = data_file_read_some(file, (uint8_t *)to + done, bytes - done, &got, error);
        if (status != STATUS_OK)
            return status;
        if (got == 0)
            return data_file_ends_early(file, bytes - done, error);
    }
    return STATUS_OK;
}

enum status data_file_end(struct data_file *file, struct error *error)
{
    const uint64_t end = file->at;
    uint8_t byte;
    size_t got = 0;
    enum status status = data_file_read_some(file, &byte, 1, &got, error);
    if (status == STATUS_OK && got > 0)
        return error_set(error, STATUS_CORRUPT, "%.300s: goes on at %s %llu, where it should end", file->path,
                         data_file_unit(file), (unsigned long long)end);
    return status;
}
