/* The one table of (operation, shapes, attributes): every operation of kernels/kernels.h in every form.
 *
 * It drives test_conformance (each backend against ref), test_gradients (ref against finite differences)
 * and bench_kernels (the rates of the models' shapes). The functions below give a row's data, and the
 * bound on a float32 backend's deviation. */
#ifndef TEST_KERNELS_OP_CASES_H
#define TEST_KERNELS_OP_CASES_H

#include "test/values.h"

/* What a row is for. */
enum {
    OP_CASE_CHECK = 1,  /* against ref */
    OP_CASE_DIFFER = 2, /* against finite differences, on ref */
    OP_CASE_TIME = 4,   /* in bench_kernels */
};

struct op_case {
    const char *name; /* "stem"; "" for a size that stands for nothing in particular */
    enum op op;
    unsigned use;
    bool ties; /* inputs of few distinct values, zeros among them: where kinks and equal maxima are met */
    struct op_attributes attributes;
    uint32_t absent; /* bit i: input i is not there */
    struct shape in[OP_INPUTS_MAX];
};

extern const struct op_case op_cases[];
extern const size_t op_cases_count;

enum { OP_CASE_TEXT_BYTES = 200 };

/* "conv2d stem: x 2x3x64x64, weight 64x3x7x7, stride 2x2, padding 3x3". Returns `text`. */
const char *op_case_text(const struct op_case *op_case, char text[OP_CASE_TEXT_BYTES]);

/* Whether input i is there; which inputs have a gradient here; which outputs take an output gradient. */
bool op_case_has(const struct op_case *op_case, uint32_t i);
uint32_t op_case_gradient(const struct op_case *op_case);
uint32_t op_case_outputs(const struct op_case *op_case);

/* Input i's numbers, by the generator of test/kernels/policy/mlp_problem.h: exact in float32, the same at
 * every call. Uniform in [-1, 1), but: variances in [0.5, 1.5), logits in [-4, 4), an LSTM's weights in ±1 /
 * sqrt(hidden), probabilities positive with sum 1, a max pool's input all different by at least 2 / elements,
 * indices in their range, a draw's rows as different as a rollout's. No tensor for one that is not there. */
struct values op_case_input(const struct op_case *op_case, uint32_t i);

/* ---- what follows from a call's shapes; `call` has been through op_forward ---- */

/* How far a float32 result may be off ref, relative to the largest element that ref has in that tensor:
 * of an output, or of input i's gradient. */
double op_bound_output(const struct op_call *call);
double op_bound_gradient(const struct op_call *call, uint32_t i);

/* Multiplications and additions of the operation's products, all wanted gradients together; 0 for an
 * operation whose rate is bytes. */
double op_flops(const struct op_call *call, bool backward);

/* Bytes of all tensors that the pass must read or write, each once. */
double op_bytes(const struct op_call *call, bool backward);

#endif
