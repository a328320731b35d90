/* Distributed autograd's own header. Private to the files below and their tests. Each file calls those above
 * it, never those below it; a call upwards goes through a function pointer (struct dist_frame.woken, the
 * tape's nodes).
 *
 *   dist_memory.c    arenas in the outbox
 *   dist_pool.c      records that are used again, and which of them outlive dist_free
 *   dist_message.c   tensors and flags in messages
 *   dist_object.c    per object: rooms to compute in, slabs of gradients
 *   dist_end.c       END_CONTEXT, sent
 *   dist_call.c      the caller: the forward of a call; DROP, sent
 *   dist_walk.c      the caller: the backward of a call; the walk of one frame
 *   dist_piece.c     the callee: a piece's room, version, walk and end
 *   dist_forward.c   the callee: the functions that the class's code calls with a piece
 *   dist_context.c   contexts: how they begin, fail and end; END_CONTEXT, received; deaths
 *   dist_callee.c    the callee: FORWARD, BACKWARD and DROP, received
 *   dist_root.c      the functions of a context's root: dist_call, dist_backward
 *   dist.c           opening, closing, counting
 *
 * ---- Messages ----
 * message.context is the context in all of them. args are listed below; tensors stand in order.
 *   FORWARD       numbers (u64, when there are any), then the inputs that are present
 *     reply       the outputs
 *   BACKWARD      the gradients of the outputs that have one
 *     reply       the gradients of the wanted inputs that have one
 *   DROP          numbers of calls (u64)
 *   END_CONTEXT   args[END_LOST]
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
    ANSWER_FLAGS = 0, /* enum answer_flag */
    ANSWER_SCALARS,   /* bit i: output i is a scalar */
    /* BACKWARD, its reply, END_CONTEXT */
    BACKWARD_CALL = 0,
    BACKWARD_OUTPUTS,    /* bit i: the gradient of output i is there */
    GRADIENT_INPUTS = 0, /* bit i: the gradient of input i is there */
    END_LOST = 0,        /* not 0: a death has ended the context, and gradients are lost */
};

enum answer_flag {
    ANSWER_KEPT = 1,   /* the piece waits for BACKWARD or DROP */
    ANSWER_CALLED = 2, /* the piece has called others */
};

/* A context's id: the root's worker number, then a counter of this many bits. */
enum { NUMBER_BITS = 48 };

enum { DROPS_MAX = 64 }; /* calls in one DROP */

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

struct dist_slab {
    struct dist_slab *next;
    struct gradients *gradients;
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
    struct dist_slab *slabs;        /* free */
};

/* A context's use of an object: begins with the context's first call of it, and lasts as long as the context.
 */
struct dist_use {
    struct dist_use *next;
    uint64_t number; /* the object's */
    struct dist_object *object;
    struct dist_slab
        *slab; /* the sum of the context's gradients. NULL: no parameters, or no piece has trained */
};

/* ---- callers ---- */

/* A tape on which calls are recorded: a context's root has one, and so has each piece. */
struct dist_frame {
    struct dist *dist;
    struct dist_context *context;
    struct dist_piece *piece; /* NULL: the root's */
    struct tape *tape;
    struct arena *staging; /* host memory for tensors of messages */
    uint32_t depth;        /* of the calls it makes */
    bool has_called;
    bool is_walking;              /* its walk is on the stack */
    bool was_woken;               /* while it was */
    struct dist_call *calls;      /* newest first */
    struct dist_call *unrecorded; /* the oldest call that is not on the tape; all newer ones are not either */
    uint32_t ahead;               /* backwards that are not awaited, all of them sent to one worker */
    uint16_t ahead_worker;
    struct error ahead_error;
    /* An answer has come for which the walk has paused. NULL: the root's, which waits in dist_backward. */
    void (*woken)(struct dist_frame *frame);
};

enum call_state {
    CALL_FORWARD, /* sent */
    CALL_READY,   /* answered; its node waits to be walked */
    CALL_TURN,    /* reached by the walk; what was sent ahead may have to be gathered first */
    CALL_BACKWARD /* sent */
};

