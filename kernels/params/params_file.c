/* Saves parameters to safetensors files, and loads them. The thread that holds the params.
 *
 * Loading has two passes. The first compares every name, dtype and shape, and collects the problems. The
 * second writes; only the device or the disk can still fail then. */
#include "kernels/params/params_file.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"
#include "kernels/params/gradients.h"
#include "kernels/safetensors/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROBLEMS_SHOWN = 4, NAME_CHARACTERS = 32, NAME_BYTES = 80, LONG_SHAPE_BYTES = 192 };

struct params_file {
    struct safetensors *file;
    struct params *params;
    struct params_range contents;
};

static bool is_counter(const struct parameter *parameter)
{
    return parameter->kind == PARAMETER_COUNTER;
}

static bool in_range(const struct params_range *range, const struct parameter *parameter)
{
    if (parameter->kind != PARAMETER_TRAINED)
        return range->others;
    return parameter->index >= range->first && parameter->index < range->end;
}

/* The entry that a file has for the parameter, in a backend's dtype. */
static struct safetensors_entry describe_entry(const struct parameter *parameter, enum dtype dtype)
{
    const struct shape *shape = &parameter->tensor.shape;
    struct safetensors_entry entry = {
        .name = parameter->name, .dtype = "I64", .bytes = sizeof parameter->counter, .rank = shape->rank};
    for (uint32_t i = 0; i < shape->rank; i++)
        entry.size[i] = shape->size[i];
    if (parameter->kind == PARAMETER_COUNTER)
        return entry;
    entry.dtype = dtype == DTYPE_F64 ? "F64" : "F32";
    entry.bytes = shape_elements(shape) * dtype_bytes(dtype);
    return entry;
}

/* ---- saving ---- */

static enum status read_from_source(const struct params_file *source, const struct safetensors_entry *entry,
                                    void *values, struct error *error)
{
    const struct safetensors_entry *found = safetensors_find(source->file, entry->name);
    assert(found != NULL);
    if (strcmp(found->dtype, entry->dtype) == 0)
        return safetensors_read(source->file, found, values, error);
    return error_set(error, STATUS_INVALID, "%s: %s holds %s, not the dtype of this backend",
                     source->file->path, entry->name, found->dtype);
}

/* Copies an entry's values from the source that holds the entry, or else from memory. */
static enum status save_fill(const struct params_saving *saving, const struct safetensors_entry *entry,
                             void *values, struct error *error)
{
    const struct parameter *parameter = params_find(saving->params, entry->name);
    struct backend *backend = params_backend(saving->params);
    bool fresh;
    for (size_t i = 0; i < saving->source_count; i++)
        if (in_range(&saving->sources[i]->contents, parameter))
            return read_from_source(saving->sources[i], entry, values, error);
    if (is_counter(parameter)) {
        memcpy(values, &parameter->counter, sizeof parameter->counter);
        return STATUS_OK;
    }
    const struct tensor *tensor =
        saving->parallel == NULL ? &parameter->tensor : gradients_take(saving->parallel, parameter, &fresh);
    return backend_download(backend, tensor, backend->ops->dtype, values, error);
}

static enum status save_bytes(int fd, const char *path, const struct params_saving *saving, const void *bytes,
                              size_t count, struct error *error)
{
    if (!file_write(fd, bytes, count))
        return error_set_errno(error, errno, "%s: cannot be written", path);
    if (saving->written != NULL)
        saving->written(saving->observer, bytes, count);
    return STATUS_OK;
}

/* Writes the file out of its first bytes and its entries' values, which pass through `values`. An fsync that
 * failed is not tried again: the kernel may have dropped the pages that it could not write. */
static enum status save_file(struct path path, const struct params_saving *saving, const char *header,
                             size_t header_bytes, const struct safetensors_entry *entries, size_t count,
                             void *values, struct error *error)
{
    int fd;
    enum status status = file_open_as(&fd, path, O_WRONLY | O_CREAT | O_TRUNC, error);
    if (status != STATUS_OK)
        return status;
    status = save_bytes(fd, path.text, saving, header, header_bytes, error);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        status = save_fill(saving, &entries[i], values, error);
        if (status == STATUS_OK)
            status = save_bytes(fd, path.text, saving, values, entries[i].bytes, error);
    }
    if (status == STATUS_OK && fsync(fd) != 0)
        status = error_set_errno(error, errno, "%s: cannot be written", path.text);
    if (close(fd) != 0 && status == STATUS_OK)
        status = error_set_errno(error, errno, "%s: cannot be written", path.text);
    return status;
}

