/* Layout tokens, scratch memory, and messages of the library's failures. */
#include "kernels/onednn/onednn.h"

#include "kernels/base/fnv.h"

#include <assert.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <stdlib.h>
#include <string.h>

enum status onednn_check(dnnl_status_t result, const char *call, const char *op, const struct shape *shape,
                         struct error *error)
{
    if (result == dnnl_success)
        return STATUS_OK;
    char text[SHAPE_TEXT_BYTES] = "";
    return error_set(error, result == dnnl_out_of_memory ? STATUS_NO_MEMORY : STATUS_INTERNAL,
                     "oneDNN's %s for %s%s%s: %s", call, op, shape == NULL ? "" : " of ",
                     shape == NULL ? "" : shape_text(shape, text), dnnl_status2str(result));
}

enum status onednn_product(const struct op_call *call, char a_form, char b_form, size_t rows, size_t columns,
                           size_t inner, const float *a, const float *b, float keep, float *c,
                           struct error *error)
{
    const dnnl_dim_t m = (dnnl_dim_t)rows, n = (dnnl_dim_t)columns, k = (dnnl_dim_t)inner;
    return onednn_check(dnnl_sgemm(a_form, b_form, m, n, k, 1, a, a_form == 'N' ? k : m, b,
                                   b_form == 'N' ? n : k, keep, c, n),
                        "dnnl_sgemm", op_rule(call->op)->name, &call->in[0]->shape, error);
}

/* ---- descriptors ---- */

dnnl_memory_desc_t layout_canonical(const struct shape *shape, enum dtype dtype)
{
    dnnl_memory_desc_t desc = {0};
    dnnl_dims_t dims = {1}, strides = {1};
    const int rank = shape->rank == 0 ? 1 : (int)shape->rank;
    for (uint32_t d = 0; d < shape->rank; d++)
        dims[d] = shape->size[d];
    strides[rank - 1] = 1;
    for (int d = rank - 2; d >= 0; d--)
        strides[d] = strides[d + 1] * dims[d + 1];
    dnnl_status_t made = dnnl_memory_desc_init_by_strides(&desc, rank, dims,
                                                          dtype == DTYPE_I32 ? dnnl_s32 : dnnl_f32, strides);
    assert(made == dnnl_success); // sizes are 1 or more, checked by op_forward
    (void)made;
    return desc;
}

dnnl_memory_desc_t layout_of(const struct tensor *tensor)
{
    if (tensor->layout != NULL)
        return ((const struct layout *)tensor->layout)->desc;
    return layout_canonical(&tensor->shape, tensor->dtype);
}

/* One place of a mixed-radix number: the elements of dimension `dim` in steps of `step`, `size` of them. */
struct digit {
    int dim;
    dnnl_dim_t size, stride;
};

/* The digits of size above 1 from the fastest to the slowest; returns how many. */
static int layout_digits(const dnnl_memory_desc_t *desc, struct digit digits[2 * DNNL_MAX_NDIMS])
{
    const dnnl_blocking_desc_t *blocking = &desc->format_desc.blocking;
    int count = 0, inner;
    dnnl_dims_t outer;
    memcpy(outer, desc->padded_dims, sizeof outer);
    for (int b = blocking->inner_nblks - 1; b >= 0; b--) {
        outer[blocking->inner_idxs[b]] /= blocking->inner_blks[b];
        if (blocking->inner_blks[b] > 1)
            digits[count++] = (struct digit){(int)blocking->inner_idxs[b], blocking->inner_blks[b], 0};
    }
    inner = count;
    for (int d = 0; d < desc->ndims; d++) {
        if (outer[d] == 1)
            continue;
        int at = count++;
        for (; at > inner && digits[at - 1].stride > blocking->strides[d]; at--)
            digits[at] = digits[at - 1];
        digits[at] = (struct digit){d, outer[d], blocking->strides[d]};
    }
    return count;
}

/* Dense, without padding, and its digits come last dimension first: then blocks are only another way to say
 * row-major (1x1 images of 16 n channels, for example). */
