/* A tensor's numbers on the host, in canonical order, float64 or int32: for tests of the operations. */
#ifndef TEST_VALUES_H
#define TEST_VALUES_H

#include "kernels/kernels.h"

struct values {
    struct shape shape;
    enum dtype dtype; /* DTYPE_F64: real; DTYPE_I32: whole */
    size_t count;     /* 0: no tensor */
    union {
        double *real;
        int32_t *whole;
        void *data;
    };
};

/* Zeroed memory of at least one element; ends the program when memory is exhausted. */
void *values_memory(size_t count, size_t size);

/* Zeros. values_free frees them and leaves "no tensor". */
struct values values_new(struct shape shape, enum dtype dtype);
void values_free(struct values *values);

/* Uniform in [-1, 1) and exact in float32, from the generator of test/kernels/policy/mlp_problem.h. */
struct values values_drawn(struct shape shape, uint64_t seed);

/* Makes a canonical tensor of the backend with these numbers. */
enum status values_upload(const struct values *values, struct backend *backend, struct arena *arena,
                          const char *name, struct tensor *out, struct error *error);

/* Reads the tensor's numbers, whatever its layout; allocates `out`. */
enum status values_download(struct values *out, struct backend *backend, const struct tensor *tensor,
                            struct error *error);

/* The largest difference between two tensors, relative to the largest value of `expected`; absolute where all
 * of `expected` is zero. Infinite when `got` has a value that is not finite, or another shape or dtype. *at
 * (if not NULL) is the element. */
double values_deviation(const struct values *expected, const struct values *got, size_t *at);

/* Whether both have the same bits. */
bool values_equal(const struct values *a, const struct values *b);

#endif
