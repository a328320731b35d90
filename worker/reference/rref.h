/* Remote references: objects that live on one worker and are used by others.
 *
 * An object is made by its class's constructor, on the worker that asked or on another (rpc_remote), or is
 * handed in by its owner (rref_own). Whoever holds a `struct rref` may call it, fetch its value, or pass the
 * reference on. The owner destroys the object after its last user; a worker that dies takes its references
 * along, and its objects: references to those tell STATUS_PEER_DIED from then on.
 *
 * The owner of an object calls it the same way as everybody else does (rpc.h: calls to oneself).
 *
 * An object is destroyed at the end of a turn, when no worker has a handle and no call on it is in progress;
 * never inside of anything else. So whoever answers a call on an object, or releases its last handle, may use
 * the object until it returns. The argument why nobody is ever without the object that he holds, in whatever
 * order messages arrive, opens rref.c.
 *
 * All functions are for the thread that owns the rpc; none blocks. Where something has to come from another
 * worker a future says when (rpc_wait at a role's top level, future_then elsewhere). */
#ifndef WORKER_REFERENCE_RREF_H
#define WORKER_REFERENCE_RREF_H

#include "worker/net/rpc.h"

struct rrefs; /* what a worker knows: its objects, and its references */
struct rref;  /* one reference, held by this worker; each handle is released once */

/* A function of an object, called by METHOD_OBJECT. It answers `request` once, now or later, as any handler;
 * the object stays until the end of the turn in which it has. args[0] and args[1] are the layer's; args[2],
 * args[3], context and tensors are the caller's. */
typedef void rref_function(void *object, struct rpc_request *request, const struct rpc_message *message);

/* One row of the table of classes: what is not in it cannot be created or called. */
struct rref_class {
    const char *name; /* "embedding"; at most RREF_NAME_BYTES */
    /* NULL: only its owner makes it (rref_own). `arguments` are valid during the call. What cannot be made of
     * them is STATUS_INVALID with a sentence, which reaches the one who asked. */
    enum status (*create)(void *context, uint16_t creator, const struct rpc_message *arguments, void **object,
                          struct error *error);
    void (*destroy)(void *object);
    /* May be NULL. `worker` has given back its last use of the object, maybe the last of all. Its death is
     * not told so (rpc_on_left). */
    void (*released)(void *object, uint16_t worker);
    rref_function *const *functions;
    uint32_t function_count;
    const void *extension; /* of the layer above (dist.h), or NULL */
};

enum { RREF_NAME_BYTES = 64, RREF_LISTENERS_MAX = 4 };

struct rrefs_config {
    struct rpc *rpc; /* methods and listeners are added to it; freed after the rrefs */
    const struct rref_class *const *classes; /* kept */
    size_t class_count;
    uint32_t objects_max;    /* of this worker, this turn's last ones included; one more is STATUS_BUSY at the
                                one who asks */
    uint32_t references_max; /* that it holds, to objects of all workers together; as many again may be on
                                their way back to their owners */
    void *context;           /* for constructors and `taken` */
    /* A reference came from another worker (rref_share with `tag`): counted by its owner already, and this
     * worker's to release. NULL: references are refused. */
    void (*taken)(void *context, uint16_t from, uint64_t tag, struct rref *rref);
};

enum status rrefs_new(struct rrefs **out, const struct rrefs_config *config, struct error *error);

/* Destroys the objects, the newest first, and frees everything, references that were not released included:
 * no handle is valid any more, and no turn may follow. NULL is allowed. */
void rrefs_free(struct rrefs *rrefs);

/* ---- making ---- */

/* Creates an object of class `name` on `worker` (this one too). On STATUS_OK *out is a reference, not ready
 * before its owner has answered (rref_ready). `arguments`, as the constructor will see them: tensors[1..] and
 * args[1..3] are the constructor's; args[0] and tensors[0], which hold nothing (asserted), are the layer's.
 * So tensor_count is 0, or one more than there are tensors. NULL: none. Errors: as rpc_call_async;
 * STATUS_INVALID (the name's length), STATUS_BUSY (references_max). What fails later is rref_ready's:
 * STATUS_NOT_FOUND names the class and those there are, STATUS_BUSY (objects_max), or the constructor's. */
enum status rpc_remote(struct rrefs *rrefs, uint16_t worker, const char *name,
                       const struct rpc_message *arguments, struct rref **out, struct error *error);

