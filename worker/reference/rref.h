/* Remote references: objects that live on one worker and are used by others.
 *
 *     object      something that lives on one worker, its owner: a struct, with a class and a number
 *     class       what an object's kind can do: its constructor, its functions, its destructor
 *     reference   struct rref: all that one worker holds of one object. There is one for each object.
 *     handle      a pointer to a reference that some code holds. rref_release gives it back, once.
 *     use         what the owner counts for each worker that has a reference. To grant a use is to count it
 *                 and to tell the worker.
 *
 * This room may include worker/net. worker/autograd and worker/model_parallel include it. rref.c shows why an
 * object lives exactly as long as it is used.
 *
 * An object is made in one of two ways. Its class's constructor makes it on the owner, which this worker or
 * another has asked (rpc_remote). Or the owner hands in an object that it has already (rref_own). A worker
 * with a handle may call the object and pass the reference on. The owner uses its own objects the same way,
 * by calls to itself.
 *
 * The owner destroys an object at the end of the first turn in which no worker has a handle and no call of
 * the object is in progress. An object is never destroyed inside a call. So a function that answers a call,
 * or releases the last handle, may use the object until it returns.
 *
 * A worker that dies loses its references and its objects. References to those objects answer
 * STATUS_PEER_DIED from then on.
 *
 * All functions are for the thread that owns the rpc. Only rref_ask and rref_give block. The others return a
 * future where another worker must answer, for rpc_wait at a role's top level. */
#ifndef WORKER_REFERENCE_RREF_H
#define WORKER_REFERENCE_RREF_H

#include "worker/net/rpc.h"

struct rrefs; /* a worker's objects and references */
struct rref;  /* a reference; code holds handles of it */

/* A function of an object, called by METHOD_OBJECT. It answers `request` once, now or later, like any
 * handler. The object stays until the end of the turn that answers. args[0] and args[1] are this layer's.
 * args[2], args[3], context and tensors are the caller's. */
typedef void rref_function(void *object, struct rpc_request *request, const struct rpc_message *message);

/* One row of the table of classes. Objects of other classes cannot be created or called. */
struct rref_class {
    const char *name; /* "embedding"; at most RREF_NAME_BYTES */
    /* NULL: only the owner makes such objects (rref_own). `arguments` are valid during the call.
     * STATUS_INVALID: the arguments do not fit; the sentence reaches the worker that asked. */
    enum status (*create)(void *context, const struct rref_class *class, const struct rpc_message *arguments,
                          void **object, struct error *error);
    void (*destroy)(void *object);
    /* May be NULL. `worker` has released its last handle; the object may have other users. Not called when a
     * worker dies (rpc_on_left). */
    void (*released)(void *object, uint16_t worker);
    rref_function *const *functions;
    uint32_t function_count;
    const void *extension; /* for the layer above (dist.h), or NULL */
};

enum { RREF_NAME_BYTES = 64 };

struct rrefs_config {
    struct rpc *rpc; /* methods and listeners are added to it; freed after the rrefs */
    const struct rref_class *const *classes; /* kept */
    size_t class_count;
    uint32_t objects_max; /* on this worker, with those to be destroyed in this turn. A worker that asks for
                             one more gets STATUS_BUSY. */
    uint32_t references_max; /* of this worker, to objects of all workers */
    void *context;           /* for constructors and `taken` */
    /* A reference has come from another worker (rref_share with `tag`). `rref` is a handle, which this worker
     * releases. NULL: references are refused. */
    void (*taken)(void *context, uint16_t from, uint64_t tag, struct rref *rref);
};

enum status rrefs_new(struct rrefs **out, const struct rrefs_config *config, struct error *error);

/* Destroys the objects, the newest first, and frees everything, unreleased references included: no handle is
 * valid any more, and no turn may follow. NULL is allowed. */
void rrefs_free(struct rrefs *rrefs);

/* ---- making ---- */

/* Creates an object of class `name` on `worker` (may be this one). On STATUS_OK *out is a handle. Its
 * reference is ready when the owner has answered (rref_ready). The constructor gets `arguments`: tensors[1..]
 * and args[1..3]. args[0] and tensors[0] must be empty (asserted). So tensor_count is 0, or one more than
 * there are tensors. NULL: no arguments. Errors: as rpc_call_async; STATUS_INVALID (the name's length),
 * STATUS_BUSY (references_max). rref_ready tells later failures: STATUS_NOT_FOUND (names the class and the
 * known ones), STATUS_BUSY (objects_max), or the constructor's. */
enum status rpc_remote(struct rrefs *rrefs, uint16_t worker, const char *name,
                       const struct rpc_message *arguments, struct rref **out, struct error *error);

/* A handle of an object that is here already. From now on the object is destroyed when nobody uses it. The
 * class need not be in the table. STATUS_BUSY: the object stays the caller's. */
