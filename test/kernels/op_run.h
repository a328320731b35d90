/* Runs one row of the table on a backend: numbers in, numbers out. */
#ifndef TEST_KERNELS_OP_RUN_H
#define TEST_KERNELS_OP_RUN_H

#include "test/kernels/op_cases.h"

/* The numbers of a row: inputs, and an output gradient for each output that takes one. */
struct op_problem {
    const struct op_case *op_case;
    struct values in[OP_INPUTS_MAX], dout[OP_OUTPUTS_MAX];
    struct shape out_shape[OP_OUTPUTS_MAX]; /* of all outputs that there are */
    enum dtype out_dtype[OP_OUTPUTS_MAX];
};

/* What is asked for. */
struct op_wish {
    uint32_t din, dout; /* bits of inputs and outputs; no din, no backward */
    bool preset;        /* gradients and offered outputs into canonical memory that is there, full of NaN */
    bool inference;     /* op_call.keep false; no backward */
    bool forget;        /* what op_rule says that the backward does not read is full of NaN by then */
};

struct op_answer {
    struct values out[OP_OUTPUTS_MAX], din[OP_INPUTS_MAX];
    double out_bound, din_bound[OP_INPUTS_MAX]; /* op_bound_… of this call */
};

/* Draws the problem. `ref` computes where a ReLU has its kink: an output gradient is zero there (within a
 * hundredth of the largest), since rounding decides on which side a value falls. Where the row has ties, sums
 * are exact and nothing is left out. Ends the program when ref fails. */
void op_problem_init(struct op_problem *problem, const struct op_case *op_case, struct backend *ref);
void op_problem_fini(struct op_problem *problem);

/* Everything the row has: all gradients, of all output gradients. */
struct op_wish op_wish_all(const struct op_problem *problem);

/* One forward, and a backward if one is wished for; resets the arena first. `answer` is zero or of an earlier
 * run, and holds what the wish names; to be freed by op_answer_fini. */
enum status op_run(struct op_answer *answer, const struct op_problem *problem, const struct op_wish *wish,
                   struct backend *backend, struct arena *arena, struct error *error);
void op_answer_fini(struct op_answer *answer);

/* The same without downloads: a call with its tensors, to be used again and again. Not to be copied. */
struct op_stage {
    struct op_call call;
    struct tensor in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX], dout[OP_OUTPUTS_MAX], din[OP_INPUTS_MAX];
};

/* Points the call at the tensors that the row has; in[] are the caller's to fill. keep is true, nothing is
 * wished for yet. */
void op_stage_init(struct op_stage *stage, const struct op_case *op_case, struct arena *arena);

#endif
