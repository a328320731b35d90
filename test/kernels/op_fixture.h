/* The oracle, an arena and tensors on it, for tests that call operations directly. A checked fixture's two
 * halves open and close it. */
#ifndef TEST_KERNELS_OP_FIXTURE_H
#define TEST_KERNELS_OP_FIXTURE_H

#include "test/oracle/ref.h"

extern struct op_fixture {
    struct backend *backend; /* ref */
    struct arena *arena;     /* host memory, poisoned */
    struct error error;      /* of the last call below */
} op_fixture;

void op_fixture_open(void);
void op_fixture_close(void);

/* Tensors in the arena that hold `values` (NULL: zeros), in the order of the shape. */
struct tensor op_fixture_doubles(struct shape shape, const char *name, const double *values);
struct tensor op_fixture_integers(struct shape shape, const char *name, const int32_t *values);

/* A call's tensors. Inputs are named "in0", "in1", … */
struct described {
    struct op_call call;
    struct tensor in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX], dout[OP_OUTPUTS_MAX], din[OP_INPUTS_MAX];
};

/* Fills `d`, which is zero: the inputs from words, one each: a shape ("3x5"), "()" for a scalar, "-" for
 * none; with "i" in front int32. Zeros, or, where not `real`, they only pretend to have memory, so that no
 * size is too large. The call has the fixture's arena and all of its rule's outputs, and keeps. */
void op_fixture_describe(struct described *d, enum op op, const char *shapes, bool real);

/* op_forward and op_backward of `call`, whose arena is set; fails the test when the call fails. */
void op_fixture_forward(struct op_call *call);
void op_fixture_backward(struct op_call *call);

/* Fails the test unless `status` is STATUS_INVALID and op_fixture.error holds all of `first` and `second`. */
void op_fixture_refused(enum status status, const char *first, const char *second);

/* Element `index` of a tensor of doubles. */
double op_fixture_at(const struct tensor *tensor, size_t index);

#endif
