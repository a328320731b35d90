/* What dist_parameter*.c and dist_optimizer*.c share: what an owner keeps of its parameters and optimizers,
 * and how callers and owners talk about them.
 *
 * An owner keeps one `struct owned` for each object whose parameters somebody has a reference to. Parameters
 * are small objects that point there; a local optimizer keeps the parameters that it was given (uses of their
 * objects), hence what they belong to. */
#ifndef WORKER_AUTOGRAD_DIST_OPTIMIZER_INTERNAL_H
#define WORKER_AUTOGRAD_DIST_OPTIMIZER_INTERNAL_H

#include "worker/autograd/dist_optimizer.h"
#include "worker/autograd/dist_versions.h"

struct local; // an optimizer's part on its owner

struct dist_owner {
    struct dist *dist;
    struct rpc *rpc;
    struct rrefs *rrefs;
    struct owned *owned;
    struct local *locals;
};

/* An object with parameters. */
struct owned {
    struct dist_owner *owner;
    struct owned *next;
    uint64_t number; // of the object, which is kept in use
    void *object;
    struct params *params;
    struct dist_versions *versions; // NULL: its parameters have one version
    uint32_t users;                 // objects of class "parameter"
    uint32_t count;                 // of trained parameters
    struct owned_entry {
        struct parameter *parameter;
        const struct local *holder; // the optimizer that has it, or NULL
    } entries[];                    // (count) in the params' order
};

/* What values of a parameter are kept in canonical form for the one who asked: a reply within one worker is
 * not copied. */
enum owned_values { VALUES_PARAMETER, VALUES_GRADIENT, VALUES_FIRST, VALUES_SECOND, VALUES_COUNT };

/* An object of class "parameter". */
struct owned_parameter {
    struct owned *owned;
    struct owned_entry *entry;
    float *values[VALUES_COUNT]; // NULL until they are asked for
};

/* Room for the values of kind `kind`. STATUS_INVALID: no message can carry so many; STATUS_NO_MEMORY. */
enum status owned_parameter_room(struct owned_parameter *parameter, enum owned_values kind, float **values,
                                 struct error *error);

/* Answers `request` with those values, for which there is room. */
void owned_parameter_reply(struct owned_parameter *parameter, enum owned_values kind,
                           struct rpc_request *request);

/* Copies a message's values there, out of its one flat float32 tensor. STATUS_INVALID: it has another form,
 * or another number of values. */
enum status owned_parameter_take(struct owned_parameter *parameter, enum owned_values kind,
                                 const struct rpc_message *message, struct error *error);

/* ---- the functions of the two classes ---- */

/* "parameter"; its value is what rref_to_here fetches. */
enum {
    PARAMETER_INFO,      /* -> u8 name; u32 sizes, none for a scalar */
    PARAMETER_SET,       /* args[OLDEST], f32 values */
    PARAMETER_GRADIENT,  /* context -> f32 values */
    PARAMETER_OPTIMIZER, /* what struct new_words says -> args[0]: number of the local optimizer */
    PARAMETER_FUNCTIONS
};

/* Which of args is the asker's dist_oldest: its older contexts end before any value is changed. */
enum { OLDEST = 2 };

/* "optimizer" */
enum {
    LOCAL_INFO,       /* -> u64 words of enum new_word; u32 indices of its parameters */
    LOCAL_NORM,       /* context -> u64 square sums, doubles' bits, in order of the indices */
    LOCAL_STEP,       /* context, args[OLDEST], u64 words of enum step_word -> args[0]: somebody said last */
    LOCAL_MOMENT_GET, /* args[2]: its parameter, args[3]: enum dist_moment -> f32 values */
    LOCAL_MOMENT_SET, /* the same, f32 values */
    LOCAL_STEPS_SET,  /* args[2] */
    LOCAL_FUNCTIONS
};

/* What a local optimizer is made of: u64 words, of which some are doubles' bits; u64 numbers of parameters
 * and u32 indices of theirs in the optimizer's list, as many and ascending; u32 participants, ascending. */
