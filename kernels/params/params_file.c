/* Parameters to and from safetensors files, on the thread that holds the params.
 *
 * Loading has two passes: the first compares every name, dtype and shape and collects the problems, the
 * second writes. Only the device or the disk can still fail then. */
#include "kernels/params/params_file.h"

#include "kernels/base/text.h"
#include "kernels/params/gradients.h"
#include "kernels/safetensors/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBLEMS_SHOWN = 4, NAME_CHARACTERS = 32, NAME_BYTES = 80, LONG_SHAPE_BYTES = 192 };

struct params_file {
    struct safetensors *file;
    struct params *params;
    char *path;
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

/* ---- saving ---- */

/* A file's entries beside the parameters that they are. */
struct saved {
    const struct params_saving *saving;
    struct safetensors_entry *entries;   // (count)
    const struct parameter **parameters; // (count)
    size_t count;
};

static void describe_entry(struct safetensors_entry *entry, const struct parameter *parameter,
                           enum dtype dtype)
{
    const struct shape *shape = &parameter->tensor.shape;
    *entry = (struct safetensors_entry){
        .name = parameter->name, .dtype = SAFETENSORS_I64, .bytes = sizeof parameter->counter};
    if (is_counter(parameter))
        return;
    entry->dtype = dtype == DTYPE_F64 ? SAFETENSORS_F64 : SAFETENSORS_F32;
    entry->bytes = shape_elements(shape) * dtype_bytes(dtype);
    entry->rank = shape->rank;
    for (uint32_t i = 0; i < entry->rank; i++)
        entry->size[i] = shape->size[i];
}

/* The source that holds the parameter, or NULL. */
static const struct params_file *source_of(const struct params_saving *saving,
                                           const struct parameter *parameter)
{
    for (size_t i = 0; i < saving->source_count; i++)
        if (in_range(&saving->sources[i]->contents, parameter))
            return saving->sources[i];
    return NULL;
}

static enum status read_from_source(const struct params_file *source, const struct safetensors_entry *entry,
                                    void *values, struct error *error)
{
    const struct safetensors_entry *found = safetensors_find(source->file, entry->name);
    assert(found != NULL);
    if (found->dtype == entry->dtype)
        return safetensors_read(source->file, found, values, error);
    return error_set(error, STATUS_INVALID, "%s: %s holds %s, not the dtype of this backend", source->path,
                     entry->name, found->dtype_text);
}

static enum status save_entry(void *context, size_t index, void *values, struct error *error)
{
    const struct saved *saved = context;
    const struct params_saving *saving = saved->saving;
    const struct parameter *parameter = saved->parameters[index];
    const struct params_file *source = source_of(saving, parameter);
    struct backend *backend = params_backend(saving->params);
    bool fresh;
    if (source != NULL)
        return read_from_source(source, &saved->entries[index], values, error);
    if (is_counter(parameter)) {
        memcpy(values, &parameter->counter, sizeof parameter->counter);
        return STATUS_OK;
    }
    const struct tensor *tensor =
        saving->parallel == NULL ? &parameter->tensor : gradients_take(saving->parallel, parameter, &fresh);
    return backend_download(backend, tensor, backend->ops->dtype, values, error);
}

enum status params_file_save(const char *path, const struct params_saving *saving, struct error *error)
{
    struct params *params = saving->params;
    struct saved saved = {.saving = saving};
    const uint32_t count = params_count(params);
    enum status status = STATUS_OK;
    saved.entries = calloc((size_t)count + 1, sizeof *saved.entries);
    saved.parameters = calloc((size_t)count + 1, sizeof *saved.parameters);
    if (saved.entries == NULL || saved.parameters == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory for %u entries", path, count);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        const struct parameter *parameter = params_at(params, i);
        if (!in_range(&saving->contents, parameter))
            continue;
        assert(saving->parallel == NULL || parameter->kind == PARAMETER_TRAINED);
        saved.parameters[saved.count] = parameter;
        describe_entry(&saved.entries[saved.count++], parameter, params_backend(params)->ops->dtype);
    }
    const struct safetensors_stream stream = {
        .fill = save_entry, .written = saving->written, .context = &saved, .observer = saving->observer};
    if (status == STATUS_OK)
        status = safetensors_write(path, saved.entries, saved.count, &stream, error);
    free(saved.entries);
    free(saved.parameters);
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
    char *end = problems->text + problems->length;
    size_t left = sizeof problems->text - problems->length;
    int written = snprintf(end, left, "%s", problems->length == 0 ? "" : "; ");
    va_list list;
    va_start(list, format);
    written += vsnprintf(end + written, left - (size_t)written, format, list);
    va_end(list);
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

static bool same_shape(const struct safetensors_entry *entry, const struct shape *shape)
{
    bool same = entry->rank == shape->rank;
    for (uint32_t i = 0; i < entry->rank && same; i++)
        same = entry->size[i] == shape->size[i];
    return same;
}

static bool fitting_dtype(const struct safetensors_entry *entry, const struct parameter *parameter)
{
    if (is_counter(parameter))
        return entry->dtype == SAFETENSORS_I64;
    return entry->dtype == SAFETENSORS_F32 || entry->dtype == SAFETENSORS_F64;
}

static void compare_entry(struct problems *problems, const struct parameter *parameter,
                          const struct safetensors_entry *entry)
{
    char found[LONG_SHAPE_BYTES], expected[SHAPE_TEXT_BYTES];
    if (entry == NULL)
        problems_add(problems, "%s is missing, expected %s", parameter->name,
                     shape_text(&parameter->tensor.shape, expected));
    else if (!same_shape(entry, &parameter->tensor.shape))
        problems_add(problems, "%s is %s, expected %s", parameter->name, entry_shape_text(entry, found),
                     shape_text(&parameter->tensor.shape, expected));
    else if (!fitting_dtype(entry, parameter))
        problems_add(problems, "%s holds %s, expected %s", parameter->name, entry->dtype_text,
                     is_counter(parameter) ? "I64" : "F32 or F64");
}

/* Entries that the file holds and should not. */
static void compare_rest(struct problems *problems, const struct params_file *file)
{
    char name[NAME_BYTES], shape[LONG_SHAPE_BYTES];
    for (size_t i = 0; i < safetensors_count(file->file); i++) {
        const struct safetensors_entry *entry = safetensors_at(file->file, i);
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
        const struct safetensors_entry *entry = safetensors_find(file->file, parameter->name);
        if (in_range(&file->contents, parameter) &&
            !(entry == NULL && is_counter(parameter) && counters_optional))
            compare_entry(&problems, parameter, entry);
    }
    compare_rest(&problems, file);
    if (problems.count == 0)
        return STATUS_OK;
    char more[32] = "";
    if (problems.count > PROBLEMS_SHOWN)
        snprintf(more, sizeof more, "; and %u more", problems.count - PROBLEMS_SHOWN);
    return error_set(error, STATUS_INVALID, "%s does not fit the model: %s%s", file->path, problems.text,
                     more);
}

/* ---- loading ---- */

enum status params_file_open(struct params_file **out, struct params *params, const char *path,
                             const struct params_range *contents, bool counters_optional, struct error *error)
{
    struct params_file *file = calloc(1, sizeof *file);
    char *copy = strdup(path);
    *out = NULL;
    if (file == NULL || copy == NULL) {
        free(file);
        free(copy);
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory to open it", path);
    }
    *file = (struct params_file){.params = params, .path = copy, .contents = *contents};
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
    free(file->path);
    free(file);
}

/* `values` are those of an F32 or F64 entry. */
static bool all_finite(const struct safetensors_entry *entry, const void *values)
{
    const bool wide = entry->dtype == SAFETENSORS_F64;
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
        return error_set(error, STATUS_CORRUPT, "%s: %s holds a NaN or an infinity", file->path,
                         parameter->name);
    struct tensor *tensor =
        parallel == NULL ? &parameter->tensor : gradients_take(parallel, parameter, &fresh);
    return backend_upload(params_backend(file->params), tensor,
                          entry->dtype == SAFETENSORS_F64 ? DTYPE_F64 : DTYPE_F32, scratch, error);
}

enum status params_file_load(const struct params_file *file, struct gradients *parallel,
                             const struct params_range *range, struct error *error)
{
    size_t largest = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < safetensors_count(file->file); i++) {
        const size_t bytes = safetensors_at(file->file, i)->bytes;
        largest = bytes > largest ? bytes : largest;
    }
    void *scratch = malloc(largest + 1);
    if (scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu bytes", file->path, largest);
    for (uint32_t i = 0; i < params_count(file->params) && status == STATUS_OK; i++) {
        struct parameter *parameter = params_at(file->params, i);
        if (in_range(range, parameter) && in_range(&file->contents, parameter))
            status = load_entry(file, parallel, parameter, scratch, error);
    }
    free(scratch);
    return status;
}
