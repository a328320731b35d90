/* Reads safetensors files, and formats their header, on the caller's thread.
 *
 * A header passes three checks: its text; each entry by itself; and all entries together, which must cover
 * the data without holes, sorted by offset. No offset is used before it is known to be within the data. A
 * file is read, never mapped: a file that is cut meanwhile gives an error, not a SIGBUS. */
#include "kernels/safetensors/safetensors.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are handed out as they lie in the file");

enum {
    LENGTH_BYTES = 8,
    HEADER_BYTES_MAX = 100000000, /* the format's own limit */
    VALUES_MAX = 1 << 20,         /* JSON values of a header */
    SHOWN_BYTES = 128,
    SHOWN_CHARACTERS = 40
};
static const double integer_max = 9007199254740992.0; /* 2^53: beyond it a double skips integers */

/* ---- the format's dtypes ---- */

/* A dtype's name, and the bits of one value. */
struct dtype_format {
    const char *text;
    uint32_t bits;
};
static const struct dtype_format formats[] = {
    {"F32", 32},        {"F64", 64},    {"I32", 32},    {"I64", 64},    {"BOOL", 8},    {"U8", 8},
    {"I8", 8},          {"U16", 16},    {"I16", 16},    {"F16", 16},    {"BF16", 16},   {"U32", 32},
    {"U64", 64},        {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};

static const struct dtype_format *dtype_find(const char *text)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].text, text) == 0)
            return &formats[i];
    return NULL;
}

/* Bytes of a tensor. False when the product overflows, or is no whole number of bytes. */
static bool tensor_bytes(const struct dtype_format *format, const struct safetensors_entry *entry,
                         uint64_t *bytes)
{
    uint64_t bits = format->bits;
    for (uint32_t i = 0; i < entry->rank; i++)
        if (__builtin_mul_overflow(bits, entry->size[i], &bits))
            return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

/* ---- failures ---- */

static const char *header_show(char shown[SHOWN_BYTES], const char *name)
{
    text_show(shown, SHOWN_BYTES, name, strlen(name), SHOWN_CHARACTERS);
    return shown;
}

/* `tensor`: the name of the tensor at fault; NULL: the file. */
__attribute__((format(printf, 4, 5))) static enum status header_refuse(const struct safetensors *file,
                                                                       const char *tensor,
                                                                       struct error *error,
                                                                       const char *format, ...)
{
    char text[320], shown[SHOWN_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (tensor == NULL)
        return error_set(error, STATUS_CORRUPT, "%s: %s", file->path, text);
    return error_set(error, STATUS_CORRUPT, "%s: tensor \"%s\": %s", file->path, header_show(shown, tensor),
                     text);
}

static enum status header_no_memory(const char *path, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "%s: no memory for its header", path);
}

/* ---- one entry ---- */

/* The elements of a JSON array of integers, at most `max`. */
static bool header_read_integers(const cJSON *array, uint64_t *values, uint32_t max, uint32_t *count)
{
    const cJSON *item;
    *count = 0;
    if (!cJSON_IsArray(array))
        return false;
    cJSON_ArrayForEach(item, array)
    {
        const double value = cJSON_GetNumberValue(item); // NaN where it is no number
        if (*count == max || !(value >= 0 && value <= integer_max) || value != floor(value))
            return false;
        values[(*count)++] = (uint64_t)value;
    }
    return true;
}

static enum status header_read_offsets(const struct safetensors *file, struct safetensors_entry *entry,
                                       const cJSON *item, const struct dtype_format *format,
                                       struct error *error)
{
    uint64_t offset[2], bytes;
    uint32_t count;
    if (!header_read_integers(item, offset, 2, &count) || count != 2)
        return header_refuse(file, entry->name, error, "its data_offsets are not two integers");
    if (offset[0] > offset[1] || offset[1] > file->data_bytes)
        return header_refuse(file, entry->name, error,
                             "its data_offsets are %" PRIu64 " and %" PRIu64
                             ", expected to ascend within %" PRIu64 " bytes of data",
                             offset[0], offset[1], file->data_bytes);
    if (!tensor_bytes(format, entry, &bytes))
        return header_refuse(file, entry->name, error,
                             "the product of its shape overflows or fills no whole bytes");
    if (offset[1] - offset[0] != bytes)
        return header_refuse(file, entry->name, error,
                             "its data_offsets span %" PRIu64 " bytes, expected %" PRIu64
                             " by shape and dtype",
                             offset[1] - offset[0], bytes);
    entry->offset = file->data + offset[0];
    entry->bytes = (size_t)bytes;
    return STATUS_OK;
}

static enum status header_read_entry(const struct safetensors *file, struct safetensors_entry *entry,
                                     const cJSON *item, struct error *error)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    char shown[SHOWN_BYTES];
    entry->name = item->string;
    if (!cJSON_IsObject(item) || cJSON_GetArraySize(item) != 3 || dtype == NULL || shape == NULL ||
        offsets == NULL)
        return header_refuse(file, entry->name, error, "expected an object of dtype, shape and data_offsets");
    if (!cJSON_IsString(dtype))
        return header_refuse(file, entry->name, error, "its dtype is no string");
    const struct dtype_format *format = dtype_find(dtype->valuestring);
    if (format == NULL)
        return header_refuse(file, entry->name, error, "there is no dtype \"%s\"",
                             header_show(shown, dtype->valuestring));
    entry->dtype = format->text;
    if (!header_read_integers(shape, entry->size, SAFETENSORS_RANK_MAX, &entry->rank))
        return header_refuse(file, entry->name, error, "its shape is not an array of at most %d integers",
                             SAFETENSORS_RANK_MAX);
    return header_read_offsets(file, entry, offsets, format, error);
}

