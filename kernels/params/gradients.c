/* Slabs parallel to a trained one, and the record of entries that the present step has written. */
#include "kernels/params/gradients.h"

#include "kernels/params/params_internal.h"
#include "kernels/params/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* An entry parallel to `parameter`, in its present layout, before it has a place. */
static struct tensor describe_entry(const struct parameter *parameter)
{
    struct tensor entry = parameter->tensor;
    entry.data = NULL;
    entry.wanted = NULL;
    return entry;
}

enum status gradients_new_unplaced(struct gradients **out, struct params *params, struct error *error)
{
    assert(params->laid_out);
    struct gradients *gradients = calloc(1, sizeof *gradients);
    if (gradients == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for gradients");
    gradients->params = params;
    gradients->next = params->parallels;
    params->parallels = gradients;
    gradients->slab = slab_describe(params->backend, params_elements(params), "gradients");
    gradients->entries = calloc((size_t)params->count + 1, sizeof *gradients->entries);
    gradients->written = calloc((size_t)params->count + 1, sizeof *gradients->written);
    if (gradients->entries == NULL || gradients->written == NULL) {
        gradients_free(gradients);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u gradients", params->count);
    }
    for (uint32_t i = 0; i < params->count; i++)
        if (params->entries[i]->kind == PARAMETER_TRAINED)
            gradients->entries[i] = describe_entry(params->entries[i]);
    *out = gradients;
    return STATUS_OK;
}

/* Sets the address of every entry. */
static void place_entries(struct gradients *gradients)
{
    const struct params *params = gradients->params;
    for (uint32_t i = 0; i < params->count; i++)
        if (params->entries[i]->kind == PARAMETER_TRAINED)
            gradients->entries[i].data = slab_address(&gradients->slab, params->entries[i]->offset);
}

enum status gradients_new(struct gradients **out, struct params *params, struct error *error)
{
    struct gradients *gradients;
    enum status status = gradients_new_unplaced(&gradients, params, error);
    if (status != STATUS_OK)
        return status;
    gradients->owned = true;
    status = slab_new(&gradients->slab, params->backend, error);
    if (status != STATUS_OK) {
        gradients_free(gradients);
        return status;
    }
    place_entries(gradients);
    *out = gradients;
    return STATUS_OK;
}

void gradients_place(struct gradients *gradients, void *slab)
{
    assert(!gradients->owned && gradients->params->backend->ops->host);
    assert(slab != NULL && (uintptr_t)slab % SLAB_ALIGNMENT_BYTES == 0);
    gradients->slab.data = slab;
    place_entries(gradients);
}

void gradients_free(struct gradients *gradients)
{
    if (gradients == NULL)
        return;
    struct params *params = gradients->params;
    struct gradients **link = &params->parallels;
    while (*link != gradients)
        link = &(*link)->next;
    *link = gradients->next;
    if (gradients->owned)
        slab_free(&gradients->slab, params->backend);
    free(gradients->entries);
    free(gradients->written);
    free(gradients);
}

struct tensor *gradients_slab(struct gradients *gradients)
{
    return &gradients->slab;
}

struct params *gradients_params(struct gradients *gradients)
{
    return gradients->params;
}

/* ---- one step ---- */

void gradients_begin(struct gradients *gradients)
{
    memset(gradients->written, 0, gradients->params->count * sizeof *gradients->written);
}

struct tensor *gradients_take(struct gradients *gradients, const struct parameter *parameter, bool *fresh)
{
    assert(parameter->params == gradients->params && parameter->kind == PARAMETER_TRAINED);
    *fresh = !gradients->written[parameter->index];
    gradients->written[parameter->index] = true;
    return &gradients->entries[parameter->index];
}

const struct tensor *gradients_written(const struct gradients *gradients, const struct parameter *parameter)
{
    return gradients->written[parameter->index] ? &gradients->entries[parameter->index] : NULL;
}

enum status gradients_complete(struct gradients *gradients, struct error *error)
{
    struct params *params = gradients->params;
    for (uint32_t i = 0; i < params->count; i++) {
        if (params->entries[i]->kind != PARAMETER_TRAINED || gradients->written[i])
            continue;
        enum status status = backend_fill(params->backend, &gradients->entries[i], 0, error);
        if (status != STATUS_OK)
            return status;
        gradients->written[i] = true;
    }
    return STATUS_OK;
}

enum status gradients_write(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                            const void *values, struct error *error)
{
    bool fresh;
    return backend_upload(gradients->params->backend, gradients_take(gradients, parameter, &fresh), dtype,
                          values, error);
}

enum status gradients_add(struct gradients *to, struct gradients *from, const struct parameter *parameter,
                          struct error *error)
{
    struct params *params = to->params;
    assert(from->params == params && parameter->params == params && from->written[parameter->index]);
    bool fresh;
    struct tensor *sum = gradients_take(to, parameter, &fresh);
    enum status status = STATUS_OK;
    if (fresh) // -0 + x is x, whatever sign a zero has
        status = backend_fill(params->backend, sum, -0.0, error);
    if (status == STATUS_OK)
        status = backend_accumulate(params->backend, params->scratch, sum, &from->entries[parameter->index],
                                    error);
    return status;
}

/* ---- looking ---- */

enum status gradients_read(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                           void *values, struct error *error)
{
    assert(parameter->params == gradients->params && parameter->kind == PARAMETER_TRAINED);
    enum status status = gradients_complete(gradients, error);
    if (status == STATUS_OK)
        status = backend_download(gradients->params->backend, &gradients->entries[parameter->index], dtype,
                                  values, error);
    return status;
}

enum status gradients_square_sum(struct gradients *gradients, const struct parameter *parameter, double *sum,
                                 struct error *error)
{
    assert(parameter->params == gradients->params && parameter->kind == PARAMETER_TRAINED);
    enum status status = gradients_complete(gradients, error);
    if (status == STATUS_OK)
        status =
            backend_square_sum(gradients->params->backend, &gradients->entries[parameter->index], sum, error);
    return status;
}

enum status gradients_check_entry(struct gradients *gradients, const struct parameter *parameter,
                                  struct error *error)
{
    assert(parameter->params == gradients->params && parameter->kind == PARAMETER_TRAINED);
    size_t index = SIZE_MAX;
    enum status status = gradients_complete(gradients, error);
    if (status == STATUS_OK)
        status = backend_first_not_finite(gradients->params->backend, &gradients->entries[parameter->index],
                                          &index, error);
    if (status == STATUS_OK && index != SIZE_MAX)
        status = error_set(error, STATUS_INTERNAL,
                           "the gradient of %s holds a NaN or an infinity (element %zu in memory)",
                           parameter->name, index);
    return status;
}

enum status gradients_check(struct gradients *gradients, struct error *error)
{
    struct params *params = gradients->params;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params->count && status == STATUS_OK; i++)
        if (params->entries[i]->kind == PARAMETER_TRAINED)
            status = gradients_check_entry(gradients, params->entries[i], error);
    return status;
}