static bool layout_is_canonical(const dnnl_memory_desc_t *desc)
{
    if (desc->format_kind != dnnl_blocked || desc->offset0 != 0 || desc->extra.flags != 0)
        return false;
    size_t elements = 1;
    for (int d = 0; d < desc->ndims; d++) {
        if (desc->dims[d] != desc->padded_dims[d])
            return false;
        elements *= (size_t)desc->dims[d];
    }
    if (dnnl_memory_desc_get_size(desc) != elements * sizeof(float))
        return false;
    struct digit digits[2 * DNNL_MAX_NDIMS];
    const int count = layout_digits(desc, digits);
    for (int i = 1; i < count; i++)
        if (digits[i].dim > digits[i - 1].dim)
            return false;
    return true;
}

bool layout_same(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b)
{
    return dnnl_memory_desc_equal(a, b) || (layout_is_canonical(a) && layout_is_canonical(b));
}

enum status layout_intern(struct onednn *onednn, const dnnl_memory_desc_t *desc, const void **token,
                          struct error *error)
{
    *token = NULL;
    if (layout_is_canonical(desc))
        return STATUS_OK;
    for (struct layout *layout = onednn->layouts; layout != NULL; layout = layout->next)
        if (dnnl_memory_desc_equal(&layout->desc, desc)) {
            *token = layout;
            return STATUS_OK;
        }
    struct layout *layout = calloc(1, sizeof *layout);
    if (layout == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a layout");
    layout->desc = *desc;
    layout->bytes = dnnl_memory_desc_get_size(desc);
    layout->next = onednn->layouts;
    onednn->layouts = layout;
    *token = layout;
    return STATUS_OK;
}

size_t layout_bytes(const struct shape *shape, enum dtype dtype, const void *token)
{
    if (token != NULL)
        return ((const struct layout *)token)->bytes;
    return shape_elements(shape) * dtype_bytes(dtype);
}

/* What the library compares too: not the struct's padding, nor the ends of arrays that count for nothing. */
uint64_t onednn_layout_hash(const void *token)
{
    const dnnl_memory_desc_t *desc = &((const struct layout *)token)->desc;
    const dnnl_blocking_desc_t *blocking = &desc->format_desc.blocking;
    assert(desc->format_kind == dnnl_blocked); // the only kind that is interned for a parameter
    uint64_t hash = fnv1a_number(FNV1A_BEGIN, (uint64_t)desc->ndims, 8);
    hash = fnv1a_number(hash, (uint64_t)desc->data_type, 8);
    hash = fnv1a_number(hash, (uint64_t)desc->offset0, 8);
    for (int d = 0; d < desc->ndims; d++) {
        hash = fnv1a_number(hash, (uint64_t)desc->dims[d], 8);
        hash = fnv1a_number(hash, (uint64_t)desc->padded_dims[d], 8);
        hash = fnv1a_number(hash, (uint64_t)desc->padded_offsets[d], 8);
        hash = fnv1a_number(hash, (uint64_t)blocking->strides[d], 8);
    }
    for (int b = 0; b < blocking->inner_nblks; b++) {
        hash = fnv1a_number(hash, (uint64_t)blocking->inner_idxs[b], 8);
        hash = fnv1a_number(hash, (uint64_t)blocking->inner_blks[b], 8);
    }
    return fnv1a_number(hash, desc->extra.flags, 8);
}

void layouts_free(struct onednn *onednn)
{
    while (onednn->layouts != NULL) {
        struct layout *layout = onednn->layouts;
        onednn->layouts = layout->next;
        free(layout);
    }
}

/* ---- scratch ---- */

enum status scratch_reserve(struct scratch *scratch, size_t bytes, struct error *error)
{
    if (bytes <= scratch->bytes)
        return STATUS_OK;
    void *data = arena_host.take(NULL, bytes);
    if (data == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu bytes of scratch", bytes);
    scratch_free(scratch);
    *scratch = (struct scratch){.data = data, .bytes = bytes};
    return STATUS_OK;
}

void scratch_free(struct scratch *scratch)
{
    if (scratch->data != NULL)
        arena_host.give(NULL, scratch->data, scratch->bytes);
    *scratch = (struct scratch){0};
}