/* ---- all entries ---- */

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

static int compare_names(const void *a, const void *b)
{
    const struct safetensors_entry *left = a, *right = b;
    return strcmp(left->name, right->name);
}

/* Each entry must begin where the one before ends, and the last must end with the file. */
static enum status header_check_row(const struct safetensors *file, struct error *error)
{
    uint64_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        const uint64_t begin = entry->offset - file->data;
        if (begin != end)
            return header_refuse(file, entry->name, error,
                                 "it begins at byte %" PRIu64 " of the data, expected %" PRIu64
                                 ", where the tensor before ends",
                                 begin, end);
        end += entry->bytes;
    }
    if (end != file->data_bytes)
        return header_refuse(file, NULL, error,
                             "its tensors end at byte %" PRIu64 " of %" PRIu64 " bytes of data", end,
                             file->data_bytes);
    return STATUS_OK;
}

static enum status header_check_names(const struct safetensors *file, struct error *error)
{
    char shown[SHOWN_BYTES];
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) == 0)
            return header_refuse(file, NULL, error, "the name \"%s\" stands twice in its header",
                                 header_show(shown, file->entries[i].name));
    return STATUS_OK;
}

static enum status header_read_entries(struct safetensors *file, struct error *error)
{
    const cJSON *item;
    file->entries = calloc((size_t)cJSON_GetArraySize(file->json) + 1, sizeof *file->entries);
    if (file->entries == NULL)
        return header_no_memory(file->path, error);
    cJSON_ArrayForEach(item, file->json)
    {
        if (strcmp(item->string, "__metadata__") == 0)
            continue;
        enum status status = header_read_entry(file, &file->entries[file->count++], item, error);
        if (status != STATUS_OK)
            return status;
    }
    qsort(file->entries, file->count, sizeof *file->entries, compare_places);
    enum status status = header_check_row(file, error);
    qsort(file->entries, file->count, sizeof *file->entries, compare_names);
    return status == STATUS_OK ? header_check_names(file, error) : status;
}

/* ---- the file ---- */

/* Returns a fault of the header's text that cJSON would let pass, in a few words, or NULL. cJSON allocates
 * for every value and ends at a zero. */
static const char *header_check_text(const char *text, size_t length)
{
    size_t values = 1, size;
    for (size_t at = 0; at < length; at += size) {
        size = text_character(text + at, length - at);
        if (size == 0)
            return "its header holds bytes that are not UTF-8";
        if (text[at] == '\0')
            return "its header holds a zero byte";
        values += memchr("{[,", text[at], 3) != NULL;
        if (values > VALUES_MAX)
            return "its header holds too many values";
    }
    return NULL;
}