enum status rref_own(struct rrefs *rrefs, const struct rref_class *class, void *object, struct rref **out,
                     struct error *error);

/* STATUS_OK. STATUS_AGAIN: the owner has not answered yet. Otherwise: why there is no such object. */
enum status rref_ready(const struct rref *rref, struct error *error);

/* The same, with STATUS_BUSY and a sentence while the owner has not answered. */
enum status rref_check_ready(const struct rref *rref, struct error *error);

/* Another handle of the same reference. Sends nothing. */
struct rref *rref_copy(struct rref *rref);

/* Gives a handle back. The last one ends the reference, and the owner is told. NULL is allowed. */
void rref_release(struct rref *rref);

/* ---- using: STATUS_BUSY while the reference is not ready; STATUS_PEER_DIED when the owner is gone ---- */

uint16_t rref_owner(const struct rref *rref);
/* The owner's number for the object, never used again; 0: not ready. */
uint64_t rref_object(const struct rref *rref);

/* By this worker's table. NULL: not known. */
const struct rref_class *rref_class_of(const struct rref *rref);

/* The object itself where it lives on this worker, else NULL. */
void *rref_local(const struct rref *rref);

/* Calls function `function` of the object. Of `message`, args[2], args[3], context and tensors travel; NULL:
 * an empty one. The object's own failures: STATUS_NOT_FOUND (freed), STATUS_INVALID (no such function; names
 * the class). */
enum status rref_call(struct rref *rref, uint32_t function, const struct rpc_message *message,
                      struct monotime deadline, struct future **out, struct error *error);

/* rref_call and rpc_wait in one, for a role's top level: blocks as rpc_call. On STATUS_OK *out holds the
 * answer until it is released, otherwise *out is NULL. `out` may be NULL. */
enum status rref_ask(struct rref *rref, uint32_t function, const struct rpc_message *message,
                     struct future **out, struct error *error);

/* Passes the reference to `worker` (may be this one), which gets a handle by its `taken`, with `tag`. The
 * future is done when `worker` has the handle. This handle stays the caller's, and may be released at once.
 * STATUS_PERMISSION: `worker` takes no references; STATUS_BUSY: it has references_max. */
enum status rref_share(struct rref *rref, uint16_t worker, uint64_t tag, struct future **out,
                       struct error *error);

/* rref_share and rpc_wait in one, for a role's top level. */
enum status rref_give(struct rref *rref, uint16_t worker, uint64_t tag, struct error *error);

/* ---- references in a reply ----
 * A function may answer with new objects. It grants the caller a use of each, and answers with the numbers.
 * The caller accepts the numbers. Such a call has no deadline: a reply that came too late would carry uses
 * that nobody gives back. */

/* On the owner: makes `object` an object of this room, and grants a use of it to the caller of `request`. The
 * number must be in the answer, or be revoked when the request fails. A caller that is gone gets no use.
 * STATUS_BUSY (objects_max), STATUS_NO_MEMORY: the object stays the function's. */
enum status rref_grant(struct rrefs *rrefs, const struct rref_class *class, void *object,
                       const struct rpc_request *request, uint64_t *number, struct error *error);
void rref_revoke(struct rrefs *rrefs, uint64_t number, const struct rpc_request *request);

/* On the caller: a handle for the use that `owner` has granted. `class` may be NULL. STATUS_BUSY
 * (references_max), STATUS_NO_MEMORY: the use is given back. STATUS_PEER_DIED: the owner has died since. */
enum status rref_accept(struct rrefs *rrefs, uint16_t owner, uint64_t object, const struct rref_class *class,
                        struct rref **out, struct error *error);

/* ---- objects, for the layer above ---- */

/* This worker's object `number`, for a call of `worker`. STATUS_NOT_FOUND names it ("object 7 of worker 0 was
 * freed", "… does not exist"); STATUS_PERMISSION: `worker` holds no reference. Keeps the object until
 * rref_object_done, which comes once for each use. */
enum status rref_object_use(struct rrefs *rrefs, uint16_t worker, uint64_t number, void **object,
                            const struct rref_class **class, struct error *error);
void rref_object_done(struct rrefs *rrefs, uint64_t number);

/* Calls `destroyed` just before an object of this worker is destroyed, so that the layer above frees what it
 * keeps for the object (tapes, gradients). NULL: no more. */
void rrefs_on_destroy(struct rrefs *rrefs, void (*destroyed)(void *context, void *object), void *context);

/* ---- counting ---- */

struct rref_counts {
    uint32_t objects;    /* that live here */
    uint32_t references; /* of this worker, to objects anywhere, its own included */
    uint32_t users;      /* references of other workers to objects here */
};
void rrefs_counts(const struct rrefs *rrefs, struct rref_counts *counts);

/* References of worker `worker` to objects here. */
uint32_t rrefs_of_peer(const struct rrefs *rrefs, uint16_t worker);

#endif
