/* The messages of distributed autograd and of its optimizer: their arguments, the tensors in them, and the
 * memory in which other workers can read what is lent to them.
 *
 * message.context is the context in all of these. args are listed below; tensors stand in order.
 *   FORWARD       numbers (u64, when there are any), then the inputs that are present
 *     reply       the outputs
 *   BACKWARD      the gradients of the outputs that have one
 *     reply       the gradients of the wanted inputs that have one
 *   END_CONTEXT   nothing
 * Floating tensors travel as float32, int32 ones as WIRE_U32. A scalar travels with one dimension of 1, and a
 * bit in the args marks it. */
#ifndef WORKER_AUTOGRAD_DIST_MESSAGE_H
#define WORKER_AUTOGRAD_DIST_MESSAGE_H

#include "worker/autograd/dist_optimizer.h"
#include "worker/net/segment.h"

enum {
    /* FORWARD: args. */
    FORWARD_OBJECT = 0,
    FORWARD_FUNCTION,
    FORWARD_CALL,
    FORWARD_FLAGS, /* struct forward_flags */
    /* its reply */
    ANSWER_KEPT = 0, /* 1: the piece waits for BACKWARD */
    ANSWER_SCALARS,  /* bit i: output i is a scalar */
    /* BACKWARD, its reply */
    BACKWARD_CALL = 0,
    BACKWARD_OUTPUTS,    /* bit i: the gradient of output i is there */
    GRADIENT_INPUTS = 0, /* bit i: the gradient of input i is there */
};

/* FORWARD_FLAGS, as bits of one number. */
struct forward_flags {
    uint32_t depth;    /* 1: called by the root; bits 0..7 */
    bool trains;       /* bit 8 */
    uint32_t inputs;   /* given by the caller, absent ones included; bits 12..13 */
    uint32_t present;  /* mask; bits 16..18 */
    uint32_t wanted;   /* mask: inputs whose gradients are asked for; bits 20..22 */
    uint32_t scalars;  /* mask; bits 24..26 */
    uint32_t numbers;  /* bits 32..36 */
    uint32_t function; /* not in the flags: args[FORWARD_FUNCTION] */
};

/* Puts `tensor` into the message: where it lies when that will do (`in_place` false: never), else as a copy
 * in a block of `staging`, which is host memory (*block, else NULL). STATUS_INVALID: no message can carry it;
 * STATUS_NO_MEMORY. */
enum status message_put_tensor(struct tape *tape, struct arena *staging, const struct tensor *tensor,
                               bool in_place, struct rpc_message *message, void **block, struct error *error);

/* Tensor `index` of a message as a tensor in the tape's memory; one element is a scalar where `is_scalar`.
 * Floating values stay where they lie when they are lent and the tape can compute there. */
enum status message_take_tensor(struct tape *tape, struct arena *staging, const struct rpc_message *message,
                                uint32_t index, bool is_scalar, struct tensor *out, struct error *error);

/* Copies tensor `index` into `to`, whose memory is the tape's. STATUS_INVALID: another shape. */
enum status message_copy_tensor(struct tape *tape, struct arena *staging, const struct rpc_message *message,
                                uint32_t index, struct tensor *to, struct error *error);

/* float32 or int32, of a size that a tensor may have; one element where `is_scalar`. */
bool wire_tensor_is_sound(const struct wire_tensor *tensor, bool is_scalar);
bool message_is_large(const struct rpc_message *message); /* a tensor of it may be lent */

/* Appends a tensor of rank 1. count >= 1. */
void message_add(struct rpc_message *message, enum wire_dtype dtype, const void *data, uint32_t count);

/* The number of elements of tensor `index` when it is of rank 1 and of that type, else 0. */
uint32_t message_flat(const struct rpc_message *message, uint32_t index, enum wire_dtype dtype);

uint64_t flags_pack(const struct forward_flags *flags);
/* False: these are no flags, or not of these tensors. */
bool flags_unpack(const struct rpc_message *message, struct forward_flags *flags);

/* ---- memory that other workers can read ---- */

struct dist_memory {
    struct segment *segment; /* the outbox. NULL: there is none */
    bool is_taken;           /* the segment, by the heap */
    struct arena *heap;
};

/* `memory` keeps its address. After a failure, memory_free. */
enum status memory_new(struct dist_memory *memory, struct segment *segment, struct error *error);
void memory_free(struct dist_memory *memory);

/* Chunks in the outbox; in host memory where there is none, or it is full. */
struct arena_source memory_source(struct dist_memory *memory);

/* ---- the optimizer: the functions of its two classes ----
 * A participant (dist_optimizer_participant.c) sends them, an owner (dist_optimizer_owner.c) answers. */

/* "parameter". args[VALUES_WHICH]: enum dist_values */
enum {
    PARAMETER_OPTIMIZER, /* struct optimizer_words and lists, see below -> args[0]: number of the local
                            optimizer */
    PARAMETER_GET,       /* -> f32 values */
    PARAMETER_SET,       /* f32 values */
    PARAMETER_FUNCTIONS
};
enum { VALUES_WHICH = 2 };

/* "optimizer" */
enum {
    LOCAL_NORM,      /* context -> u64 square sums (doubles); u32 indices of the same parameters */
    LOCAL_STEP,      /* context, struct step_words -> args[0]: a participant said last */
    LOCAL_STEPS_SET, /* args[2] */
    LOCAL_FUNCTIONS
};

/* PARAMETER_OPTIMIZER describes a local optimizer by struct optimizer_words; u64 numbers of its parameters;
 * u32 indices of the same parameters in the whole optimizer's list; u32 participants, ascending. Structs
 * travel as u64 words. */
struct optimizer_words {
    uint64_t kind; /* enum optimizer_kind */
    double momentum, beta1, beta2, epsilon, lr;
    uint64_t async;
};
struct step_words {
    double lr, max_norm, norm;
    uint64_t last;
};
enum { OPTIMIZER_WORDS = 7, STEP_WORDS = 4 };
_Static_assert(sizeof(struct optimizer_words) == OPTIMIZER_WORDS * sizeof(uint64_t), "words alone");
_Static_assert(sizeof(struct step_words) == STEP_WORDS * sizeof(uint64_t), "words alone");

/* Reads the values of a parameter of this worker where they are. `parameter` is its object (rref_local).
 * STATUS_INVALID: the parameter has no such values, or `count` is not their number. In
 * dist_optimizer_owner.c. */
enum status parameter_read(const void *parameter, uint64_t which, float *values, size_t count,
                           struct error *error);

#endif
