/* Writes safetensors files. The header is put together in memory first, because its length comes before it;
 * the values pass through a buffer as large as the largest entry. A reader sees the old file or the new one:
 * the new file gets its name only after it is on the disk. */
#include "kernels/safetensors/safetensors_internal.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const dtype_text[] = {[SAFETENSORS_F32] = "F32",
                                         [SAFETENSORS_F64] = "F64",
                                         [SAFETENSORS_I32] = "I32",
                                         [SAFETENSORS_I64] = "I64"};

/* ---- what may be written ---- */

static bool is_utf8(const char *name)
{
    size_t left = strlen(name);
    while (left > 0) {
        size_t size = text_character(name, left);
        if (size == 0)
            return false;
        name += size;
        left -= size;
    }
    return true;
}

static const char *entry_dtype(const struct safetensors_entry *entry)
{
    return entry->dtype == SAFETENSORS_OTHER ? entry->dtype_text : dtype_text[entry->dtype];
}

static enum status check_entry(const char *path, const struct safetensors_entry *entry, struct error *error)
{
    char shown[SAFETENSORS_SHOWN_BYTES];
    const struct safetensors_format *format = safetensors_format_find(entry_dtype(entry));
    const char *fault = NULL;
    uint64_t bytes = 0;
    if (!is_utf8(entry->name))
        fault = "its name is not UTF-8";
    else if (strcmp(entry->name, SAFETENSORS_METADATA) == 0)
        fault = "the format keeps this name for itself";
    else if (format == NULL)
        fault = "the format knows no such dtype";
    else if (entry->rank > SAFETENSORS_RANK_MAX)
        fault = "it has too many dimensions";
    else if (!safetensors_bytes(format, entry->rank, entry->size, &bytes) || bytes != entry->bytes)
        fault = "shape and dtype do not give its number of bytes";
    if (fault == NULL)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: tensor \"%s\" cannot be written: %s", path,
                     safetensors_show(shown, entry->name), fault);
}

static enum status check_entries(const char *path, const struct safetensors_entry *entries, size_t count,
                                 struct error *error)
{
    char shown[SAFETENSORS_SHOWN_BYTES];
    enum status status = STATUS_OK;
    const char **names = malloc((count + 1) * sizeof *names);
    if (names == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for its header", path);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        status = check_entry(path, &entries[i], error);
        names[i] = entries[i].name;
    }
    const char *twice = status == STATUS_OK ? safetensors_duplicate(names, count) : NULL;
    if (twice != NULL)
        status = error_set(error, STATUS_INVALID, "%s: tensor \"%s\" cannot be written twice", path,
                           safetensors_show(shown, twice));
    free(names);
    return status;
}

/* ---- the header ---- */

static void print_string(FILE *out, const char *text)
{
    putc('"', out);
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20)
            fprintf(out, "\\u%04x", (unsigned)*text);
        else
            fprintf(out, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
    putc('"', out);
}

static void print_entry(FILE *out, const struct safetensors_entry *entry, uint64_t offset)
{
    print_string(out, entry->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", entry_dtype(entry));
    for (uint32_t i = 0; i < entry->rank; i++)
        fprintf(out, "%s%" PRIu64, i == 0 ? "" : ",", entry->size[i]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + entry->bytes);
}

/* The length, the JSON, and the spaces behind it. Returns malloc'ed memory of *bytes, or NULL. */
static char *format_header(const struct safetensors_entry *entries, size_t count, size_t *bytes)
{
    uint64_t offset = 0, length = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL)
        return NULL;
    fwrite(&length, sizeof length, 1, out);
    putc('{', out);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            putc(',', out);
        print_entry(out, &entries[i], offset);
        offset += entries[i].bytes;
    }
    putc('}', out);
    for (long at = ftell(out); at % 8 != 0; at++)
        putc(' ', out);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    length = *bytes - sizeof length;
    memcpy(text, &length, sizeof length);
    return text;
}

/* ---- the file ---- */

