/* Distributed autograd's own header. Private to the files below and their tests. Each file calls those above
 * it, never those below it; a call upwards goes through a function pointer (struct dist_frame.resume, the
 * tape's nodes).
 *
 *   dist_memory.c    arenas in the outbox
 *   dist_message.c   tensors and flags in messages
 *   dist_object.c    per object: rooms to compute in, uses with their gradients
 *   dist_call.c      the caller: the forward and the backward of a call
 *   dist_piece.c     the callee: a piece's room, version, walk and end
 *   dist_forward.c   the callee: the functions that the class's code calls with a piece
 *   dist_context.c   contexts: how they begin and end; END_CONTEXT; deaths
 *   dist_callee.c    the callee: FORWARD and BACKWARD, received
 *   dist_root.c      the functions of a context's root: dist_call, dist_backward
 *   dist.c           opening, closing, counting
 *
 * ---- Messages ----
 * message.context is the context in all of them. args are listed below; tensors stand in order.
 *   FORWARD       numbers (u64, when there are any), then the inputs that are present
 *     reply       the outputs
 *   BACKWARD      the gradients of the outputs that have one
 *     reply       the gradients of the wanted inputs that have one
 *   END_CONTEXT   nothing
 * Floating tensors travel as float32, int32 ones as WIRE_U32. A scalar travels with one dimension of 1, and a
 * bit in the args marks it. */
#ifndef WORKER_AUTOGRAD_DIST_INTERNAL_H
#define WORKER_AUTOGRAD_DIST_INTERNAL_H

#include "worker/autograd/dist.h"
#include "worker/autograd/dist_versions.h"

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

/* A context's id: the root's worker number, then a counter of this many bits. */
enum { NUMBER_BITS = 48 };

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

/* ---- objects that were called, until they are destroyed ---- */

/* Where one piece computes. */
struct dist_room {
    struct dist_room *next;
    struct tape *tape;
    struct arena *own;     /* NULL: the tape's memory is the host's */
    struct arena *staging; /* host memory for tensors of messages: own, or the tape's */
};

struct dist_object {
    struct dist_object *next;
    void *object;
    const struct rref_class *class;
    const struct dist_class *rules;
    struct backend *backend;
    struct params *params;          /* NULL: none */
    struct dist_versions *versions; /* NULL: one */
    struct dist_room *rooms;        /* free */
    struct dist_use *uses;          /* free */
};

/* A context's use of an object: begins with the context's first call of it, and lasts as long as the context.
 */
struct dist_use {
    struct dist_use *next;
    uint64_t number; /* the object's */
    struct dist_object *object;
    struct gradients *gradients; /* their sum over the context's pieces. NULL: none yet, or no parameters */
    bool trains;                 /* `gradients` are of this context */
    uint32_t readers;            /* pieces that may still compute with the parameters */
    uint32_t slot;               /* the version that they read, if the parameters have versions */
};

/* ---- callers ---- */

/* A tape on which calls are recorded: a context's root has one, and so has each piece. */
struct dist_frame {
    struct dist_context *context;
    struct dist_piece *piece; /* NULL: the root's */
    struct tape *tape;
    struct arena *staging;   /* host memory for tensors of messages */
    uint32_t depth;          /* of the calls it makes */
    struct dist_call *calls; /* newest first; those that are not on the tape yet are the newest */
    /* The gradients have come for which the piece's walk has paused. The root waits in dist_backward. */
    void (*resume)(struct dist_piece *piece);
};

/* A call, on its caller: exists until the tape releases its node and no function of a future refers to it. */
struct dist_call {
    struct dist_call *next;
    struct dist_frame *frame; /* NULL: it has ended */
    uint16_t worker;
    uint64_t id;
    bool is_recorded; /* its node refers to it */
    bool is_watched;  /* a function of its future does */
    bool is_kept;
    uint32_t wanted;
    uint32_t in_count, out_count;
    struct variable *in[DIST_INPUTS_MAX];
    void *input_block[DIST_INPUTS_MAX];   /* staged inputs */
    void *output_block[DIST_OUTPUTS_MAX]; /* staged gradients */
    struct future *future;                /* of FORWARD, until it is recorded; of BACKWARD */
    dist_then *then;                      /* NULL: the root's, which waits */
    void *arg;
};

