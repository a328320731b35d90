/* What the files of distributed autograd share; for them only. The thread that owns the rpc runs all of it.
 *
 *   dist.c          a worker's part: making, ending, counting
 *   dist_context.c  contexts: whose they are, how they begin, fail and end
 *   dist_end.c      telling those who were called that a context is over
 *   dist_object.c   what is kept for an object: rooms to compute in, gradients
 *   dist_piece.c    the callee: what arrives, and what is answered
 *   dist_forward.c  the callee: what the class's code sees of a piece
 *   dist_call.c     the caller: a call's forward
 *   dist_walk.c     the caller: its backward, and the walk
 *   dist_travel.c   tensors between tapes and messages
 *   dist_memory.c   arenas in the outbox
 *
 * ---- Messages ----
 * message.context is the context everywhere. What a request says in args is below; tensors stand in order.
 *   FORWARD       numbers (u64, when there are any), then the inputs that are present
 *     reply       the outputs
 *   BACKWARD      the gradients of the outputs that have one
 *     reply       the gradients of the wanted inputs that have one
 *   DROP          numbers of calls (u64)
 *   END_CONTEXT   nothing
 * Floating tensors travel as float32, int32 ones as WIRE_U32. A scalar travels with one dimension of 1 and a
 * bit that says so. */
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
    GRADIENT_INPUTS = 0, /* bit i: that of input i */
    END_GIVES_UP = 0,    /* 0: the root has ended it. Else the sender has given it up */
};

enum answer_flag {
    ANSWER_KEPT = 1,   /* it waits for BACKWARD or DROP */
    ANSWER_CALLED = 2, /* it has called others itself */
};

/* A context's id: the root's worker number, 16 bits of its incarnation, a counter. */
enum { NUMBER_BITS = 48, INCARNATION_SHIFT = 32, INCARNATION_MASK = 0xffff };

enum { DROPS_MAX = 64 }; /* calls let go of by one message */

/* FORWARD_FLAGS, as bits of one number. */
struct forward_flags {
    uint32_t depth;    /* 1: called by the root; bits 0..7 */
    bool trains;       /* bit 8 */
    uint32_t inputs;   /* given by the caller, absent ones included; bits 12..13 */
    uint32_t present;  /* mask; bits 16..18 */
    uint32_t wanted;   /* mask: their gradients are asked for; bits 20..22 */
    uint32_t scalars;  /* mask; bits 24..26 */
    uint32_t numbers;  /* bits 32..36 */
    uint32_t function; /* not in the flags: args[FORWARD_FUNCTION] */
};

/* ---- what is kept for an object that was called, until it is destroyed ---- */

/* Where one piece computes. */
struct dist_room {
    struct dist_room *next;
    struct tape *tape;
    struct arena *own;     // NULL: the tape's memory is the host's
    struct arena *staging; // host memory for what travels: own, or the tape's
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
    struct params *params;          // NULL: none
    struct dist_versions *versions; // NULL: one
    struct dist_room *rooms;        // not in use
    struct dist_slab *slabs;        // not in use
};

/* An object's part in a context: it stays, and its gradients are added up, until the context ends. */
struct dist_part {
    struct dist_part *next;
    uint64_t number; // the object's
    struct dist_object *object;
    struct dist_slab *slab; // NULL: no parameters, or none of its pieces has trained
};

/* ---- those who call ---- */

/* One who records calls: a context's root, or a piece. */
struct dist_frame {
    struct dist *dist;
    struct dist_context *context;
    struct dist_piece *piece; // NULL: the root
    struct tape *tape;
    struct arena *staging;        // host memory for what travels
    uint32_t depth;               // of the calls it makes
    bool has_called;              // somebody
    bool is_walking;              // its walk is on the stack
    bool was_woken;               // while it was
    struct dist_call *calls;      // newest first
    struct dist_call *unrecorded; // the oldest that its tape has not; all newer ones are not there either
    uint32_t ahead;               // backwards that are not awaited, all of them sent to one worker
    uint16_t ahead_worker;
    struct error ahead_error;
};

enum call_state {
    CALL_FORWARD, /* sent */
    CALL_READY,   /* answered; its node waits to be walked */
    CALL_TURN,    /* reached by the walk; what was sent ahead may have to be gathered first */
    CALL_BACKWARD /* sent */
};

/* A call of ours: as long as its node is on the tape, or its answer is to come. */
struct dist_call {
    struct dist_call *next, *previous; // of the frame; `next` also of those free, and of those to drop
    struct dist *dist;
    struct dist_frame *frame; // NULL: has ended
    uint16_t worker;
    uint64_t id;
    struct rref *object; // until the forward is answered
    enum call_state state;
    bool is_recorded; // its node holds it
    bool is_pending;  // its future does
    bool is_kept, has_called, is_lent, is_ahead;
    bool was_walked; // BACKWARD has been sent: nothing is left to drop
    uint32_t wanted;
    uint32_t in_count, out_count;
    struct variable *in[DIST_INPUTS_MAX];
    void *input_block[DIST_INPUTS_MAX];   // staged; until the node is let go
    void *output_block[DIST_OUTPUTS_MAX]; // staged gradients; until they are answered
    struct future *future;                // of the request that was sent last; NULL: not needed
    dist_then *then;                      // NULL: the root's, which waits
    void *arg;
};