enum new_word {
    NEW_KIND, /* enum optimizer_kind */
    NEW_MOMENTUM,
    NEW_BETA1,
    NEW_BETA2,
    NEW_EPSILON,
    NEW_LR,
    NEW_ASYNC,
    NEW_POSITION,     /* of this owner in order of first appearance */
    NEW_OWNERS,       /* how many there are */
    NEW_TOTAL,        /* parameters of the whole optimizer */
    NEW_FIRST_OWNER,  /* of the list's first parameter, */
    NEW_FIRST_NUMBER, /* and its number: who has it is this optimizer and no other */
    NEW_WORDS
};

enum step_word { STEP_LR, STEP_MAX_NORM, STEP_NORM, STEP_LAST, STEP_WORDS };

/* ---- a local optimizer ---- */

/* What it has of one object. */
struct group {
    struct owned *owned;
    struct optimizer *optimizer;
    struct gradients *sum;  // its own: several contexts' gradients, or some of an object's; NULL until needed
    struct gradients *used; // of this step: `sum`, or a context's own
    uint32_t members;
};

struct local_entry {
    struct owned_parameter *object; // in use until the optimizer ends
    uint64_t number;
    struct group *group;
};

/* A participant, and what it has asked for in the open round. */
struct participant {
    uint16_t worker;
    enum status gone; // STATUS_PEER_DIED; STATUS_SHUTDOWN: it has freed its optimizer; or it is there
    struct rpc_request *request; // NULL: nothing (yet)
    uint64_t context;
    uint64_t normed; // the context of its last norm, which a step with clipping has to follow; 0: none
    uint64_t words[STEP_WORDS];
};

/* Can the object's values be changed, now that the contexts of `count` participants are through with them?
 * STATUS_BUSY says who is not. */
enum status owned_may_change(const struct owned *owned, const struct participant *participants,
                             uint32_t count, struct error *error);

enum round { ROUND_NONE, ROUND_NORM, ROUND_STEP };

struct local {
    struct dist_owner *owner;
    struct local *next;
    uint64_t words[NEW_WORDS];
    uint32_t *indices;           // (count) of its parameters, in the whole optimizer's list
    struct local_entry *members; // (count)
    uint64_t *sums;       // (count) square sums, doubles' bits: a reply within one worker is not copied
    struct group *groups; // (group_count)
    struct participant *participants;
    uint32_t count, group_count, participant_count;
    bool is_given; // to the one who asked for it: the reference that the owner made it with is released
    enum round round;
    uint32_t waiting; // participants with a request
};

/* PARAMETER_OPTIMIZER: answers `request`. */
void local_new(struct owned_parameter *first, struct rpc_request *request, const struct rpc_message *message);

/* LOCAL_NORM and LOCAL_STEP: keep the request until the round is full, or answer it. */
void local_norm(void *object, struct rpc_request *request, const struct rpc_message *message);
void local_step(void *object, struct rpc_request *request, const struct rpc_message *message);

/* A worker is gone (STATUS_PEER_DIED), or has freed its optimizer (STATUS_SHUTDOWN): a round that waits for
 * it fails with that, and so do all later ones. */
void local_worker_left(struct local *local, uint16_t worker, enum status why);

/* What `count` participants have asked for, in order of their numbers; they are answered by the caller.
 * `sums` is set; nothing else is changed, parameters and moments least of all. */
enum status local_take_norm(struct local *local, const struct participant *participants, uint32_t count,
                            struct error *error);
enum status local_take_step(struct local *local, const struct participant *participants, uint32_t count,
                            struct error *error);

/* ---- messages ---- */

/* One more tensor of rank 1. count >= 1. */
void message_add(struct rpc_message *message, enum wire_dtype dtype, const void *data, uint32_t count);

/* The number of elements of tensor `index` when it is of rank 1 and of that type, else 0. */
uint32_t message_flat(const struct rpc_message *message, uint32_t index, enum wire_dtype dtype);

uint64_t word_of_double(double value);
double double_of_word(uint64_t word);

/* Calls a function and waits. On STATUS_OK *out is the caller's to release, and has its value. */
enum status object_call(struct dist *dist, struct rref *rref, uint32_t function,
                        const struct rpc_message *message, struct future **out, struct error *error);

/* The value of a future has a form that no owner of ours answers with: ends that worker's session. */
enum status object_malformed(struct dist *dist, uint16_t owner, struct error *error);

/* Copies a reply's values out; releases the future. STATUS_INVALID: there are not `count`. */
enum status values_out(struct dist *dist, uint16_t owner, struct future *future, float *values, size_t count,
                       struct error *error);

#endif
