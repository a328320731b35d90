/* What the two sides of the distributed optimizer share: the functions of its two classes, and the forms of
 * their messages. A participant (dist_participant.c) sends them, an owner (dist_owner.c) answers. */
#ifndef WORKER_AUTOGRAD_OPTIMIZER_MESSAGE_H
#define WORKER_AUTOGRAD_OPTIMIZER_MESSAGE_H

#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_optimizer.h"

/* ---- the functions of the two classes ---- */

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
 * STATUS_INVALID: the parameter has no such values, or `count` is not their number. In dist_owner.c. */
enum status parameter_read(const void *parameter, uint64_t which, float *values, size_t count,
                           struct error *error);

#endif
