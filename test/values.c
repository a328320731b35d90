/* Makes, moves and compares a tensor's numbers. */
#include "test/values.h"

#include "test/kernels/policy/mlp_problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *values_memory(size_t count, size_t size)
{
    void *memory = calloc(count == 0 ? 1 : count, size);
    if (memory == NULL) {
        fprintf(stderr, "no memory for a test's numbers\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

struct values values_new(struct shape shape, enum dtype dtype)
{
    struct values values = {.shape = shape, .dtype = dtype, .count = shape_elements(&shape)};
    values.data = values_memory(values.count, dtype_bytes(dtype));
    return values;
}

void values_free(struct values *values)
{
    free(values->data);
    *values = (struct values){0};
}

struct values values_drawn(struct shape shape, uint64_t seed)
{
    struct values values = values_new(shape, DTYPE_F64);
    uint64_t state = seed;
    for (size_t i = 0; i < values.count; i++)
        values.real[i] = (double)mlp_problem_number(&state);
    return values;
}

enum status values_upload(const struct values *values, struct backend *backend, struct arena *arena,
                          const char *name, struct tensor *out, struct error *error)
{
    const enum dtype dtype = values->dtype == DTYPE_F64 ? backend->ops->dtype : values->dtype;
    enum status status = tensor_new(out, arena, values->shape, dtype, name, error);
    if (status != STATUS_OK)
        return status;
    return backend_upload(backend, out, values->dtype, values->data, error);
}

enum status values_download(struct values *out, struct backend *backend, const struct tensor *tensor,
                            struct error *error)
{
    struct values values = values_new(tensor->shape, tensor->dtype == DTYPE_I32 ? DTYPE_I32 : DTYPE_F64);
    values_free(out);
    *out = values;
    return backend_download(backend, tensor, values.dtype, values.data, error);
}

static double number(const struct values *values, size_t i)
{
    return values->dtype == DTYPE_I32 ? (double)values->whole[i] : values->real[i];
}

double values_deviation(const struct values *expected, const struct values *got, size_t *at)
{
    double largest = 0, furthest = 0;
    size_t where = 0;
    if (expected->dtype != got->dtype || !shape_equal(&expected->shape, &got->shape))
        return INFINITY;
    for (size_t i = 0; i < expected->count; i++) {
        double difference = fabs(number(expected, i) - number(got, i));
        largest = fmax(largest, fabs(number(expected, i)));
        if (!(difference <= furthest)) {
            furthest = isfinite(difference) ? difference : INFINITY;
            where = i;
        }
        if (furthest == INFINITY)
            break;
    }
    if (at != NULL)
        *at = where;
    return largest > 0 ? furthest / largest : furthest;
}

bool values_equal(const struct values *a, const struct values *b)
{
    return a->count == b->count && a->dtype == b->dtype && shape_equal(&a->shape, &b->shape) &&
           (a->count == 0 || memcmp(a->data, b->data, a->count * dtype_bytes(a->dtype)) == 0);
}
