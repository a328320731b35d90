/* The distributed optimizer's own header. Private to the files below and their tests. Each file calls those
 * above it, never those below it:
 *
 *   optimizer_message.c  the forms of messages; a call that waits
 *   parameter_owner.c    on an owner: objects with parameters, and the values of one parameter
 *   optimizer_step.c     on an owner: a local optimizer gathers gradients, takes the norm or the step
 *   optimizer_round.c    on an owner: requests of one round are collected, then answered alike
 *   optimizer_owner.c    on an owner: a local optimizer is made, described and ended; class "optimizer"
 *   dist_owner.c         on an owner: class "parameter", METHOD_PARAMETERS, departures
 *   dist_parameter.c     where it is called: parameters of objects anywhere
 *   dist_optimizer.c     where it is called: one optimizer over all owners
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
        const struct local *holder; /* the optimizer that has the parameter, or NULL */
    } entries[];                    /* (count), in the params' order */
};

/* An object of class "parameter". */
struct owned_parameter {
    struct owned *owned;
    struct owned_entry *entry;
};

/* ---- the functions of the two classes ---- */

/* "parameter" */
enum {
    PARAMETER_INFO,      /* -> u8 name; u32 sizes, none for a scalar */
    PARAMETER_GET,       /* -> f32 values */
    PARAMETER_SET,       /* f32 values */
    PARAMETER_GRADIENT,  /* context -> f32 values */
    PARAMETER_OPTIMIZER, /* what enum new_word describes -> args[0]: number of the local optimizer */
    PARAMETER_FUNCTIONS
};

/* "optimizer" */
enum {
    LOCAL_INFO,       /* -> u64 words of enum new_word; u32 indices of its parameters */
    LOCAL_NORM,       /* context -> u64 square sums (doubles' bits), in the order of the indices */
    LOCAL_STEP,       /* context, u64 words of enum step_word -> args[0]: a participant said last */
    LOCAL_MOMENT_GET, /* args[2]: position of the parameter, args[3]: enum dist_moment -> f32 values */
    LOCAL_MOMENT_SET, /* the same, f32 values */
    LOCAL_STEPS_SET,  /* args[2] */
    LOCAL_FUNCTIONS
};

/* PARAMETER_OPTIMIZER describes a local optimizer by u64 words, of which some are doubles' bits; u64 numbers
 * of its parameters; u32 indices of the same parameters in the whole optimizer's list, ascending; u32
 * participants, ascending. */