static enum status safetensors_read_bytes(const struct safetensors *file, const char *tensor, void *to,
                                          size_t bytes, uint64_t offset, struct error *error)
{
    const ssize_t n = file_read_at(file->fd, to, bytes, offset);
    if (n < 0)
        return error_set_errno(error, errno, "%s: cannot be read", file->path);
    return (size_t)n == bytes ? STATUS_OK
                              : header_refuse(file, tensor, error, "it was cut short while it was read");
}

/* Reads the JSON of `length` bytes. */
static enum status header_read_json(struct safetensors *file, size_t length, struct error *error)
{
    char *text = calloc(1, length + 1);
    if (text == NULL)
        return header_no_memory(file->path, error);
    enum status status = safetensors_read_bytes(file, NULL, text, length, LENGTH_BYTES, error);
    const char *fault = status == STATUS_OK ? header_check_text(text, length) : NULL;
    if (fault != NULL)
        status = header_refuse(file, NULL, error, "%s", fault);
    errno = 0; // all that tells a want of memory from bad text
    // With the zero behind it: without it, this version of cJSON reads a byte past a text that ends early.
    if (status == STATUS_OK)
        file->json = cJSON_ParseWithLengthOpts(text, length + 1, NULL, 1);
    if (status == STATUS_OK && file->json == NULL && errno == ENOMEM)
        status = header_no_memory(file->path, error);
    else if (status == STATUS_OK && !cJSON_IsObject(file->json))
        status = header_refuse(file, NULL, error, "its header is no JSON object");
    free(text);
    return status;
}

/* Reads the header of a file of `bytes` bytes. */
static enum status header_read(struct safetensors *file, uint64_t bytes, struct error *error)
{
    uint64_t length;
    if (bytes < LENGTH_BYTES)
        return header_refuse(file, NULL, error, "%" PRIu64 " bytes are too few for a safetensors file",
                             bytes);
    enum status status = safetensors_read_bytes(file, NULL, &length, sizeof length, 0, error);
    if (status != STATUS_OK)
        return status;
    if (length > HEADER_BYTES_MAX || length > bytes - LENGTH_BYTES)
        return header_refuse(file, NULL, error,
                             "a header of %" PRIu64
                             " bytes, expected at most %d and no more than the %" PRIu64 " that follow",
                             length, HEADER_BYTES_MAX, bytes - LENGTH_BYTES);
    file->data = LENGTH_BYTES + length;
    file->data_bytes = bytes - file->data;
    status = header_read_json(file, (size_t)length, error);
    return status == STATUS_OK ? header_read_entries(file, error) : status;
}

enum status safetensors_open(struct safetensors **out, struct path path, struct error *error)
{
    struct safetensors *file = calloc(1, sizeof *file);
    uint64_t bytes;
    *out = NULL;
    if (file == NULL || (file->path = strdup(path.text)) == NULL) {
        free(file);
        return header_no_memory(path.text, error);
    }
    enum status status = file_open(&file->fd, &bytes, path, error);
    if (status == STATUS_OK)
        status = header_read(file, bytes, error);
    if (status == STATUS_OK)
        *out = file;
    else
        safetensors_close(file);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    cJSON_Delete(file->json);
    free(file->entries);
    free(file->path);
    free(file);
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name)
{
    const struct safetensors_entry key = {.name = name};
    return bsearch(&key, file->entries, file->count, sizeof *file->entries, compare_names);
}

enum status safetensors_read(const struct safetensors *file, const struct safetensors_entry *entry,
                             void *values, struct error *error)
{
    return safetensors_read_bytes(file, entry->name, values, entry->bytes, entry->offset, error);
}

/* ---- writing: a file's length and header, in memory ---- */

static void format_string(FILE *out, const char *text)
{
    char piece[TEXT_ESCAPED_BYTES];
    putc('"', out);
    for (; *text != '\0'; text++)
        fputs(text_escape(piece, *text), out);
    putc('"', out);
}

static void format_entry(FILE *out, const struct safetensors_entry *entry, uint64_t offset)
{
    format_string(out, entry->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", entry->dtype);
    for (uint32_t i = 0; i < entry->rank; i++)
        fprintf(out, "%s%" PRIu64, i == 0 ? "" : ",", entry->size[i]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + entry->bytes);
}

char *safetensors_format(const struct safetensors_entry *entries, size_t count, size_t *bytes)
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
        format_entry(out, &entries[i], offset);
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
