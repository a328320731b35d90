/* A plan and its builder; private to plan.c and builder.c. onednn.h says what they are for. */
#ifndef KERNELS_ONEDNN_PLAN_H
#define KERNELS_ONEDNN_PLAN_H

#include "kernels/onednn/onednn.h"

enum {
    PLAN_SLOTS_MAX = 32,
    PLAN_STEPS_MAX = 16,
    PLAN_ARGUMENTS_MAX = 12,
    PLAN_DESCRIPTORS_MAX = 16,
    PLAN_TENSORS = 2 * (OP_INPUTS_MAX + OP_OUTPUTS_MAX),
    PLANS_MAX = 1024, /* then all are forgotten: shapes that come and go must not fill the memory */
};

/* All that a plan depends on, as numbers: operation and flags, attributes, the tensors that are present and
 * have memory, the inputs' shapes, and all layouts. */
enum {
    KEY_OPERATION,
    KEY_KERNEL,
    KEY_STRIDE,
    KEY_PADDING,
    KEY_EPSILON,
    KEY_PRESENT, /* bit t: tensor t is there; in, out, dout, din in this order */
    KEY_GIVEN,   /* bit t: tensor t has memory */
    KEY_SHAPES,  /* three words each */
    KEY_LAYOUTS = KEY_SHAPES + 3 * OP_INPUTS_MAX,
    KEY_WORDS = KEY_LAYOUTS + PLAN_TENSORS
};
struct plan_key {
    uint64_t word[KEY_WORDS];
};

/* One tensor or piece of scratch as the library sees it. */
struct plan_slot {
    enum place place;
    uint32_t index; /* in the call's array */
    size_t offset;  /* of scratch */
    size_t bytes;
    const void *token; /* of an output, for when it is allocated */
    dnnl_memory_t memory;
};

struct plan_step {
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[PLAN_ARGUMENTS_MAX];
};

struct plan {
    struct plan *next;
    struct plan_key key;
    uint32_t slots, steps;
    struct plan_slot slot[PLAN_SLOTS_MAX];
    struct plan_step step[PLAN_STEPS_MAX];
    size_t copies_bytes, pad_bytes;
    uint32_t wanted_input; /* the input that builder_want named */
    const void *wanted;    /* the layout in which that input would be fastest; NULL: none was named */
};

/* A copy into the caller's layout, made after all steps. */
struct builder_late {
    int from, to;
};

struct builder {
    struct onednn *onednn;
    struct plan *plan;
    const struct op_call *call;
    const char *name;
    const struct shape *shape;
    enum status status;
    struct error *error;
    uint32_t descriptors, lates;
    dnnl_primitive_desc_t descriptor[PLAN_DESCRIPTORS_MAX];
    dnnl_memory_desc_t slot[PLAN_SLOTS_MAX]; /* how each slot lies */
    struct builder_late late[OP_INPUTS_MAX];
    int binding[PLAN_STEPS_MAX][PLAN_ARGUMENTS_MAX]; /* the slot of each argument of each step */
};

/* Ends a build: copies into the caller's layouts, all memory objects, scratch for the whole. */
void builder_finish(struct builder *builder);

/* Gives back what only building needed. */
void builder_fini(struct builder *builder);

#endif