enum new_word {
    NEW_KIND, /* enum optimizer_kind */
    NEW_MOMENTUM,
    NEW_BETA1,
    NEW_BETA2,
    NEW_EPSILON,
    NEW_LR,
    NEW_ASYNC,
    NEW_POSITION,     /* of this owner, in order of first appearance in the list */
    NEW_OWNERS,       /* how many there are */
    NEW_TOTAL,        /* parameters of the whole optimizer */
    NEW_FIRST_OWNER,  /* owner of the list's first parameter */
    NEW_FIRST_NUMBER, /* number of the list's first parameter: it identifies the optimizer */
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

/* Answers with nothing, or fails with *error. */
void request_finish(struct rpc_request *request, enum status status, const struct error *error);

/* Calls a function and waits. On STATUS_OK *out has a value, and is the caller's to release. */
enum status object_call(struct dist *dist, struct rref *rref, uint32_t function,
                        const struct rpc_message *message, struct future **out, struct error *error);

/* An owner has answered in a form that no owner of ours answers in: ends its session. STATUS_INVALID. */
enum status object_malformed(struct dist *dist, uint16_t owner, struct error *error);

/* Calls a function that answers with values, waits, and copies them. STATUS_INVALID: they are not `count`. */
enum status object_values(struct dist *dist, struct rref *rref, uint32_t function,
                          const struct rpc_message *message, float *values, size_t count,
                          struct error *error);

/* ---- parameter_owner.c ---- */

/* The object `number`, known already or not, with one more user. STATUS_INVALID: it has no parameters, or too
 * many; errors as rref_object_use. */
enum status owned_use(struct owned **out, struct dist_owner *owner, uint16_t source, uint64_t number,
                      struct error *error);
void owned_release(struct owned *owned);

/* A participant, and its request in the open round. */
struct participant {
    uint16_t worker;
    enum status gone; /* STATUS_OK: not gone. STATUS_PEER_DIED; STATUS_SHUTDOWN: it has freed its optimizer */
    struct rpc_request *request; /* NULL: none (yet) */
    uint64_t context;
    uint64_t normed; /* the context of its last norm, which a step with clipping has to follow; 0: none */
    uint64_t words[STEP_WORDS];
};

/* STATUS_BUSY: all versions of the object's values have readers. */
enum status owned_may_change(const struct owned *owned, struct error *error);

/* The values of one parameter, its gradient in `context` (zeros where there is none), canonical float32.
 * STATUS_INVALID: `count` is not their number. */
enum status owned_parameter_get(const struct owned_parameter *parameter, float *values, size_t count,
                                struct error *error);
enum status owned_parameter_set(const struct owned_parameter *parameter, const float *values, size_t count,
                                struct error *error);
enum status owned_parameter_gradient(const struct owned_parameter *parameter, uint64_t context, float *values,
                                     size_t count, struct error *error);

size_t owned_parameter_elements(const struct owned_parameter *parameter);

/* Memory for the values of a parameter, for the length of one request. The caller frees it. STATUS_INVALID:
 * no message can carry so many; STATUS_NO_MEMORY. */
enum status owned_parameter_values(const struct owned_parameter *parameter, float **values,
                                   struct error *error);

/* The same, filled from a message's one flat float32 tensor. STATUS_INVALID: the message has another form, or
 * another number of values. */
enum status owned_parameter_take(const struct owned_parameter *parameter, const struct rpc_message *message,
                                 float **values, struct error *error);

/* Answers another worker's request with the values, or fails it with *error; frees `values`. A reply to this
 * worker itself would lend them (rpc.h) and cannot free them. So dist_parameter.c and dist_optimizer.c read
 * local values without a request, and a request of this worker fails with STATUS_INVALID. A reference
 * that came from a peer may be to a parameter of this worker. */
void owned_parameter_reply(const struct owned_parameter *parameter, struct rpc_request *request,
                           float *values, enum status status, const struct error *error);

/* ---- optimizer_step.c ---- */

/* A local optimizer's parameters of one object. */
struct group {
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

enum round { ROUND_NONE, ROUND_NORM, ROUND_STEP };

struct local {
    struct dist_owner *owner;
    struct local *next;
    uint64_t words[NEW_WORDS];
    uint32_t *indices;           /* (count) of its parameters, in the whole optimizer's list */
    struct local_entry *members; /* (count) */
    uint64_t *sums;       /* (count) square sums, doubles' bits: a reply within one worker is not copied */
    struct group *groups; /* (group_count) */
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

/* ---- optimizer_round.c ---- */

/* LOCAL_NORM and LOCAL_STEP: keep the request until the round is complete, or answer it. */
void local_norm(void *object, struct rpc_request *request, const struct rpc_message *message);
void local_step(void *object, struct rpc_request *request, const struct rpc_message *message);

/* A worker has died (STATUS_PEER_DIED), or has freed its optimizer (STATUS_SHUTDOWN). If it is a participant
 * of a round of all, the open round fails with that status, and so do all later ones. */
void local_worker_left(struct local *local, uint16_t worker, enum status why);

/* ---- optimizer_owner.c ---- */

/* PARAMETER_OPTIMIZER: answers `request`. */
void local_new(struct owned_parameter *first, struct rpc_request *request, const struct rpc_message *message);

/* The moment of the parameter at `position`. STATUS_INVALID: there is no such position or moment; `count` is
 * not the number of its values. */
enum status local_moment_get(const struct local *local, uint64_t position, uint64_t moment, float *values,
                             size_t count, struct error *error);

#endif