/* ---- callees ---- */

enum piece_state {
    PIECE_FORWARD, /* its request is open */
    PIECE_FAILED,  /* its request was answered with a failure */
    PIECE_KEPT,    /* answered; may be walked */
    PIECE_WALKING, /* the backward's request is open */
    PIECE_OVER,    /* only its answer is still there */
};

struct dist_piece {
    struct dist_piece *next; /* of the context, newest first */
    struct dist_frame frame;
    uint16_t caller;
    uint64_t call;
    struct dist_use *use;
    struct dist_room *room; /* NULL: given back */
    enum piece_state state;
    struct rpc_request *request; /* open; NULL: none */
    struct forward_flags flags;
    uint64_t numbers[DIST_NUMBERS_MAX];
    struct variable *in[DIST_INPUTS_MAX];
    struct variable *out[DIST_OUTPUTS_MAX];
    uint32_t out_count;
    bool lends; /* the caller reads an answer of this piece where it lies */
    bool reads; /* counted in use->readers */
};

/* ---- contexts ---- */

struct dist_context {
    struct dist_context *next;
    struct dist *dist;
    uint64_t id;
    bool is_root;            /* this worker is the context's root */
    struct dist_frame frame; /* the root's */
    uint64_t calls;          /* ids given out */
    struct dist_piece *pieces;
    struct dist_use *uses;
    bool called[]; /* (workers) in the context by this one, which has not sent END_CONTEXT to it yet */
};

struct dist_memory {
    struct segment *segment;
    bool is_taken; /* the segment, by the heap */
    struct arena *heap;
};

struct dist {
    struct dist_config config;
    struct dist_memory memory;
    struct dist_context *contexts;
    struct dist_context *ended; /* that have still to send END_CONTEXT, when there is room */
    struct dist_object *objects;
    struct arena *staging; /* of roots with tapes on a device; NULL: none yet */
    uint64_t next_context;
    uint32_t context_count, piece_count;
    struct error lost; /* STATUS_PEER_DIED: a worker is gone */
};

/* STATUS_PEER_DIED: a worker of the job is gone, so no context can be right. */
static inline enum status dist_check_alive(const struct dist *dist, struct error *error)
{
    if (dist->lost.status != STATUS_OK)
        *error = dist->lost;
    return dist->lost.status;
}

/* ---- dist_memory.c ---- */

enum status memory_new(struct dist_memory *memory, struct segment *segment, struct error *error);
void memory_free(struct dist_memory *memory);
struct arena_source memory_source(struct dist_memory *memory);

/* ---- dist_message.c ---- */

/* Puts `tensor` into the message: where it lies when that will do (`in_place` false: never), else as a copy
 * in a block of `staging` (*block, else NULL). STATUS_INVALID: no message can carry it; STATUS_NO_MEMORY. */
enum status message_put_tensor(struct dist_frame *frame, const struct tensor *tensor, bool in_place,
                               struct rpc_message *message, void **block, struct error *error);

/* Tensor `index` of a message as a tensor in the tape's memory. Floating values stay where they lie when they
 * are lent and the tape can compute there. */
enum status message_take_tensor(struct dist_frame *frame, const struct rpc_message *message, uint32_t index,
                                bool is_scalar, struct tensor *out, struct error *error);

/* Copies tensor `index` into `to`, whose memory is the tape's. STATUS_INVALID: another shape. */
enum status message_copy_tensor(struct dist_frame *frame, const struct rpc_message *message, uint32_t index,
                                struct tensor *to, struct error *error);

/* float32 or int32, of a size that a tensor may have. */
bool wire_tensor_is_sound(const struct wire_tensor *tensor);
bool message_is_large(const struct rpc_message *message); /* a tensor of it may be lent */

uint64_t flags_pack(const struct forward_flags *flags);
/* False: these are no flags, or not of these tensors. */
bool flags_unpack(const struct rpc_message *message, struct forward_flags *flags);

/* ---- dist_object.c ---- */

/* The context's use of object `number`, for a call of `caller`. Errors as rref_object_use. */
enum status use_take(struct dist_context *context, uint16_t caller, uint64_t number, struct dist_use **out,
                     struct error *error);

/* Where a piece that trains adds its gradients. NULL: the object has no parameters. */
enum status use_gradients(struct dist_use *use, struct gradients **out, struct error *error);