enum status params_file_save(struct path path, const struct params_saving *saving, struct error *error)
{
    struct params *params = saving->params;
    size_t count = 0, largest = 0, header_bytes = 0;
    struct safetensors_entry *entries = calloc((size_t)params_count(params) + 1, sizeof *entries);
    for (uint32_t i = 0; i < params_count(params) && entries != NULL; i++) {
        const struct parameter *parameter = params_at(params, i);
        if (!in_range(&saving->contents, parameter))
            continue;
        assert(saving->parallel == NULL || parameter->kind == PARAMETER_TRAINED);
        entries[count] = describe_entry(parameter, params_backend(params)->ops->dtype);
        largest = entries[count].bytes > largest ? entries[count].bytes : largest;
        count++;
    }
    char *header = entries != NULL ? safetensors_format(entries, count, &header_bytes) : NULL;
    void *values = malloc(largest + 1);
    enum status status = STATUS_NO_MEMORY;
    if (header == NULL || values == NULL)
        error_set(error, status, "%s: no memory for its header and %zu bytes", path.text, largest);
    else
        status = save_file(path, saving, header, header_bytes, entries, count, values, error);
    free(entries);
    free(header);
    free(values);
    return status;
}

/* ---- what does not fit ---- */

struct problems {
    char text[ERROR_TEXT_BYTES];
    size_t length;
    unsigned count;
};

/* Adds a problem to the text; beyond PROBLEMS_SHOWN it is only counted. */
__attribute__((format(printf, 2, 3))) static void problems_add(struct problems *problems, const char *format,
                                                               ...)
{
    if (problems->count++ >= PROBLEMS_SHOWN)
        return;
    char problem[ERROR_TEXT_BYTES];
    const size_t left = sizeof problems->text - problems->length;
    va_list list;
    va_start(list, format);
    vsnprintf(problem, sizeof problem, format, list);
    va_end(list);
    const int written =
        snprintf(problems->text + problems->length, left, "%s%s", problems->length == 0 ? "" : "; ", problem);
    problems->length += (size_t)written < left ? (size_t)written : left - 1;
}

/* A shape as kernels/tensor.h's shape_text writes it, but a file's has more and larger sizes. */
static const char *entry_shape_text(const struct safetensors_entry *entry, char text[LONG_SHAPE_BYTES])
{
    size_t length = (size_t)snprintf(text, LONG_SHAPE_BYTES, entry->rank == 0 ? "scalar" : "");
    for (uint32_t i = 0; i < entry->rank; i++)
        length += (size_t)snprintf(text + length, LONG_SHAPE_BYTES - length, "%s%" PRIu64, i == 0 ? "" : "x",
                                   entry->size[i]);
    return text;
}

static bool is_floating(const struct safetensors_entry *entry)
{
    return strcmp(entry->dtype, "F32") == 0 || strcmp(entry->dtype, "F64") == 0;
}

/* `found`: NULL where the file does not hold the entry. */
static void compare_entry(struct problems *problems, const struct safetensors_entry *expected,
                          const struct safetensors_entry *found)
{
    char is[LONG_SHAPE_BYTES], should_be[LONG_SHAPE_BYTES];
    entry_shape_text(expected, should_be);
    if (found == NULL)
        problems_add(problems, "%s is missing, expected %s", expected->name, should_be);
    else if (found->rank != expected->rank || memcmp(found->size, expected->size, sizeof found->size) != 0)
        problems_add(problems, "%s is %s, expected %s", expected->name, entry_shape_text(found, is),
                     should_be);
    else if (is_floating(expected) != is_floating(found) ||
             (!is_floating(found) && strcmp(found->dtype, expected->dtype) != 0))
        problems_add(problems, "%s holds %s, expected %s", expected->name, found->dtype,
                     is_floating(expected) ? "F32 or F64" : expected->dtype);
}

/* Entries that the file holds and should not. */
static void compare_rest(struct problems *problems, const struct params_file *file)
{
    char name[NAME_BYTES], shape[LONG_SHAPE_BYTES];
    for (size_t i = 0; i < file->file->count; i++) {
        const struct safetensors_entry *entry = &file->file->entries[i];
        const struct parameter *parameter = params_find(file->params, entry->name);
        if (parameter != NULL && in_range(&file->contents, parameter))
            continue;
        text_show(name, sizeof name, entry->name, strlen(entry->name), NAME_CHARACTERS);
        problems_add(problems, "%s of %s is not in %s", name, entry_shape_text(entry, shape),
                     parameter == NULL ? "the model" : "this shard of the model");
    }
}

