/* Reads plain and packed files from beginning to end; zlib tells the two apart. The thread that opens a
 * dataset. */
#include "worker/data/data_file.h"

#include "kernels/base/file.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <zlib.h>

enum { PASS_BYTES_MAX = 1 << 30 };

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

void data_file_close(struct data_file *file)
{
    if (file->stream != NULL)
        gzclose_r(file->stream);
    file->stream = NULL;
}

enum status data_file_open(struct data_file *file, const char *folder, const char *name, bool gz,
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

enum status data_file_read(struct data_file *file, void *to, size_t bytes, struct error *error)
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

enum status data_file_end(struct data_file *file, struct error *error)
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
