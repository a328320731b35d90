/* Parameters: registering, finding, reading, writing. First values are params_draw.c's, memory
 * params_place.c's.
 *
 * Entries are allocated one by one, so that a model may keep the pointers while it registers others. */
#include "kernels/params/params_internal.h"

#include "kernels/params/slab.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status params_new(struct params **out, struct backend *backend, struct error *error)
{
    struct params *params = calloc(1, sizeof *params);
    if (params == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for parameters");
    params->backend = backend;
    enum status status = arena_new(&params->scratch, &backend->source, error);
    if (status != STATUS_OK) {
        free(params);
        return status;
    }
    *out = params;
    return STATUS_OK;
}

static void free_entry(struct parameter *parameter)
{
    if (parameter != NULL)
        free((void *)(uintptr_t)parameter->name); // allocated by params_add, const for everyone else
    free(parameter);
}

void params_free(struct params *params)
{
    if (params == NULL)
        return;
    assert(params->parallels == NULL);
    for (uint32_t i = 0; i < params->count; i++)
        free_entry(params->entries[i]);
    free(params->entries);
    if (params->built) {
        slab_free(&params->slab, params->backend);
        slab_free(&params->buffers, params->backend);
    }
    arena_free(params->scratch);
    free(params);
}

/* ---- registering ---- */

static bool make_room(struct params *params)
{
    if (params->count < params->capacity)
        return true;
    uint32_t capacity = params->capacity == 0 ? 16 : 2 * params->capacity;
    struct parameter **entries = reallocarray(params->entries, capacity, sizeof *entries);
    if (entries == NULL)
        return false;
    params->entries = entries;
    params->capacity = capacity;
    return true;
}

enum status params_add(struct params *params, const char *name, enum parameter_kind kind, struct shape shape,
                       struct init init, struct parameter **out, struct error *error)
{
    char text[SHAPE_TEXT_BYTES];
    assert(!params->laid_out && isfinite(init.value));
    assert(kind != PARAMETER_COUNTER || shape.rank == 0);
    assert(kind == PARAMETER_TRAINED || init.kind == INIT_CONSTANT);
    if (params_find(params, name) != NULL)
        return error_set(error, STATUS_INVALID, "parameter name \"%s\" is there already", name);
    if (shape_elements(&shape) == 0)
        return error_set(error, STATUS_INVALID, "parameter %s: expected 1..%d elements, got shape %s", name,
                         SHAPE_ELEMENTS_MAX, shape_text(&shape, text));
    struct parameter *parameter = calloc(1, sizeof *parameter);
    char *copy = strdup(name);
    if (parameter == NULL || copy == NULL || !make_room(params)) {
        free(parameter);
        free(copy);
        return error_set(error, STATUS_NO_MEMORY, "no memory for parameter %s", name);
    }
    *parameter = (struct parameter){.name = copy,
                                    .kind = kind,
                                    .index = params->count,
                                    .init = init,
                                    .tensor = {.shape = shape, .dtype = params->backend->ops->dtype},
                                    .params = params};
    parameter->tensor.name = copy;
    params->entries[params->count++] = parameter;
    *out = parameter;
    return STATUS_OK;
}

/* ---- looking ---- */

uint32_t params_count(const struct params *params)
{
    return params->count;
}

struct parameter *params_at(struct params *params, uint32_t index)
{
    return params->entries[index];
}

struct parameter *params_find(struct params *params, const char *name)
{
    for (uint32_t i = 0; i < params->count; i++)
        if (strcmp(params->entries[i]->name, name) == 0)
            return params->entries[i];
    return NULL;
}

struct backend *params_backend(const struct params *params)
{
    return params->backend;
}

const struct tensor *params_slab(const struct params *params)
{
    return &params->slab;
}

/* ---- reading and writing ---- */

enum status params_read(struct params *params, const struct parameter *parameter, enum dtype dtype,
                        void *values, struct error *error)
{
    return backend_download(params->backend, &parameter->tensor, dtype, values, error);
}

enum status params_write(struct params *params, struct parameter *parameter, enum dtype dtype,
                         const void *values, struct error *error)
{
    return backend_upload(params->backend, &parameter->tensor, dtype, values, error);
}
