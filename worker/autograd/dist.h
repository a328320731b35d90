/* Distributed autograd: one loss, whose graph lies on several workers, and one backward pass through it.
 *
 *     context       all that is computed for one loss, on every worker: one training step, or one forward
 *     root          the worker that began the context, and has the loss
 *     call          a function of an object, called within a context: one node on the tape of its caller
 *     piece         what the callee computes for a call, on a tape of its own
 *     frame         a tape on which calls are recorded: the root's, or a piece's
 *     walk          the backward pass over one tape, in reverse order of recording
 *     version       one copy of an object's parameters (dist_versions.h)
 *     owner         a worker with parameters, which adds up gradients and takes steps (dist_optimizer.h)
 *     participant   a worker that asks the owners for steps
 *
 * This room may include worker/net, worker/reference and the rooms of kernels/. worker/model_parallel
 * includes it. Start here. Then:
 *
 *     dist_context.c       contexts and pieces; why sums are equal, and why nothing is left behind
 *     dist_caller.[ch]     the caller's side of a context
 *     dist_message.[ch]    messages, the tensors in them, and memory that other workers can read
 *     dist_versions.[ch]   versions of parameters
 *     dist_optimizer.h, dist_optimizer_participant.c, dist_optimizer_owner.c
 *                          the optimizer: the side of a participant, and that of an owner
 *
 * An example:
 *
 *     dist_context_new(&context, dist, TAPE_TRAIN, tape, &error);
 *     struct variable *x = …;                                 on the context's own tape
 *     dist_call(context, embedding, 0, numbers, 3, &tokens, 1, &x, 1);
 *     …
 *     dist_backward(context, loss, &error);
 *     dist_optimizer_step(optimizer, context, …);
 *     dist_context_free(context);
 *
 * The callee of a call computes a piece. The backward of the call's node is a second request, which the
 * callee answers with the input gradients. An object may call other objects (dist_call_async): its piece
 * continues, and answers, when these calls are answered. The model of worker/model_parallel has no such
 * calls.
 *
 * The walk pauses at a node whose gradient comes from another worker. So one thread of control runs through
 * all workers, and a parameter's gradients are added up in the same order, to the same bits, as on one worker
 * (dist_context.c).
 *
 * ---- Contexts ----
 * A context's id is the root's worker number (upper 16 bits) and a counter. On other workers a context begins
 * with the first call that names it, and ends when the root ends it. It holds pieces, and one slab of
 * gradients for each object with parameters. Several contexts run at once without touching each other. A
 * failure ends the backward with its status. The context can then only be freed, which frees it everywhere.
 * When a worker is gone, all contexts end with STATUS_PEER_DIED, and no other can begin.
 *
 * ---- Memory ----
 * Tapes take their memory from the worker's outbox where there is one. Other workers read floating tensors of
 * 64 KiB and more where they lie: these are neither sent nor copied. int32 tensors are copied. The answer of
 * a call stays until the context ends. The inputs of a call stay until the walk has passed its node, because
 * the callee reads them once more in the backward.
 *
 * Threads as rpc.h: all of one thread. dist_call and dist_backward turn the rpc, and are for a role's top
 * level. Functions marked "never waits" may be called by handlers. */
#ifndef WORKER_AUTOGRAD_DIST_H
#define WORKER_AUTOGRAD_DIST_H

#include "kernels/tape/tape.h"
#include "worker/reference/rref.h"

struct dist;
struct dist_versions;
struct dist_context; /* a context whose root is this worker */
struct dist_piece;   /* a call by some worker, computed here */

enum {
    DIST_DEPTH_MAX = 16,   /* of nested calls; one deeper is STATUS_INVALID */
    DIST_INPUTS_MAX = 3,   /* variables into a call; with `numbers`, a message's four tensors */
    DIST_OUTPUTS_MAX = 3,  /* variables out of a call */
    DIST_NUMBERS_MAX = 16, /* plain numbers into a call: keys of draws and the like */
};

/* How an object is called within a context: struct rref_class.extension. */
struct dist_class {
    /* The backend on which the object computes. Each may have its own (its number of threads). */
    struct backend *(*backend)(void *object);
    /* The object's parameters, which stay its own. NULL: none. */
    struct params *(*params)(void *object);
    /* NULL, or answers NULL: the parameters have one version. Otherwise a piece holds a version from the
     * begin of its forward to the end of its walk. The first piece of the object in a context takes the
     * newest version, and the context's other pieces take the same one. While the piece's forward or walk
     * runs, the params are placed on its version (dist_versions.h). Otherwise they are placed on the newest.
     */
    struct dist_versions *(*versions)(void *object);
    /* Computes on the piece's tape, and completes the piece once with dist_return: before it returns, or
     * after calls of its own (dist_call_async). Never waits. */
    void (*forward)(void *object, struct dist_piece *piece);
};

