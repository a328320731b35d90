/* Counts, names and checks shapes, dtypes and tensors. Any thread. */
#include "kernels/tensor.h"

#include <stdio.h>
#include <string.h>

size_t shape_elements(const struct shape *shape)
{
    if (shape->rank > SHAPE_RANK_MAX)
        return 0;
    uint64_t elements = 1; // at most 2^31 before each product, so 64 bits hold it
    for (uint32_t i = 0; i < shape->rank; i++) {
        elements *= shape->size[i];
        if (elements == 0 || elements > SHAPE_ELEMENTS_MAX)
            return 0;
    }
    return (size_t)elements;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->rank != b->rank || a->rank > SHAPE_RANK_MAX)
        return false;
    return memcmp(a->size, b->size, a->rank * sizeof *a->size) == 0;
}

const char *shape_text(const struct shape *shape, char text[SHAPE_TEXT_BYTES])
{
    if (shape->rank == 0 || shape->rank > SHAPE_RANK_MAX) {
        snprintf(text, SHAPE_TEXT_BYTES, shape->rank == 0 ? "scalar" : "rank %u", shape->rank);
        return text;
    }
    int length = 0;
    for (uint32_t i = 0; i < shape->rank; i++)
        length +=
            snprintf(text + length, SHAPE_TEXT_BYTES - (size_t)length, i == 0 ? "%u" : "x%u", shape->size[i]);
    return text;
}

size_t dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F64 ? sizeof(double) : 4;
}

const char *dtype_name(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return "float32";
    case DTYPE_F64:
        return "float64";
    case DTYPE_I32:
        return "int32";
    }
    return "unknown dtype";
}

/* ---- tensors ---- */

const char *tensor_text(const char *role, const struct tensor *tensor, char text[TENSOR_TEXT_BYTES])
{
    char shape[SHAPE_TEXT_BYTES];
    const char *name = tensor->name;
    if (name == NULL)
        snprintf(text, TENSOR_TEXT_BYTES, "%.30s of shape %s", role, shape_text(&tensor->shape, shape));
    else
        snprintf(text, TENSOR_TEXT_BYTES, "%.30s \"%.80s\" of shape %s", role, name,
                 shape_text(&tensor->shape, shape));
    return text;
}

static bool dtype_known(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F64 || dtype == DTYPE_I32;
}

static const char *shape_fault(const struct shape *shape)
{
    if (shape->rank > SHAPE_RANK_MAX)
        return "expected at most rank 4";
    for (uint32_t i = 0; i < shape->rank; i++)
        if (shape->size[i] == 0)
            return "expected no size to be 0";
    return shape_elements(shape) == 0 ? "expected at most 2147483647 elements" : NULL;
}

struct tensor tensor_part(const struct tensor *whole, size_t first, struct shape shape)
{
    struct tensor part = *whole;
    const size_t bytes = dtype_bytes(whole->dtype);
    part.shape = shape;
    part.bytes = shape_elements(&shape) * bytes;
    part.data = (char *)whole->data + first * bytes;
    return part;
}

enum status tensor_new(struct tensor *out, struct arena *arena, struct shape shape, enum dtype dtype,
                       const char *name, struct error *error)
{
    struct tensor tensor = {.shape = shape, .dtype = dtype, .name = name};
    char text[TENSOR_TEXT_BYTES];
    const char *fault = shape_fault(&shape);
    if (fault != NULL)
        return error_set(error, STATUS_INVALID, "new tensor: %s: %s", tensor_text("tensor", &tensor, text),
                         fault);
    if (!dtype_known(dtype))
        return error_set(error, STATUS_INVALID, "new tensor: %s has the unknown dtype %d",
                         tensor_text("tensor", &tensor, text), (int)dtype);
    tensor.bytes = shape_elements(&shape) * dtype_bytes(dtype);
    tensor.data = arena_take(arena, tensor.bytes);
    if (tensor.data == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the %zu bytes of %s", tensor.bytes,
                         tensor_text("tensor", &tensor, text));
    *out = tensor;
    return STATUS_OK;
}
