/* The distributed optimizer's own header. Private to the files below and their tests. Each file calls those
 * above it, never those below it:
 *
 *   optimizer_message.c      the forms of messages; a call that waits
 *   parameter_owner.c        on an owner: objects with parameters, and the values of one parameter
 *   optimizer_owner_step.c   on an owner: a local optimizer gathers gradients, takes the norm or the step
 *   optimizer_owner_round.c  on an owner: requests of one round are collected, then answered alike
 *   optimizer_owner.c        on an owner: a local optimizer is made and ended; class "optimizer"
 *   dist_owner.c             on an owner: class "parameter", METHOD_PARAMETERS, departures
 *   dist_parameter.c         where it is called: parameters of objects anywhere
 *   dist_optimizer.c         where it is called: one optimizer over all owners, and the norm of all gradients
 *
 * An owner has one `struct owned` for each object whose parameters have been asked for. An object of class
 * "parameter" refers to it. A local optimizer keeps the parameters that it was made of, and so their objects.
 */
#ifndef WORKER_AUTOGRAD_OPTIMIZER_INTERNAL_H
#define WORKER_AUTOGRAD_OPTIMIZER_INTERNAL_H

#include "worker/autograd/dist_optimizer.h"
#include "worker/autograd/dist_versions.h"

struct local; /* a local optimizer: the part of a distributed one that lives on one owner */

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
    uint64_t number; /* the object's; in use as long as this exists */
    void *object;
    struct params *params;
    struct dist_versions *versions; /* NULL: its parameters have one version */
    uint32_t users;                 /* objects of class "parameter" */
    uint32_t count;                 /* of trained parameters */
    struct owned_entry {
        struct parameter *parameter;
        struct group *group; /* of the optimizer that has the parameter, or NULL */
    } entries[];             /* (count), in the params' order */
};

/* An object of class "parameter". */
struct owned_parameter {
    struct owned *owned;
    struct owned_entry *entry;
};

/* ---- the functions of the two classes ---- */

/* "parameter". args[VALUES_WHICH]: enum dist_values */
enum {
    PARAMETER_INFO,      /* -> u8 name; u32 sizes, none for a scalar */
    PARAMETER_GET,       /* context of a gradient -> f32 values */
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

/* ---- optimizer_message.c ---- */

/* Appends a tensor of rank 1. count >= 1. */
void message_add(struct rpc_message *message, enum wire_dtype dtype, const void *data, uint32_t count);

/* The number of elements of tensor `index` when it is of rank 1 and of that type, else 0. */
uint32_t message_flat(const struct rpc_message *message, uint32_t index, enum wire_dtype dtype);

uint64_t word_of_double(double value);
double double_of_word(uint64_t word);

/* Calls a function and waits. On STATUS_OK *out has a value, and is the caller's to release. */
enum status object_call(struct dist *dist, struct rref *rref, uint32_t function,
                        const struct rpc_message *message, struct future **out, struct error *error);

/* An owner has answered in a form that no owner of ours answers in: ends its session. STATUS_INVALID. */
enum status object_malformed(struct dist *dist, uint16_t owner, struct error *error);

/* ---- parameter_owner.c ---- */

/* The object `number`, known already or not, with one more user. STATUS_INVALID: it has no parameters, or too
 * many; errors as rref_object_use. */
enum status owned_use(struct owned **out, struct dist_owner *owner, uint16_t source, uint64_t number,
                      struct error *error);
void owned_release(struct owned *owned);

/* STATUS_BUSY: all versions of the object's values have readers. Values with one version may always change:
 * readers of those are not known here (dist_optimizer.h, "The round"). */
enum status owned_may_change(const struct owned *owned, struct error *error);

size_t owned_parameter_elements(const struct owned_parameter *parameter);

/* All values of one parameter, canonical float32. context: of DIST_GRADIENT. STATUS_INVALID: the parameter
 * has no such values. */
enum status owned_parameter_read(const struct owned_parameter *parameter, uint64_t which, uint64_t context,
                                 float *values, struct error *error);
enum status owned_parameter_write(const struct owned_parameter *parameter, uint64_t which,
                                  const float *values, struct error *error);

/* STATUS_INVALID: `count` is not the number of the parameter's values. */
enum status owned_parameter_check(const struct owned_parameter *parameter, size_t count, struct error *error);

/* ---- optimizer_owner_step.c ---- */

/* A local optimizer's parameters of one object. */
struct group {
    struct local *local;
    struct owned *owned;
    struct optimizer *optimizer;
    struct gradients *sum;  /* its own: of several contexts, or of some of the object's parameters; NULL: not
                               needed yet */
    struct gradients *used; /* of this step: `sum`, or a context's own */
    uint32_t members;
};

struct local_entry {
    struct owned_parameter *object; /* in use until the optimizer ends */
    uint64_t number;
    struct group *group;
};

/* A participant, and its request in the open round. */
struct participant {
    uint16_t worker;
    struct rpc_request *request; /* NULL: none (yet) */
    uint64_t context;
    uint64_t normed; /* the context of its last norm, which a step with clipping has to follow; 0: none */
    uint64_t words[STEP_WORDS];
};

enum round { ROUND_NONE, ROUND_NORM, ROUND_STEP };

struct local {
    struct dist_owner *owner;
    struct local *next;
    struct optimizer_settings settings;
    bool async;
    struct error ended;          /* not `async`: a participant has died, or has freed its optimizer */
    uint32_t *indices;           /* (count) of its parameters, in the whole optimizer's list */
    struct local_entry *members; /* (count) */
    uint64_t *sums;              /* (count) square sums, doubles' bits */
    struct group *groups;        /* (group_count) */
    struct participant *participants;
    uint32_t count, group_count, participant_count;
    enum round round;
    uint32_t waiting; /* participants with a request */
};

/* For the requests of `count` participants, in order of their numbers. The norm sets `sums`, and changes no
 * parameter and no moment. The caller answers the requests. */
enum status local_take_norm(struct local *local, const struct participant *participants, uint32_t count,
                            struct error *error);
enum status local_take_step(struct local *local, const struct participant *participants, uint32_t count,
                            struct error *error);

/* ---- optimizer_owner_round.c ---- */

/* LOCAL_NORM and LOCAL_STEP: keep the request until the round is complete, or answer it. */
void local_norm(void *object, struct rpc_request *request, const struct rpc_message *message);
void local_step(void *object, struct rpc_request *request, const struct rpc_message *message);

/* A worker has died (STATUS_PEER_DIED), or has freed its optimizer (STATUS_SHUTDOWN). If it is a participant
 * of a round of all, the open round fails with that status, and so do all later ones. */
void local_worker_left(struct local *local, uint16_t worker, enum status why);

/* ---- optimizer_owner.c ---- */

/* PARAMETER_OPTIMIZER: answers `request`. */
void local_new(struct owned_parameter *first, struct rpc_request *request, const struct rpc_message *message);

#endif
