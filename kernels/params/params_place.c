/* The memory of parameters: offsets, own memory, the caller's memory.
 *
 * From params_lay_out on, an entry's tensor is complete except for its address. Placing sets addresses alone,
 * so that a trainer moves from one version of the model to the next by a pass over a few hundred pointers. */
#include "kernels/params/params_internal.h"
#include "kernels/params/slab.h"

#include <assert.h>

/* ---- laying out ---- */

/* Gives the entries of one kind their offsets. *elements becomes the slab's size, gaps included. */
static enum status lay_out_kind(struct params *params, enum parameter_kind kind, size_t *elements,
                                struct error *error)
{
    const size_t unit = dtype_bytes(params->backend->ops->dtype), step = SLAB_ALIGNMENT_BYTES / unit;
    *elements = 0;
    for (uint32_t i = 0; i < params->count; i++) {
        struct parameter *parameter = params->entries[i];
        if (parameter->kind != kind)
            continue;
        size_t count = shape_elements(&parameter->tensor.shape);
        parameter->offset = *elements;
        parameter->tensor.bytes = count * unit;
        *elements += (count + step - 1) / step * step;
        if (*elements > SHAPE_ELEMENTS_MAX)
            return error_set(error, STATUS_INVALID,
                             "parameter %s: the parameters up to here have %zu elements, at most %d can be",
                             parameter->name, *elements, SHAPE_ELEMENTS_MAX);
    }
    return STATUS_OK;
}

enum status params_lay_out(struct params *params, struct error *error)
{
    assert(!params->laid_out);
    size_t trained = 0, buffers = 0;
    enum status status = lay_out_kind(params, PARAMETER_TRAINED, &trained, error);
    if (status == STATUS_OK)
        status = lay_out_kind(params, PARAMETER_BUFFER, &buffers, error);
    if (status != STATUS_OK)
        return status;
    params->slab = slab_describe(params->backend, trained, "parameters");
    params->buffers = slab_describe(params->backend, buffers, "buffers");
    params->laid_out = true;
    return STATUS_OK;
}

size_t params_elements(const struct params *params)
{
    assert(params->laid_out);
    return params->slab.shape.size[0];
}

size_t params_buffer_elements(const struct params *params)
{
    assert(params->laid_out);
    return params->buffers.shape.size[0];
}

/* ---- placing ---- */

/* Places the entries of one kind with an index in [first, end) in `slab`, which has memory. Returns their
 * number. */
static uint32_t place_kind(struct params *params, enum parameter_kind kind, uint32_t first, uint32_t end,
                           const struct tensor *slab)
{
    uint32_t placed = 0;
    for (uint32_t i = first; i < end; i++) {
        struct parameter *parameter = params->entries[i];
        if (parameter->kind != kind)
            continue;
        parameter->tensor.data = slab_address(slab, parameter->offset);
        placed++;
    }
    return placed;
}

static uint32_t count_kind(const struct params *params, enum parameter_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < params->count; i++)
        count += params->entries[i]->kind == kind;
    return count;
}

/* The slab with element 0 at `data`. The tensor's memory counts as writable; the caller writes to none that
 * is mapped read-only. */
static struct tensor slab_at(const struct params *params, const struct tensor *slab, const void *data)
{
    assert(params->laid_out && !params->built && params->backend->ops->host);
    assert(data != NULL && (uintptr_t)data % SLAB_ALIGNMENT_BYTES == 0);
    struct tensor at = *slab;
    at.data = (void *)(uintptr_t)data;
    return at;
}

void params_place(struct params *params, uint32_t first, uint32_t end, const void *slab)
{
    assert(first <= end && end <= params->count);
    const struct tensor at = slab_at(params, &params->slab, slab);
    const bool whole =
        place_kind(params, PARAMETER_TRAINED, first, end, &at) == count_kind(params, PARAMETER_TRAINED);
    params->slab.data = whole ? at.data : NULL;
}

void params_place_buffers(struct params *params, const void *buffers)
{
    const struct tensor at = slab_at(params, &params->buffers, buffers);
    place_kind(params, PARAMETER_BUFFER, 0, params->count, &at);
    params->buffers.data = at.data;
}

void params_displace(struct params *params)
{
    assert(params->laid_out && !params->built);
    for (uint32_t i = 0; i < params->count; i++)
        params->entries[i]->tensor.data = NULL;
    params->slab.data = NULL;
    params->buffers.data = NULL;
}

enum status params_build(struct params *params, uint64_t seed, struct error *error)
{
    enum status status = params_lay_out(params, error);
    if (status != STATUS_OK)
        return status;
    params->built = true;
    status = slab_new(&params->slab, params->backend, error);
    if (status == STATUS_OK)
        status = slab_new(&params->buffers, params->backend, error);
    if (status != STATUS_OK)
        return status;
    place_kind(params, PARAMETER_TRAINED, 0, params->count, &params->slab);
    place_kind(params, PARAMETER_BUFFER, 0, params->count, &params->buffers);
    return params_begin(params, seed, 0, params->count, error);
}