/* For each piece. All pieces that read at a time read the same version of the parameters. */
void use_start_reading(struct dist_use *use);
void use_stop_reading(struct dist_use *use);
void uses_release(struct dist_context *context);

enum status room_take(struct dist *dist, struct dist_object *object, struct dist_room **out,
                      struct error *error);
void room_release(struct dist_object *object, struct dist_room *room); /* ends the step that it computed */
void object_free(struct dist_object *object);
void dist_on_destroy(void *arg, void *object);

/* ---- dist_call.c ---- */

/* No answer is waited for any more: each `then` that is to come is called with `status`. Before the tape's
 * end. */
void frame_close(struct dist_frame *frame, enum status status);

/* NULL: every call is on the tape. */
struct dist_call *frame_oldest_unrecorded(const struct dist_frame *frame);

/* What dist_call and dist_call_async are given. */
struct dist_asked {
    struct rref *object;
    uint32_t function;
    const uint64_t *numbers;
    uint32_t number_count;
    struct variable *const *in;
    uint32_t in_count;
};

/* Sends FORWARD. `done` (NULL: none) runs when it is answered, and begins with call_answered. On failure
 * there is no call. */
enum status call_start(struct dist_frame *frame, const struct dist_asked *asked, dist_then *then, void *arg,
                       future_then_function *done, struct dist_call **out, struct error *error);

/* False: the call has ended meanwhile, and is gone. */
bool call_answered(struct dist_call *call);

/* Records an answered call: the tape's from then on, or gone. */
enum status call_record(struct dist_call *call, struct variable *out[DIST_OUTPUTS_MAX], uint32_t *out_count,
                        struct error *error);

/* Gives back what the call holds; frees it when no function of its future is to come. */
void call_end(struct dist_call *call);

/* The node's backward (kernels/tape/tape.h). */
enum status call_backward(void *arg, struct tape *tape, bool first, const struct tensor *const dout[],
                          struct tensor *const din[], struct error *error);

/* ---- dist_piece.c ---- */

struct dist_piece *piece_find(const struct dist_context *context, uint16_t caller, uint64_t call);

/* A new piece of the context, with everything but its inputs. */
enum status piece_new(struct dist_context *context, uint16_t caller, const struct rpc_message *message,
                      const struct forward_flags *flags, struct dist_piece **out, struct error *error);

/* Fails its open request and its calls, and frees it. */
void piece_end(struct dist_piece *piece, enum status status, const char *text);

/* Before and after the class's code and the tape's walk: places the version of the params that it reads. */
void piece_enter(struct dist_piece *piece);
void piece_leave(struct dist_piece *piece);

/* After the class's code has recorded the forward: keeps the tensors that a backward will read. The piece may
 * be gone afterwards. */
void piece_finish_forward(struct dist_piece *piece);

void piece_walk(struct dist_piece *piece); /* begins its walk; seeds are set */
void piece_finish_walk(struct dist_piece *piece, enum status status, struct error *error);

/* ---- dist_context.c ---- */

struct dist_context *context_find(const struct dist *dist, uint64_t id); /* NULL: not here */
enum status context_make(struct dist *dist, uint64_t id, struct dist_context **out, struct error *error);

/* Why a context is not here: STATUS_NOT_FOUND, or a death. */
enum status context_absent(const struct dist *dist, uint64_t id, struct error *error);

/* The context for a call; made when this is the first that names it. STATUS_INVALID: no such root;
 * STATUS_NOT_FOUND: its root is this worker, and it has ended; STATUS_BUSY; a death. */
enum status context_enter(struct dist *dist, uint64_t id, struct dist_context **out, struct error *error);

/* Both end the context here. context_end sends END_CONTEXT to the workers that this one has called in it.
 * context_lose: after a death (`text`), which the others learn of themselves. */
void context_end(struct dist_context *context);
void context_lose(struct dist_context *context, const char *text);

void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message);
struct monotime dist_on_turn(void *arg);
void dist_on_left(void *arg, uint16_t worker, enum status why, const char *text);

/* ---- dist_callee.c ---- */

void dist_on_forward(void *arg, struct rpc_request *request, const struct rpc_message *message);
void dist_on_backward(void *arg, struct rpc_request *request, const struct rpc_message *message);

#endif
