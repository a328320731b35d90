/* Distributed autograd: one loss, whose graph lies on several workers, and one backward pass through it.
 *
 *     dist_context_new(&context, dist, TAPE_TRAIN, tape, &error);
 *     struct variable *x = …;                                 on the context's own tape
 *     dist_call(context, embedding, 0, numbers, 3, &tokens, 1, &x, 1);
 *     …
 *     dist_backward(context, loss, &error);
 *     dist_optimizer_step(optimizer, context, …);             dist_optimizer.h
 *     dist_context_free(context);
 *
 * A call is one node on the caller's tape. The callee computes it on a tape of its own, a *piece*, kept per
 * (context, call); the node's backward is a second request, answered with the input gradients. A piece may
 * call on: a handler never waits, so it goes on when its calls are answered (dist_call_async), and answers
 * then.
 *
 * ---- Order ----
 * A root's tape is walked in reverse order of recording, and at a node whose gradient is still remote the
 * walk pauses. So at any time one thread of control runs through all workers, with one exception: a call
 * whose input gradients nobody wants (an embedding of indices), which has called nobody itself, and whose
 * tensors travel within the message, is not awaited at its node. It is gathered before the walk talks to
 * another worker, and at the end. Parameters' gradients are added up, on their owner, in the order of the
 * walk: the order in which one worker alone would have added them, hence the same bits.
 *
 * ---- Contexts ----
 * Ids are unique over workers and time: the worker's number in the upper 16 bits, a counter below. On other
 * workers a context begins with the first call that names it and ends when the root says so, or when one who
 * has called there is gone: from then on all that is asked there in that context fails with STATUS_PEER_DIED,
 * as it does with one who has called the one that is gone. It holds pieces, and gradients: one slab per
 * object with parameters. Several contexts run at once without touching each other. A failure anywhere (an
 * error, a death) ends the backward with that status, and the context is then of no use but to be freed;
 * freeing it frees it everywhere.
 *
 * ---- Memory ----
 * Tapes take their memory from the worker's outbox where there is one (a source for their arenas), so that
 * floating tensors of 64 KiB and more are neither sent nor copied: the other end reads them where they lie;
 * int32 ones it copies. What a node was answered with stays until the context ends; what it was asked with
 * stays until its backward is answered, for the callee reads it once more, or the walk has passed it by.
 *
 * Threads as rpc.h: all of one thread. Only dist_call, dist_backward and dist_context_free's callers at a
 * role's top level turn the rpc; what is marked "never waits" may be called by handlers. */
#ifndef WORKER_AUTOGRAD_DIST_H
#define WORKER_AUTOGRAD_DIST_H

#include "kernels/tape/tape.h"
#include "worker/reference/rref.h"

struct dist;
struct dist_versions;
struct dist_context; /* of which this worker is the root */
struct dist_piece;   /* a call of somebody's, being computed here */

enum {
    DIST_DEPTH_MAX = 16,   /* calls within calls; one deeper is STATUS_INVALID */
    DIST_INPUTS_MAX = 3,   /* variables into a call; with `numbers` they are a message's four tensors */
    DIST_OUTPUTS_MAX = 3,  /* and out of it */
    DIST_NUMBERS_MAX = 16, /* plain numbers into a call: keys of draws and the like */
};

/* What an object must have to be called within a context: struct rref_class.extension. */
struct dist_class {
    /* Where it computes. Each object may have a backend of its own (its number of threads). */
    struct backend *(*backend)(void *object);
    /* NULL: it has no parameters. They belong to the object. */
    struct params *(*params)(void *object);
    /* NULL, or answers NULL: its parameters have one version. Otherwise a piece holds one when its forward
     * begins, that of its context's other pieces of the object or the newest, and lets go of it when it is
     * released; its forward, where it goes on after calls of its own, and its walk, at every resume, run with
     * the params placed there (dist_versions.h). Between pieces they are placed on the newest one. */
    struct dist_versions *(*versions)(void *object);
    /* Computes on the piece's tape, and completes the piece once with dist_return or dist_fail: before it
     * returns, or after calls of its own (dist_call_async). Never waits. */
    void (*forward)(void *object, struct dist_piece *piece);
};

struct dist_config {
    struct rpc *rpc;
    struct rrefs *rrefs;
    struct segment *outbox; /* NULL: tensors travel in messages */
    uint32_t contexts_max; /* at a time, of all roots; one more is STATUS_BUSY. And ends that wait for room */
    uint32_t pieces_max;   /* at a time, in all contexts */
    /* Between operations of any piece (tape_on_progress). May be NULL. */
    tape_progress *progress;
    void *progress_context;
};

