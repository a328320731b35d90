/* Shapes and dtypes: counting and naming. Pure functions; any thread. */
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