/* The file that is being written, and the source of its values. */
struct writing {
    const char *path;
    const struct safetensors_entry *entries;
    size_t count;
    const struct safetensors_stream *stream;
    void *values; /* room for the largest entry */
    const char *header;
    size_t header_bytes;
};

static enum status write_bytes(const struct writing *writing, int fd, const char *path, const void *bytes,
                               size_t count, struct error *error)
{
    if (!file_write(fd, bytes, count))
        return error_set_errno(error, errno, "%s: cannot be written", path);
    if (writing->stream->written != NULL)
        writing->stream->written(writing->stream->observer, bytes, count);
    return STATUS_OK;
}

/* Writes and syncs the new file. An fsync that failed is not tried again: the kernel may have dropped the
 * pages that it could not write. */
static enum status write_file(const struct writing *writing, int fd, const char *path, struct error *error)
{
    const struct safetensors_stream *stream = writing->stream;
    enum status status = write_bytes(writing, fd, path, writing->header, writing->header_bytes, error);
    for (size_t i = 0; i < writing->count && status == STATUS_OK; i++) {
        status = stream->fill(stream->context, i, writing->values, error);
        if (status == STATUS_OK)
            status = write_bytes(writing, fd, path, writing->values, writing->entries[i].bytes, error);
    }
    if (status == STATUS_OK && fsync(fd) != 0)
        status = error_set_errno(error, errno, "%s: cannot be written", path);
    return status;
}

/* The folder in which the path's last part lies. */
static enum status sync_folder_of(const char *path, struct error *error)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        snprintf(folder, sizeof folder, "%.*s", (int)(slash == path ? 1 : slash - path), path);
    return file_sync_folder(folder, error);
}

static enum status replace_file(const struct writing *writing, struct error *error)
{
    const char *path = writing->path;
    char new_path[PATH_MAX];
    int length = snprintf(new_path, sizeof new_path, "%s.tmp", path);
    if (length < 0 || (size_t)length >= sizeof new_path)
        return error_set_errno(error, ENAMETOOLONG, "%.100s...", path);
    int fd = open(new_path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_set_errno(error, errno, "%s: cannot be created", new_path);
    enum status status = write_file(writing, fd, new_path, error);
    if (close(fd) != 0 && status == STATUS_OK)
        status = error_set_errno(error, errno, "%s: cannot be written", new_path);
    if (status == STATUS_OK && rename(new_path, path) != 0)
        status = error_set_errno(error, errno, "%s: cannot be replaced", path);
    if (status != STATUS_OK) {
        unlink(new_path);
        return status;
    }
    return sync_folder_of(path, error);
}

/* The reader's own rules for a header hold for what is written, too. */
static enum status check_header(const struct writing *writing, struct error *error)
{
    size_t at, length = writing->header_bytes - SAFETENSORS_LENGTH_BYTES;
    const char *fault = safetensors_check_text(writing->header + SAFETENSORS_LENGTH_BYTES, length, &at);
    if (length > SAFETENSORS_HEADER_BYTES_MAX)
        fault = "too many bytes";
    if (fault == NULL)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: its header would hold %s", writing->path, fault);
}

enum status safetensors_write(const char *path, const struct safetensors_entry *entries, size_t count,
                              const struct safetensors_stream *stream, struct error *error)
{
    struct writing writing = {.path = path, .entries = entries, .count = count, .stream = stream};
    size_t largest = 0;
    enum status status = check_entries(path, entries, count, error);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        largest = entries[i].bytes > largest ? entries[i].bytes : largest;
    char *header = format_header(entries, count, &writing.header_bytes);
    writing.header = header;
    writing.values = malloc(largest + 1);
    if (header == NULL || writing.values == NULL)
        status =
            error_set(error, STATUS_NO_MEMORY, "%s: no memory for its header and %zu bytes", path, largest);
    if (status == STATUS_OK)
        status = check_header(&writing, error);
    if (status == STATUS_OK)
        status = replace_file(&writing, error);
    free(header);
    free(writing.values);
    return status;
}