/* ---- those who are called ---- */

enum piece_state {
    PIECE_FORWARD,   /* its request is open */
    PIECE_FAILED,    /* and answered so */
    PIECE_KEPT,      /* answered; may be walked */
    PIECE_WALKING,   /* the backward's request is open */
    PIECE_GATHERING, /* walked, what was sent ahead is not answered yet */
    PIECE_OVER,      /* only what it answered with is still there */
};

struct dist_piece {
    struct dist_piece *next; // of the context, newest first
    struct dist_frame frame;
    uint16_t caller;
    uint64_t call;
    struct dist_part *part;
    struct dist_room *room; // NULL: given back
    enum piece_state state;
    struct rpc_request *request; // open; NULL: none
    struct forward_flags flags;
    uint64_t numbers[DIST_NUMBERS_MAX];
    struct variable *in[DIST_INPUTS_MAX];
    struct variable *out[DIST_OUTPUTS_MAX];
    uint32_t out_count;
    bool lends; // something that it answered with is read where it lies
    bool has_version;
    uint64_t version;
};

/* ---- contexts ---- */

struct dist_workers {
    uint16_t *at;
    uint32_t count, capacity;
};

struct dist_context {
    struct dist_context *next;
    struct dist *dist;
    uint64_t id;
    bool is_root; // here
    struct dist_frame frame;
    struct arena *staging; // a root's whose tape lies on a device; NULL: none yet
    struct error error;    // why it has failed
    uint64_t calls;        // ids given out
    struct dist_piece *pieces;
    struct dist_part *parts;
    struct dist_call *drops; // not sent yet
    struct dist_workers callers;
    struct dist_end *called; // what will tell them
};

/* Of a context, to one worker: in its list of those called, then waiting to be told or answered. */
struct dist_end {
    struct dist_end *next;
    struct dist *dist;
    uint64_t context;
    uint16_t worker;
    bool is_due; // a call of that worker has left
    bool gives_up;
};

enum { PAST_WINDOW = 4096 }; /* contexts of one root, behind the highest that is over, that are told apart */

/* What has become of a context that was here. */
enum dist_past {
    PAST_UNKNOWN, /* or it is here still, or is to come */
    PAST_ENDED,   /* by its root */
    PAST_GIVEN_UP /* a worker that took part is gone */
};

struct dist_root {
    struct dist_root *next;
    uint16_t worker;
    uint64_t top;              // the highest number that is over
    uint8_t past[PAST_WINDOW]; // enum dist_past
};

struct dist_memory {
    struct segment *segment;
    bool is_taken; // the segment, by the heap
    struct arena *heap;
};

struct dist {
    struct dist_config config;
    struct dist_memory memory;
    struct dist_context *contexts, *free_contexts;
    struct dist_end *ends, *free_ends; // to be told once there is room
    struct monotime retry_at;          // after a refusal none of them sooner
    struct dist_root *roots;
    struct dist_object *objects;
    struct dist_piece *free_pieces;
    struct dist_call *free_calls;
    struct dist_part *free_parts;
    uint64_t next_context;
    uint32_t context_count, piece_count, end_count;
    uint32_t orphans; // calls, and ends, whose futures will still tell
    bool is_closed;
};

/* ---- dist.c ---- */

/* An item of a list of free ones, or a new one; zeroed. NULL: no memory. */
void *dist_take(void **list, size_t bytes);

/* Ends what dist_free has left, once no future can tell any more. */
void dist_release(struct dist *dist);

/* ---- dist_context.c ---- */

struct dist_context *context_find(const struct dist *dist, uint64_t id); /* NULL: not here */

/* Why a context is not here. STATUS_NOT_FOUND: it has ended, or has never been; STATUS_PEER_DIED: it was
 * given up, or its root is gone; STATUS_INVALID: there is no such root. */
enum status context_absent(const struct dist *dist, uint64_t id, struct error *error);

/* The context for a call of `caller`; made when this is the first that names it. Errors: why it cannot begin
 * any more, as above; STATUS_BUSY; its own failure. */
enum status context_enter(struct dist *dist, uint64_t id, uint16_t caller, struct dist_context **out,
                          struct error *error);
void context_fail(struct dist_context *context, enum status status, const char *text);

/* Both end it here, and tell those whom it has called. Its root wants it so; or who called it here, or this
 * worker itself, is gone (`text`): then it is not the root's own record. */
void context_end(struct dist_context *context);
void context_give_up(struct dist_context *context, const char *text);

void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message);
void dist_on_left(void *arg, uint16_t worker, enum status why, const char *text);

/* ---- dist_end.c ---- */