/* A call, on its caller: exists as long as its node is on the tape, or an answer is to come. */
struct dist_call {
    struct dist_call *next, *previous; /* of the frame; `next` also of those free, and of those to drop */
    struct dist *dist;
    struct dist_frame *frame; /* NULL: it has ended */
    uint16_t worker;
    uint64_t id;
    struct rref *object; /* until the forward is answered */
    enum call_state state;
    bool is_recorded; /* its node refers to it */
    bool is_pending;  /* its future does */
    bool is_kept, has_called, is_lent, is_ahead;
    bool was_walked; /* BACKWARD has been sent: nothing is left to drop */
    uint32_t wanted;
    uint32_t in_count, out_count;
    struct variable *in[DIST_INPUTS_MAX];
    void *input_block[DIST_INPUTS_MAX];   /* staged; until the node is released */
    void *output_block[DIST_OUTPUTS_MAX]; /* staged gradients; until they are answered */
    struct future *future;                /* of the request that was sent last; NULL: not needed */
    dist_then *then;                      /* NULL: the root's, which waits */
    void *arg;
};

/* ---- callees ---- */

enum piece_state {
    PIECE_FORWARD,   /* its request is open */
    PIECE_FAILED,    /* its request was answered with a failure */
    PIECE_KEPT,      /* answered; may be walked */
    PIECE_WALKING,   /* the backward's request is open */
    PIECE_GATHERING, /* walked; what was sent ahead is not answered yet */
    PIECE_OVER,      /* only its answer is still there */
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
    bool has_version;
    uint64_t version;
};

/* ---- contexts ---- */

struct dist_context {
    struct dist_context *next;
    struct dist *dist;
    uint64_t id;
    bool is_root; /* this worker is the context's root */
    struct dist_frame frame;
    struct arena *staging; /* of a root with a tape on a device; NULL: none yet */
    struct error error;    /* why it has failed */
    uint64_t calls;        /* ids given out */
    struct dist_piece *pieces;
    struct dist_use *uses;
    struct dist_call *drops; /* not sent yet */
    struct dist_end *called; /* one for each worker that this one has called in the context */
};

/* An END_CONTEXT to one worker: in the context's list of workers that were called, then sent or waiting for
 * it. */
struct dist_end {
    struct dist_end *next;
    struct dist *dist;
    uint64_t context;
    uint16_t worker;
    bool is_due;  /* a call of that worker has left */
    bool is_lost; /* END_LOST */
};

/* Facts about one worker's contexts that are not held here. */
struct dist_root {
    uint64_t over; /* contexts below this one have ended, as their root said */
    uint64_t lost; /* contexts up to this one may have lost gradients here by a death */
};

struct dist_memory {
    struct segment *segment;
    bool is_taken; /* the segment, by the heap */
    struct arena *heap;
};

struct dist {
    struct dist_config config;
    struct dist_memory memory;
    struct dist_context *contexts, *free_contexts;
    struct dist_end *ends, *free_ends; /* to be sent when there is room */
    struct dist_root *roots;           /* (workers) */
    struct dist_object *objects;
    struct dist_piece *free_pieces;
    struct dist_call *free_calls;
    struct dist_use *free_uses;
    uint64_t next_context;
    uint32_t context_count, piece_count, end_count;
    uint32_t orphans; /* calls and ends whose futures are not done */
    bool is_closed;
};

/* ---- dist_memory.c ---- */

enum status memory_new(struct dist_memory *memory, struct segment *segment, struct error *error);
void memory_free(struct dist_memory *memory);
struct arena_source memory_source(struct dist_memory *memory);

/* ---- dist_pool.c ---- */

/* A zeroed record: one of a list of free ones, or a new one. NULL: no memory. Its first member is `next`. */
void *dist_pool_take(void **list, size_t bytes);
void dist_pool_free(void *list);

/* An orphan's future is done. After dist_free the last one frees the remaining memory. */
void dist_pool_orphan_done(struct dist *dist);
void dist_pool_close(struct dist *dist);

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
enum status use_gradients(struct dist_use *use, struct gradients **out, struct error *error);

/* Ends all uses of a context. The last use of an object may destroy it. */
void uses_release(struct dist_context *context);
enum status room_take(struct dist *dist, struct dist_object *object, struct dist_room **out,
                      struct error *error);
void room_release(struct dist_object *object, struct dist_room *room); /* ends the step that it computed */
void object_free(struct dist_object *object);
void dist_on_destroy(void *arg, void *object);

/* ---- dist_end.c ---- */

/* Before the first call of `worker` in a context: takes the memory of its end. STATUS_NO_MEMORY. */
enum status end_prepare(struct dist_context *context, uint16_t worker, struct error *error);

/* A call of `worker` has left. */
void end_becomes_due(struct dist_context *context, uint16_t worker);

/* Whether a call of `worker` has left. */
bool end_is_due(const struct dist_context *context, uint16_t worker);