enum status dist_new(struct dist **out, const struct dist_config *config, struct error *error);

/* Ends the worker's own contexts; in those of others this is its death. No turn of the rpc may follow; NULL
 * is allowed. */
void dist_free(struct dist *dist);

/* What it was made with. */
struct rpc *dist_rpc(const struct dist *dist);
struct rrefs *dist_rrefs(const struct dist *dist);

/* A source of memory for the arena of a tape whose tensors are to be lent (the root's too): the outbox, or
 * host memory where there is none. */
struct arena_source dist_arena_source(struct dist *dist);

/* ---- the root ---- */

/* Begins a context and its step on `tape`, which takes its memory from dist_arena_source and records until
 * dist_context_free. mode: TAPE_INFER for a forward alone (calls keep nothing but what they answered).
 * `gradients`: for the root's own parameters, or NULL. */
enum status dist_context_new(struct dist_context **out, struct dist *dist, enum tape_mode mode,
                             struct tape *tape, struct gradients *gradients, struct error *error);
uint64_t dist_context_id(const struct dist_context *context);

/* Calls `function` of the object and waits for its outputs, serving calls meanwhile. in: variables of the
 * context's tape, floating or int32; NULL where the callee takes none. *out: variables of the same tape, as
 * many as the callee answers with; another number than out_count is STATUS_INVALID. A failure sticks in the
 * tape, like an operation's, and out is NULL. */
enum status dist_call(struct dist_context *context, struct rref *object, uint32_t function,
                      const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                      uint32_t in_count, struct variable *out[], uint32_t out_count);

/* Walks back from the scalar `loss` through all workers; when it returns, every owner has its parameters'
 * gradients of this context. Afterwards what calls had kept that had no part in the loss is released. */
enum status dist_backward(struct dist_context *context, struct variable *loss, struct error *error);

/* Ends the tape's step and the context, here and everywhere; waits for nobody. */
void dist_context_free(struct dist_context *context);

/* ---- a piece: for struct dist_class.forward ---- */

struct tape *dist_piece_tape(struct dist_piece *piece);
uint32_t dist_piece_function(const struct dist_piece *piece);
const uint64_t *dist_piece_numbers(const struct dist_piece *piece, uint32_t *count);
/* NULL: the caller gave none there, or fewer. Shapes and types are the caller's: check them. */
struct variable *dist_piece_input(struct dist_piece *piece, uint32_t index);
uint32_t dist_piece_inputs(const struct dist_piece *piece);

/* Completes the piece: `out` are variables of its tape. A tape that has failed fails the piece with that. */
void dist_return(struct dist_piece *piece, struct variable *const out[], uint32_t out_count);
void dist_fail(struct dist_piece *piece, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* dist_call within a piece; never waits. `then` is called once, inside a turn, when the outputs are there or
 * the call has failed (status, which also sticks in the tape; out is then NULL). Several may be under way:
 * `then` of each waits for those before it, so that the tape is the same whichever is answered first. When
 * the piece has been completed before, the call has no part in it: STATUS_INVALID, which does not stick. The
 * handle may be released at once. */
typedef void dist_then(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                       uint32_t out_count);
void dist_call_async(struct dist_piece *piece, struct rref *object, uint32_t function,
                     const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                     uint32_t in_count, dist_then *then, void *arg);

/* ---- for the optimizer (dist_optimizer.h), on an owner ---- */

/* The gradients that `context` holds for the object `object` here; NULL: none (they are zero). Valid until
 * the context ends. STATUS_NOT_FOUND: no such context here; then it has called nothing of this worker.
 * STATUS_PEER_DIED: it had, but a worker that took part is gone, and the gradients with it. */
enum status dist_gradients(struct dist *dist, uint64_t context, void *object, struct gradients **out,
                           struct error *error);

/* How many contexts other than `context` have pieces of `object` that may still be walked: its parameters
 * must not be changed in place while there are any. */
uint32_t dist_readers(const struct dist *dist, uint64_t context, const void *object);

/* Ends the contexts of worker `root` that are older than number `context`, as that worker itself says:
 * whoever was called in them by others may hear of their end later. Those whose root is this worker stay. */
void dist_end_older(struct dist *dist, uint16_t root, uint64_t context);

/* What it says: the number of its oldest context that has not ended, or of the next one. */
uint64_t dist_oldest(const struct dist *dist);

struct dist_counts {
    uint32_t contexts, pieces; /* here, now */
};
void dist_counts(const struct dist *dist, struct dist_counts *counts);

#endif