/* Before the first call of `worker`: STATUS_NO_MEMORY. And when a call of it has left. */
enum status context_calls(struct dist_context *context, uint16_t worker, struct error *error);
void context_called(struct dist_context *context, uint16_t worker);
bool context_has_called(const struct dist_context *context, uint16_t worker);

/* It is over here: tells those whom a call has left for, at once or in later turns. */
void context_tell_ends(struct dist_context *context, bool gives_up);
struct monotime dist_on_turn(void *arg);

/* ---- dist_object.c ---- */

/* The object's part in the context, for a call of `caller`. Errors as rref_object_use. */
enum status part_take(struct dist_context *context, uint16_t caller, uint64_t number, struct dist_part **out,
                      struct error *error);
void parts_release(struct dist_context *context);
enum status part_gradients(struct dist_part *part, struct gradients **out, struct error *error);
enum status room_take(struct dist *dist, struct dist_object *object, struct dist_room **out,
                      struct error *error);
void room_release(struct dist_object *object, struct dist_room *room);
void object_free(struct dist_object *object);
void dist_on_destroy(void *arg, void *object);

/* ---- dist_travel.c ---- */

/* Puts `tensor` into the message: where it lies when that will do (`in_place` false: never), else as a copy
 * in a block of `staging` (*block, else NULL). STATUS_INVALID: no message can carry it; STATUS_NO_MEMORY. */
enum status travel_put(struct dist_frame *frame, const struct tensor *tensor, bool in_place,
                       struct rpc_message *message, void **block, struct error *error);

/* What stands at tensor `index` of a message, as a tensor in the tape's memory; floating values where they
 * lie when they are lent and the tape can compute there. */
enum status travel_take(struct dist_frame *frame, const struct rpc_message *message, uint32_t index,
                        bool is_scalar, struct tensor *out, struct error *error);

/* Copies tensor `index` into `to`, whose memory is the tape's. STATUS_INVALID: it has not its shape. */
enum status travel_copy(struct dist_frame *frame, const struct rpc_message *message, uint32_t index,
                        struct tensor *to, struct error *error);

/* float32 or int32, of a size that a tensor may have. */
bool travel_is_sound(const struct wire_tensor *tensor);
bool travel_is_large(const struct rpc_message *message); /* a tensor of it may be lent */

uint64_t flags_pack(const struct forward_flags *flags);
/* False: no such flags, or not of these tensors. */
bool flags_unpack(const struct rpc_message *message, struct forward_flags *flags);

/* ---- dist_memory.c ---- */

enum status memory_new(struct dist_memory *memory, struct segment *segment, struct error *error);
void memory_free(struct dist_memory *memory);
struct arena_source memory_source(struct dist_memory *memory);

/* ---- dist_piece.c ---- */

void dist_on_forward(void *arg, struct rpc_request *request, const struct rpc_message *message);
void dist_on_backward(void *arg, struct rpc_request *request, const struct rpc_message *message);
void dist_on_drop(void *arg, struct rpc_request *request, const struct rpc_message *message);
void piece_go_on(struct dist_piece *piece); /* its walk may */

/* Tells the piece's code that its calls have failed, and frees it. It is in the context's list. */
void piece_end(struct dist_piece *piece, enum status status, const char *text);

/* ---- dist_forward.c ---- */

/* Around the class's code and the tape's walk. */
void piece_enter(struct dist_piece *piece);
void piece_leave(struct dist_piece *piece);

/* After the class's code: what the answer leaves to be kept. The piece may be gone afterwards. */
void piece_settle(struct dist_piece *piece);

/* ---- dist_call.c ---- */

void frame_open(struct dist_frame *frame, struct dist_context *context, struct dist_piece *piece,
                struct tape *tape, struct arena *staging, uint32_t depth);

/* No answer is waited for any more: whose `then` is to come is told `status`. Before the tape's end. */
void frame_close(struct dist_frame *frame, enum status status);
void call_forget(struct dist_call *call); /* frees it when nobody holds it */

/* Sends a request of the call's. `done` (NULL: nobody) runs when it is answered, and begins with
 * call_answered. */
enum status call_send(struct dist_call *call, enum wire_method method, const struct rpc_message *message,
                      future_then_function *done, struct error *error);

/* False: the call has ended meanwhile, and is gone. */
bool call_answered(struct dist_call *call);

/* Its future's failure. */
enum status call_failure(const struct dist_call *call, struct error *error);

/* Calls that the walk has passed without asking them; and those of a context that ends, unsent. */
void drops_send(struct dist_context *context);
void drops_forget(struct dist_context *context);

/* ---- dist_walk.c ---- */

enum status call_backward(void *arg, struct tape *tape, bool first, const struct tensor *const dout[],
                          struct tensor *const din[], struct error *error);

/* Begins or goes on with the frame's walk, and gathers. STATUS_AGAIN: it waits, and will be woken. */
enum status frame_walk(struct dist_frame *frame, bool first, struct error *error);

/* Why no walk of it can be right any more, whatever the tape says: what was sent ahead has failed, or the
 * context, by a death. STATUS_OK: it can. */
enum status frame_failure(const struct dist_frame *frame, struct error *error);

#endif
