/* What the two sides of the distributed optimizer share: the functions of its two classes, and the forms of
 * their messages. A participant (dist_participant.c) sends them, an owner (dist_owner.c) answers. */
#ifndef WORKER_AUTOGRAD_OPTIMIZER_MESSAGE_H
#define WORKER_AUTOGRAD_OPTIMIZER_MESSAGE_H

#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_optimizer.h"

/* ---- the functions of the two classes ---- */

/* "parameter". args[VALUES_WHICH]: enum dist_values */
enum {
    PARAMETER_INFO,      /* -> u8 name; u32 sizes, none for a scalar */
    PARAMETER_GET,       /* -> f32 values */
    PARAMETER_SET,       /* f32 values */
    PARAMETER_OPTIMIZER, /* what enum new_word describes -> args[0]: number of the local optimizer */
    PARAMETER_FUNCTIONS
};
enum { VALUES_WHICH = 2 };

/* "optimizer" */
enum {
    LOCAL_NORM,      /* context -> u64 square sums (doubles' bits); u32 indices of the same parameters */
    LOCAL_STEP,      /* context, u64 words of enum step_word -> args[0]: a participant said last */
    LOCAL_STEPS_SET, /* args[2] */
    LOCAL_FUNCTIONS
};

/* PARAMETER_OPTIMIZER describes a local optimizer by u64 words, of which some are doubles' bits; u64 numbers
 * of its parameters; u32 indices of the same parameters in the whole optimizer's list; u32 participants,
 * ascending. */
enum new_word {
    NEW_KIND, /* enum optimizer_kind */
    NEW_MOMENTUM,
    NEW_BETA1,
    NEW_BETA2,
    NEW_EPSILON,
    NEW_LR,
    NEW_ASYNC,
    NEW_WORDS
};

enum step_word { STEP_LR, STEP_MAX_NORM, STEP_NORM, STEP_LAST, STEP_WORDS };

/* ---- tensors and words ---- */

uint64_t word_of_double(double value);
double double_of_word(uint64_t word);

/* ---- answers ---- */

/* Calls a function and waits. On STATUS_OK *out has a value, and is the caller's to release. */
enum status object_call(struct dist *dist, struct rref *rref, uint32_t function,
                        const struct rpc_message *message, struct future **out, struct error *error);

/* An owner has answered in a form that no owner of ours answers in: ends its session. STATUS_INVALID. */
enum status object_malformed(struct dist *dist, uint16_t owner, struct error *error);

/* Reads the values of a parameter of this worker where they are. `parameter` is its object (rref_local).
 * STATUS_INVALID: the parameter has no such values, or `count` is not their number. In dist_owner.c. */
enum status parameter_read_here(const void *parameter, uint64_t which, float *values, size_t count,
                                struct error *error);

#endif