/* A reference to an object that is here already; from now on it is destroyed after its last user. The class
 * need not be in the table. STATUS_BUSY: it stays the caller's. */
enum status rref_own(struct rrefs *rrefs, const struct rref_class *class, void *object, struct rref **out,
                     struct error *error);

/* STATUS_OK; STATUS_AGAIN while the owner has not answered; else why there is no such object (any more). */
enum status rref_ready(const struct rref *rref, struct error *error);

/* Another handle of the same reference, on this worker; no message. */
struct rref *rref_copy(struct rref *rref);

/* Gives a handle back; with the last one, and when all that was sent for the reference has been answered, the
 * owner is told. NULL is allowed. */
void rref_release(struct rref *rref);

/* ---- using: STATUS_BUSY while it is not ready; STATUS_PEER_DIED when its owner is gone ---- */

uint16_t rref_owner(const struct rref *rref);
uint64_t rref_object(const struct rref *rref); /* the owner's number for it, unique for ever; 0: not ready */
const struct rref_class *
rref_class_of(const struct rref *rref); /* as this worker's table names it; NULL: not known */

/* The object itself where it is this worker's, else NULL. */
void *rref_local(const struct rref *rref);

/* Calls function `function` of the object. Of `message`, args[2], args[3], context and tensors travel; NULL:
 * nothing does. A failure of the object itself: STATUS_NOT_FOUND (freed), STATUS_INVALID (no such function;
 * names the class). */
enum status rref_call(struct rref *rref, uint32_t function, const struct rpc_message *message,
                      struct monotime deadline, struct future **out, struct error *error);

/* Passes the reference to `worker` (or to ourselves), whose `taken` is called with `tag`. The future is done
 * when it holds it; this handle stays ours, and may be released at once. STATUS_PERMISSION: that worker takes
 * none; STATUS_BUSY: it has references_max. */
enum status rref_share(struct rref *rref, uint16_t worker, uint64_t tag, struct future **out,
                       struct error *error);

/* ---- references in a reply ----
 * A function that answers with new objects counts them for the caller first; the caller makes references of
 * the numbers it finds in the reply. Such a call has no deadline: a reply that comes too late would leave
 * them counted for ever. */

/* The owner, whose own ready reference `rref` is: one more use of its object by the caller of `request`,
 * which is to be answered with the number that this returns, and may not fail any more. A caller that is gone
 * is not counted. */
uint64_t rref_grant(struct rref *rref, const struct rpc_request *request);

/* The caller: the reference to an object that `owner` has granted; class_name may be NULL. STATUS_BUSY
 * (references_max): the use is given back. STATUS_NO_MEMORY: not even that can be done, and the session with
 * the owner ends. STATUS_PEER_DIED: the owner has died since. */
enum status rref_accept(struct rrefs *rrefs, uint16_t owner, uint64_t object, const char *class_name,
                        struct rref **out, struct error *error);

/* ---- objects, for the layer above ---- */

/* The object `number` of this worker for a call of `worker`: STATUS_NOT_FOUND names it ("object 7 of worker 0
 * was freed", "… does not exist"); STATUS_PERMISSION: that worker holds no reference. Keeps it until
 * rref_object_done, which comes once for each use. The caller of such a call keeps a handle until it is
 * answered (rref_copy), as rref_call does by itself. */
enum status rref_object_use(struct rrefs *rrefs, uint16_t worker, uint64_t number, void **object,
                            const struct rref_class **class, struct error *error);
void rref_object_done(struct rrefs *rrefs, uint64_t number);

/* Has `destroyed` called just before an object of this worker is destroyed, so that what a layer above keeps
 * for it (tapes, gradients) goes first. At most RREF_LISTENERS_MAX; NULL: `context` is told no more. */
void rrefs_on_destroy(struct rrefs *rrefs, void (*destroyed)(void *context, void *object), void *context);

/* ---- counting ---- */

struct rref_counts {
    uint32_t objects;    /* that live here */
    uint32_t references; /* of this worker, to objects anywhere, its own included; copies count as one */
    uint32_t users;      /* references of other workers to objects here */
};
void rrefs_counts(const struct rrefs *rrefs, struct rref_counts *counts);

/* References of worker `worker` to objects here. */
uint32_t rrefs_of_peer(const struct rrefs *rrefs, uint16_t worker);

#endif