/* STATUS_INVALID with the problems that keep the file from fitting. */
static enum status check_fit(const struct params_file *file, bool counters_optional, struct error *error)
{
    struct problems problems = {0};
    for (uint32_t i = 0; i < params_count(file->params); i++) {
        const struct parameter *parameter = params_at(file->params, i);
        const struct safetensors_entry *found = safetensors_find(file->file, parameter->name);
        const struct safetensors_entry expected = describe_entry(parameter, DTYPE_F32);
        if (in_range(&file->contents, parameter) &&
            !(found == NULL && is_counter(parameter) && counters_optional))
            compare_entry(&problems, &expected, found);
    }
    compare_rest(&problems, file);
    if (problems.count == 0)
        return STATUS_OK;
    char more[32] = "";
    if (problems.count > PROBLEMS_SHOWN)
        snprintf(more, sizeof more, "; and %u more", problems.count - PROBLEMS_SHOWN);
    return error_set(error, STATUS_INVALID, "%s does not fit the model: %s%s", file->file->path,
                     problems.text, more);
}

/* ---- loading ---- */

enum status params_file_open(struct params_file **out, struct params *params, struct path path,
                             const struct params_range *contents, bool counters_optional, struct error *error)
{
    struct params_file *file = calloc(1, sizeof *file);
    *out = NULL;
    if (file == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory to open it", path.text);
    *file = (struct params_file){.params = params, .contents = *contents};
    enum status status = safetensors_open(&file->file, path, error);
    if (status == STATUS_OK)
        status = check_fit(file, counters_optional, error);
    if (status == STATUS_OK)
        *out = file;
    else
        params_file_close(file);
    return status;
}

void params_file_close(struct params_file *file)
{
    if (file == NULL)
        return;
    safetensors_close(file->file);
    free(file);
}

/* The dtype of a floating entry. */
static enum dtype entry_dtype(const struct safetensors_entry *entry)
{
    return strcmp(entry->dtype, "F64") == 0 ? DTYPE_F64 : DTYPE_F32;
}

/* `values` are those of a floating entry. */
static bool all_finite(const struct safetensors_entry *entry, const void *values)
{
    const bool wide = entry_dtype(entry) == DTYPE_F64;
    const size_t count = entry->bytes / (wide ? sizeof(double) : sizeof(float));
    for (size_t i = 0; i < count; i++)
        if (!isfinite(wide ? ((const double *)values)[i] : (double)((const float *)values)[i]))
            return false;
    return true;
}

/* One entry, by way of `scratch`. */
static enum status load_entry(const struct params_file *file, struct gradients *parallel,
                              struct parameter *parameter, void *scratch, struct error *error)
{
    const struct safetensors_entry *entry = safetensors_find(file->file, parameter->name);
    bool fresh;
    if (entry == NULL) {
        assert(is_counter(parameter));
        parameter->counter = 0;
        return STATUS_OK;
    }
    enum status status = safetensors_read(file->file, entry, scratch, error);
    if (status != STATUS_OK)
        return status;
    if (is_counter(parameter)) {
        memcpy(&parameter->counter, scratch, sizeof parameter->counter);
        return STATUS_OK;
    }
    if (!all_finite(entry, scratch))
        return error_set(error, STATUS_CORRUPT, "%s: %s holds a NaN or an infinity", file->file->path,
                         parameter->name);
    struct tensor *tensor =
        parallel == NULL ? &parameter->tensor : gradients_take(parallel, parameter, &fresh);
    return backend_upload(params_backend(file->params), tensor, entry_dtype(entry), scratch, error);
}

enum status params_file_load(const struct params_file *file, struct gradients *parallel,
                             const struct params_range *range, struct error *error)
{
    size_t largest = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < file->file->count; i++)
        largest = file->file->entries[i].bytes > largest ? file->file->entries[i].bytes : largest;
    void *scratch = malloc(largest + 1);
    if (scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu bytes", file->file->path, largest);
    for (uint32_t i = 0; i < params_count(file->params) && status == STATUS_OK; i++) {
        struct parameter *parameter = params_at(file->params, i);
        if (in_range(range, parameter) && in_range(&file->contents, parameter))
            status = load_entry(file, parallel, parameter, scratch, error);
    }
    free(scratch);
    return status;
}