struct dist_config {
    struct rpc *rpc;
    struct rrefs *rrefs;
    struct segment *outbox; /* NULL: tensors travel in messages */
    uint32_t contexts_max;  /* at a time, of all roots. One more is STATUS_BUSY */
    uint32_t pieces_max;    /* at a time, in all contexts */
    /* Called between operations of any piece (tape_on_progress). May be NULL. */
    tape_progress *progress;
    void *progress_context;
};

enum status dist_new(struct dist **out, const struct dist_config *config, struct error *error);

/* Ends all contexts here; for other workers this is a death. No turn of the rpc may follow. NULL is allowed.
 */
void dist_free(struct dist *dist);

/* The rpc and the rrefs of the configuration. */
struct rpc *dist_rpc(const struct dist *dist);
struct rrefs *dist_rrefs(const struct dist *dist);

/* Memory for the arena of a tape whose tensors are to be lent (the root's too): the outbox, or host memory
 * where there is none. */
struct arena_source dist_arena_source(struct dist *dist);

/* ---- the root ---- */

/* Begins a context and its step on `tape`, which takes its memory from dist_arena_source and records until
 * dist_context_free. mode: TAPE_INFER for a forward alone (pieces keep nothing but their answers). */
enum status dist_context_new(struct dist_context **out, struct dist *dist, enum tape_mode mode,
                             struct tape *tape, struct error *error);
uint64_t dist_context_id(const struct dist_context *context);

/* Calls `function` of the object and waits for its outputs, serving calls meanwhile. in: variables of the
 * context's tape, floating or int32; NULL for an absent input. *out: out_count variables of the
 * same tape; when the callee answers with another number, STATUS_INVALID. A failure sticks in the tape, like
 * an operation's, and out is NULL. */
enum status dist_call(struct dist_context *context, struct rref *object, uint32_t function,
                      const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                      uint32_t in_count, struct variable *out[], uint32_t out_count);

/* Walks back from the scalar `loss` through all workers. On return every owner has its parameters' gradients
 * of this context. */
enum status dist_backward(struct dist_context *context, struct variable *loss, struct error *error);

/* Ends the tape's step and the context, here and everywhere; never waits. */
void dist_context_free(struct dist_context *context);

/* ---- a piece: for struct dist_class.forward ---- */

struct tape *dist_piece_tape(struct dist_piece *piece);

/* What the caller has given. The caller chooses shapes and types: check them. */
struct dist_given {
    uint32_t function, number_count, in_count;
    uint64_t numbers[DIST_NUMBERS_MAX];
    struct variable *in[DIST_INPUTS_MAX]; /* NULL: absent */
};
const struct dist_given *dist_piece_given(const struct dist_piece *piece);

/* Completes the piece: `out` are variables of its tape. A tape that has failed (tape_fail) fails the piece
 * with that. */
void dist_return(struct dist_piece *piece, struct variable *const out[], uint32_t out_count);

/* dist_call within a piece: how an object calls another object. Never waits. `then` is called once, inside a
 * turn: with the outputs, or with NULL and the status of the call's failure, which also sticks in the tape.
 * Several calls may be under way. Their `then`s are called in the order of the calls, so that the tape is the
 * same whichever is answered first. When the piece was completed before, the status is STATUS_INVALID, and
 * does not stick. The handle may be released at once. */
typedef void dist_then(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                       uint32_t out_count);
void dist_call_async(struct dist_piece *piece, struct rref *object, uint32_t function,
                     const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                     uint32_t in_count, dist_then *then, void *arg);

/* ---- for the optimizer (dist_optimizer.h), on an owner ---- */

/* The gradients that `context` holds for the object `object` here. NULL: none, so they are zero. Valid until
 * the context ends. STATUS_NOT_FOUND: the context is not here, because it has called nothing of this worker.
 * STATUS_PEER_DIED: a death has ended the context here, and its gradients are lost. */
enum status dist_gradients(struct dist *dist, uint64_t context, void *object, struct gradients **out,
                           struct error *error);

struct dist_counts {
    uint32_t contexts, pieces; /* here, now */
};
void dist_counts(const struct dist *dist, struct dist_counts *counts);

#endif
