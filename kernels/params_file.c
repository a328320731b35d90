/* Parameters to and from safetensors files; see kernels/params.h. On the thread that holds the params.
 *
 * Loading has two passes: the first compares every name, dtype and shape and collects what is wrong, the
 * second writes. What can still fail then is the device itself. */
#include "kernels/params.h"

#include "kernels/base/text.h"
#include "kernels/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBLEMS_SHOWN = 4, NAME_CHARACTERS = 32, NAME_BYTES = 80, LONG_SHAPE_BYTES = 192 };

static bool is_counter(const struct parameter *parameter)
{
    return parameter->kind == PARAMETER_COUNTER;
}

/* ---- saving ---- */

/* Bytes of the values as the file holds them. */
static size_t saved_bytes(const struct parameter *parameter, enum dtype dtype)
{
    return is_counter(parameter) ? sizeof parameter->counter
                                 : shape_elements(&parameter->tensor.shape) * dtype_bytes(dtype);
}

/* Reads the values to `values` and describes them. */
static enum status save_entry(struct params *params, const struct parameter *parameter, enum dtype dtype,
                              void *values, struct safetensors_entry *entry, struct error *error)
{
    const struct shape *shape = &parameter->tensor.shape;
    *entry = (struct safetensors_entry){.name = parameter->name,
                                        .dtype = is_counter(parameter) ? SAFETENSORS_I64
                                                 : dtype == DTYPE_F64  ? SAFETENSORS_F64
                                                                       : SAFETENSORS_F32,
                                        .rank = is_counter(parameter) ? 0 : shape->rank,
                                        .data = values,
                                        .bytes = saved_bytes(parameter, dtype)};
    for (uint32_t i = 0; i < entry->rank; i++)
        entry->size[i] = shape->size[i];
    if (!is_counter(parameter))
        return params_read(params, parameter, dtype, values, error);
    memcpy(values, &parameter->counter, sizeof parameter->counter);
    return STATUS_OK;
}

enum status params_save(struct params *params, const char *path, struct error *error)
{
    enum dtype dtype = params_backend(params)->ops->dtype;
    uint32_t count = params_count(params);
    size_t bytes = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count; i++)
        bytes += saved_bytes(params_at(params, i), dtype);
    struct safetensors_entry *entries = calloc((size_t)count + 1, sizeof *entries);
    char *values = malloc(bytes + 1);
    if (entries == NULL || values == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu bytes", path, bytes);
    for (size_t i = 0, at = 0; i < count && status == STATUS_OK; i++) {
        status = save_entry(params, params_at(params, (uint32_t)i), dtype, values + at, &entries[i], error);
        at += entries[i].bytes;
    }
    if (status == STATUS_OK)
        status = safetensors_write(path, entries, count, error);
    free(entries);
    free(values);
    return status;
}

/* ---- what does not fit ---- */

struct problems {
    char text[ERROR_TEXT_BYTES];
    size_t length;
    unsigned count;
};

/* Adds one, as long as few have been added. */
__attribute__((format(printf, 2, 3))) static void problem(struct problems *problems, const char *format, ...)
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

static void compare(struct problems *problems, const struct parameter *parameter,
                    const struct safetensors_entry *entry)
{
    char found[LONG_SHAPE_BYTES], expected[SHAPE_TEXT_BYTES];
    if (entry == NULL)
        problem(problems, "%s is missing, expected %s", parameter->name,
                shape_text(&parameter->tensor.shape, expected));
    else if (!same_shape(entry, &parameter->tensor.shape))
        problem(problems, "%s is %s, expected %s", parameter->name, entry_shape_text(entry, found),
                shape_text(&parameter->tensor.shape, expected));
    else if (!fitting_dtype(entry, parameter))
        problem(problems, "%s holds %s, expected %s", parameter->name, entry->dtype_text,
                is_counter(parameter) ? "I64" : "F32 or F64");
}

/* Names what keeps the file from fitting. */
static enum status match(struct params *params, const struct safetensors *file, const char *path,
                         struct error *error)
{
    struct problems problems = {0};
    char name[NAME_BYTES], shape[LONG_SHAPE_BYTES];
    for (uint32_t i = 0; i < params_count(params); i++) {
        const struct parameter *parameter = params_at(params, i);
        compare(&problems, parameter, safetensors_find(file, parameter->name));
    }
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const struct safetensors_entry *entry = safetensors_at(file, i);
        if (params_find(params, entry->name) != NULL)
            continue;
        text_show(name, sizeof name, entry->name, strlen(entry->name), NAME_CHARACTERS);
        problem(&problems, "%s of %s is not in the model", name, entry_shape_text(entry, shape));
    }
    if (problems.count == 0)
        return STATUS_OK;
    char more[32] = "";
    if (problems.count > PROBLEMS_SHOWN)
        snprintf(more, sizeof more, "; and %u more", problems.count - PROBLEMS_SHOWN);
    return error_set(error, STATUS_INVALID, "%s does not fit the model: %s%s", path, problems.text, more);
}

/* ---- loading ---- */

/* Writes one entry by way of `scratch`, for a file aligns nothing. */
static enum status load_entry(struct params *params, struct parameter *parameter,
                              const struct safetensors_entry *entry, void *scratch, struct error *error)
{
    if (is_counter(parameter)) {
        memcpy(&parameter->counter, entry->data, sizeof parameter->counter);
        return STATUS_OK;
    }
    memcpy(scratch, entry->data, entry->bytes);
    return params_write(params, parameter, entry->dtype == SAFETENSORS_F64 ? DTYPE_F64 : DTYPE_F32, scratch,
                        error);
}

static enum status load_from(struct params *params, const struct safetensors *file, const char *path,
                             struct error *error)
{
    size_t largest = 0;
    enum status status = match(params, file, path, error);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < safetensors_count(file); i++)
        largest = safetensors_at(file, i)->bytes > largest ? safetensors_at(file, i)->bytes : largest;
    void *scratch = malloc(largest + 1);
    if (scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu bytes", path, largest);
    for (uint32_t i = 0; i < params_count(params) && status == STATUS_OK; i++) {
        struct parameter *parameter = params_at(params, i);
        const struct safetensors_entry *entry = safetensors_find(file, parameter->name);
        assert(entry != NULL);
        status = load_entry(params, parameter, entry, scratch, error);
    }
    free(scratch);
    return status;
}

enum status params_load(struct params *params, const char *path, struct error *error)
{
    struct safetensors *file;
    enum status status = safetensors_open(&file, path, error);
    if (status != STATUS_OK)
        return status;
    status = load_from(params, file, path, error);
    safetensors_close(file);
    return status;
}
