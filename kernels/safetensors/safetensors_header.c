/* The header of a safetensors file: its entries, and every check of them.
 *
 * A header passes three checks: its text (safetensors_grammar.c), each entry by itself, and all entries
 * together, sorted by offset, as one unbroken row over the data. No offset is used before it is known to be
 * within the data. */
#include "kernels/safetensors/safetensors_internal.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- failures ---- */

enum status safetensors_fail_corrupt(const struct safetensors_reading *reading, const char *format, ...)
{
    char text[320];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return error_set(reading->error, STATUS_CORRUPT, "%s: %s", reading->name, text);
}

__attribute__((format(printf, 3, 4))) static enum status
fail_tensor(const struct safetensors_reading *reading, const char *name, const char *format, ...)
{
    char text[160], shown[SAFETENSORS_SHOWN_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return safetensors_fail_corrupt(reading, "tensor \"%s\": %s", safetensors_show(shown, name), text);
}

enum status safetensors_fail_no_memory(const struct safetensors_reading *reading)
{
    return error_set(reading->error, STATUS_NO_MEMORY, "%s: no memory for its header", reading->name);
}

/* ---- one entry ---- */

/* The elements of a JSON array of integers, at most `max`. They are exact: safetensors_check_text has
 * checked that. */
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

static enum status read_dtype(const struct safetensors_reading *reading, struct safetensors_entry *entry,
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

static enum status read_offsets(const struct safetensors_reading *reading, struct safetensors_entry *entry,
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

static enum status read_entry(const struct safetensors_reading *reading, struct safetensors_entry *entry,
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
static enum status check_names(const struct safetensors_reading *reading, const cJSON *object,
                               const char **names)
{
    char shown[SAFETENSORS_SHOWN_BYTES];
    const cJSON *item;
    size_t count = 0;
    cJSON_ArrayForEach(item, object) names[count++] = item->string;
    const char *twice = safetensors_duplicate(names, count);
    if (twice == NULL)
        return STATUS_OK;
    return safetensors_fail_corrupt(reading, "the name \"%s\" stands twice in its header",
                                    safetensors_show(shown, twice));
}

static enum status check_metadata(const struct safetensors_reading *reading, const cJSON *metadata)
{
    const cJSON *item;
    size_t count = 0;
    if (!cJSON_IsObject(metadata))
        return safetensors_fail_corrupt(reading, SAFETENSORS_METADATA " is no object");
    cJSON_ArrayForEach(item, metadata)
    {
        if (!cJSON_IsString(item))
            return safetensors_fail_corrupt(reading, "a value in " SAFETENSORS_METADATA " is no string");
        count++;
    }
    const char **names = malloc((count + 1) * sizeof *names);
    if (names == NULL)
        return safetensors_fail_no_memory(reading);
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
static enum status check_row(const struct safetensors_reading *reading,
                             const struct safetensors_header *header)
{
    uint64_t end = 0;
    for (size_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        const uint64_t begin = entry->offset - reading->data_offset;
        if (begin != end)
            return fail_tensor(reading, entry->name,
                               "it begins at byte %" PRIu64 " of the data, expected %" PRIu64
                               ", where the tensor before ends",
                               begin, end);
        end += entry->bytes;
    }
    if (end != reading->data_bytes)
        return safetensors_fail_corrupt(reading,
                                        "its tensors end at byte %" PRIu64 " of %" PRIu64 " bytes of data",
                                        end, reading->data_bytes);
    return STATUS_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static enum status read_entries(const struct safetensors_reading *reading, struct safetensors_header *header)
{
    size_t members = (size_t)cJSON_GetArraySize(header->json);
    header->entries = calloc(members + 1, sizeof *header->entries);
    header->by_name = calloc(members + 1, sizeof *header->by_name);
    if (header->entries == NULL || header->by_name == NULL)
        return safetensors_fail_no_memory(reading);
    const cJSON *item;
    enum status status = check_names(reading, header->json, (const char **)header->by_name);
    cJSON_ArrayForEach(item, header->json)
    {
        if (status != STATUS_OK)
            return status;
        if (strcmp(item->string, SAFETENSORS_METADATA) == 0)
            status = check_metadata(reading, item);
        else
            status = read_entry(reading, &header->entries[header->count++], item);
    }
    if (status != STATUS_OK)
        return status;
    qsort(header->entries, header->count, sizeof *header->entries, compare_places);
    for (size_t i = 0; i < header->count; i++)
        header->by_name[i] = &header->entries[i];
    qsort(header->by_name, header->count, sizeof *header->by_name, compare_entries);
    return check_row(reading, header);
}

/* ---- the whole header ---- */

enum status safetensors_header_read(struct safetensors_header *header,
                                    const struct safetensors_reading *reading, const char *text)
{
    const size_t length = (size_t)reading->data_offset - SAFETENSORS_LENGTH_BYTES;
    size_t at;
    const char *fault = safetensors_check_text(text, length, &at);
    if (fault != NULL)
        return safetensors_fail_corrupt(reading, "byte %zu of its header: %s", at, fault);
    errno = 0; // all that tells a want of memory from bad text
    header->json = cJSON_ParseWithLengthOpts(text, length + 1, NULL, 1);
    if (header->json == NULL)
        return errno == ENOMEM ? safetensors_fail_no_memory(reading)
                               : safetensors_fail_corrupt(reading, "its header is no JSON object");
    return read_entries(reading, header);
}

void safetensors_header_free(struct safetensors_header *header)
{
    cJSON_Delete(header->json);
    free(header->entries);
    free(header->by_name);
}

const struct safetensors_entry *safetensors_header_find(const struct safetensors_header *header,
                                                        const char *name)
{
    struct safetensors_entry key = {.name = name};
    const struct safetensors_entry *pointer = &key;
    const struct safetensors_entry **found =
        bsearch(&pointer, header->by_name, header->count, sizeof *header->by_name, compare_entries);
    return found == NULL ? NULL : *found;
}