/* Sends END_CONTEXT to every worker that was called, now or in later turns. */
void ends_send(struct dist_context *context, bool is_lost);
struct monotime dist_on_turn(void *arg);

/* ---- dist_call.c ---- */

void frame_open(struct dist_frame *frame, struct dist_context *context, struct dist_piece *piece,
                struct tape *tape, struct arena *staging, uint32_t depth);

/* No answer is waited for any more: each `then` that is to come is called with `status`. Before the tape's
 * end. */
void frame_close(struct dist_frame *frame, enum status status);

/* What dist_call and dist_call_async are given. */
struct dist_asked {
    struct rref *object;
    uint32_t function;
    const uint64_t *numbers;
    uint32_t number_count;
    struct variable *const *in;
    uint32_t in_count;
};

/* Sends FORWARD; `done` as for call_send. On failure there is no call. */
enum status call_start(struct dist_frame *frame, const struct dist_asked *asked, dist_then *then, void *arg,
                       future_then_function *done, struct dist_call **out, struct error *error);

/* Records an answered call: the tape's from then on, or gone. */
enum status call_record(struct dist_frame *frame, struct dist_call *call,
                        struct variable *out[DIST_OUTPUTS_MAX], uint32_t *out_count, struct error *error);

/* An answer that came too late to be recorded: its piece is dropped. */
void call_pass_by(struct dist_call *call);

/* The call was not sent, or the rpc has failed: as if it had not been made. */
void call_cancel(struct dist_call *call);
void call_forget(struct dist_call *call); /* frees it when neither a node nor a future refers to it */

/* Sends a request of the call's. `done` (NULL: none) runs when it is answered, and begins with
 * call_answered. */
enum status call_send(struct dist_call *call, enum wire_method method, const struct rpc_message *message,
                      future_then_function *done, struct error *error);

/* False: the call has ended meanwhile, and is gone. */
bool call_answered(struct dist_call *call);

/* Why its future has failed. */
enum status call_failure(const struct dist_call *call, struct error *error);

/* Staged gradients that were sent are needed no more. */
void call_release_outputs(struct dist_call *call);

/* Calls that the walk has passed without BACKWARD: sends DROP; or, where the context ends, forgets them. */
void drops_send(struct dist_context *context);
void drops_forget(struct dist_context *context);

/* ---- dist_walk.c ---- */

/* The node's backward (kernels/tape/tape.h). */
enum status call_backward(void *arg, struct tape *tape, bool first, const struct tensor *const dout[],
                          struct tensor *const din[], struct error *error);

/* Begins or goes on with the frame's walk. STATUS_AGAIN: it has paused, and will be woken. */
enum status frame_walk(struct dist_frame *frame, bool first, struct error *error);

/* Why no walk of the frame can be right any more: a backward that was sent ahead has failed, or the context
 * has. */
enum status frame_failure(const struct dist_frame *frame, struct error *error);

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
void piece_finish_walk(struct dist_piece *piece, enum status status, const struct error *error);
void piece_drop(struct dist_piece *piece); /* no BACKWARD will come */

/* ---- dist_context.c ---- */

struct dist_context *context_find(const struct dist *dist, uint64_t id); /* NULL: not here */
enum status context_make(struct dist *dist, uint64_t id, struct dist_context **out, struct error *error);

/* Why a context is not here. STATUS_NOT_FOUND: it has ended, or was never here; STATUS_PEER_DIED: a death has
 * ended it here, or its root is gone; STATUS_INVALID: no such root. */
enum status context_absent(const struct dist *dist, uint64_t id, struct error *error);

/* The context for a call; made when this is the first that names it. Errors: as context_absent; STATUS_BUSY;
 * the context's own failure. */
enum status context_enter(struct dist *dist, uint64_t id, struct dist_context **out, struct error *error);

/* Both end the context here, and send END_CONTEXT to the workers that this one has called in it.
 * context_lose: by a death (`text`), and not on its root. */
void context_end(struct dist_context *context);
void context_lose(struct dist_context *context, const char *text);

void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message);
void dist_on_left(void *arg, uint16_t worker, enum status why, const char *text);

/* ---- dist_callee.c ---- */

void dist_on_forward(void *arg, struct rpc_request *request, const struct rpc_message *message);
void dist_on_backward(void *arg, struct rpc_request *request, const struct rpc_message *message);
void dist_on_drop(void *arg, struct rpc_request *request, const struct rpc_message *message);

#endif
