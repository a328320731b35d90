/* Numbers of a tensor on the host, in canonical order, for tests of the operations: float64 or int32. */
#ifndef TEST_VALUES_H
#define TEST_VALUES_H

#include "kernels/kernels.h"

struct values {
    struct shape shape;
    enum dtype dtype; /* DTYPE_F64: real; DTYPE_I32: whole */
    size_t count;     /* 0: there is no such tensor */
    union {
        double *real;
        int32_t *whole;
        void *data;
    };
};

/* Zeroed memory, of at least one element; ends the program when there is none. */
void *values_memory(size_t count, size_t size);

/* Zeros. Freed by values_free, which leaves "no such tensor" behind. */
struct values values_new(struct shape shape, enum dtype dtype);
void values_free(struct values *values);

/* Uniform in [-1, 1) and exact in float32, by the generator of test/kernels/policy/mlp_problem.h from `seed`.
 */
struct values values_drawn(struct shape shape, uint64_t seed);

/* A new canonical tensor of the backend with these numbers. */
enum status values_upload(const struct values *values, struct backend *backend, struct arena *arena,
                          const char *name, struct tensor *out, struct error *error);

/* The tensor's numbers, whatever its layout; allocates `out`. */
enum status values_download(struct values *out, struct backend *backend, const struct tensor *tensor,
                            struct error *error);

/* The largest difference of two of one shape, relative to the largest of `expected`, or by itself where all
 * of `expected` is zero. Infinite when `got` is not finite somewhere, or has another shape or dtype. *at
 * (if not NULL) is the element. */
double values_deviation(const struct values *expected, const struct values *got, size_t *at);

/* The same bits. */
bool values_equal(const struct values *a, const struct values *b);

#endif
