/* Contexts on this worker: how they begin and end, the pieces that are computed in them, the functions of
 * their roots, and what a death does to them. dist_caller.c makes the calls.
 *
 * A piece computes in a room of its object. Rooms, and uses with their gradients, serve again in later
 * contexts, and are freed with the object. Large outputs are lent to the caller, so they are kept until the
 * context ends.
 *
 * ---- Why sums are equal bit for bit ----
 * A parameter's gradient is a sum over the pieces of its object in one context, and floating sums depend on
 * their order. The order is that of the walk, wherever objects lie:
 * A frame (the root's tape, or a piece's) is walked in reverse order of recording, and waits at each node
 * whose gradients come from another worker. While it waits, only the piece that it asked is being walked in
 * this context, and that piece waits for those that it asks. So there is one thread of control, as on one
 * worker, and the order of its sums depends on the graph alone.
 *
 * ---- Why nothing is left behind ----
 * A worker's record of a context has the pieces of its callers, and marks the workers that it has called. The
 * root's own record ends when it is freed. Any other record ends with the first END_CONTEXT of its root or of
 * a caller. A worker that ends a record sends END_CONTEXT to every worker that it has called there. The
 * message takes the session of the calls, so it arrives after them.
 *
 * Every record but the root's own was made by a call of another record, which existed before it. Following
 * these calls back from any record leads to the root's own, also where workers call each other in rings. When
 * a record on this way ends, the next one is told, and so on to the last: everything ends with the root. A
 * late FORWARD may make a record anew after its context has ended here. Its caller sends END_CONTEXT behind
 * it, which ends it again.
 *
 * Every worker has sessions with all others, so each sees a death itself. It then ends the records of other
 * roots, and refuses every later call: a lost gradient must not be taken for zero. */
#include "kernels/base/profile.h"
#include "kernels/params/gradients.h"
#include "worker/autograd/dist.h"
#include "worker/autograd/dist_caller.h"
#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_versions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A context's id: the root's worker number, then a counter of this many bits. */
enum { NUMBER_BITS = 48 };

/* An object of this worker that was called within a context. */
struct dist_object {
    struct dist_object *next;
    struct dist *dist;
    void *object;
    const struct rref_class *class;
    const struct dist_class *rules;
    struct backend *backend;
    struct params *params;          /* NULL: none */
    struct dist_versions *versions; /* NULL: one */
    struct dist_room *rooms;        /* free */
    struct dist_use *uses;          /* free */
};

/* A context's use of an object, from the context's first call of the object to the context's end. */
struct dist_use {
    struct dist_use *next;
    uint64_t number; /* the object's */
    struct dist_object *object;
    struct gradients *gradients; /* their sum over the context's pieces. NULL: none yet, or no parameters */
    bool trains;                 /* `gradients` are of this context */
    uint32_t readers;            /* pieces that may still compute with the parameters */
    uint32_t slot;               /* the version that they read, if the parameters have versions */
};

/* Where one piece computes. */
struct dist_room {
    struct dist_room *next;
    struct tape *tape;
    struct arena *own;     /* NULL: the tape's memory is the host's */
    struct arena *staging; /* host memory for tensors of messages: own, or the tape's */
};

enum piece_state {
    PIECE_FORWARD, /* its request is open */
    PIECE_FAILED,  /* its request was answered with a failure */
    PIECE_KEPT,    /* answered; may be walked */
    PIECE_WALKING, /* the backward's request is open */
    PIECE_OVER,    /* only its answer is still there */
};

struct dist_piece {
    struct dist_piece *next; /* of the context, newest first */
    struct dist_context *context;
    struct dist_frame frame;
    uint16_t source; /* the worker that called */
    uint64_t call;
    struct dist_use *use;
    struct dist_room *room; /* NULL: given back */
    enum piece_state state;
    struct rpc_request *request; /* open; NULL: none */
    struct forward_flags flags;
    struct dist_given given;
    struct variable *out[DIST_OUTPUTS_MAX];
    uint32_t out_count;
    bool lends; /* the caller reads an answer of this piece where it lies */
    bool reads; /* counted as a reader of the use */
};

struct dist_context {
    struct dist_context *next;
    struct dist *dist;
    uint64_t id;
    bool is_root;              /* this worker is the context's root */
    struct dist_frame frame;   /* the root's */
    struct dist_caller caller; /* the calls that are made here */
    struct dist_piece *pieces; /* that are computed here, newest first */
    struct dist_use *uses;
    bool called[]; /* (workers) the caller's */
};

struct dist {
    struct dist_config config;
    uint16_t worker; /* this one's number */
    struct dist_memory memory;
    struct dist_object *objects;
    struct dist_context *contexts;
    struct arena *staging; /* of roots with tapes on a device; NULL: none yet */
    uint64_t next_context;
    struct dist_counts counts;
    struct error lost; /* STATUS_PEER_DIED: a worker is gone */
};

/* ---- objects ---- */

/* The object's entry; made at its first call. */
static enum status object_find(struct dist *dist, void *object, const struct rref_class *class,
                               struct dist_object **out, struct error *error)
{
    const struct dist_class *rules = class->extension;
    if (rules == NULL)
        return error_set(error, STATUS_INVALID, "a %s cannot be called within a context", class->name);
    struct dist_object *found = dist->objects;
    while (found != NULL && found->object != object)
        found = found->next;
    *out = found;
    if (found != NULL)
        return STATUS_OK;
    *out = found = calloc(1, sizeof *found);
    if (found == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to call %s", class->name);
    *found = (struct dist_object){.next = dist->objects,
                                  .dist = dist,
                                  .object = object,
                                  .class = class,
                                  .rules = rules,
                                  .backend = rules->backend(object),
                                  .params = rules->params != NULL ? rules->params(object) : NULL,
                                  .versions = rules->versions != NULL ? rules->versions(object) : NULL};
    dist->objects = found;
    return STATUS_OK;
}

static void room_free(struct dist_room *room)
{
    tape_free(room->tape);
    arena_free(room->own);
    free(room);
}

static void object_free(struct dist_object *object)
{
    while (object->rooms != NULL) {
        struct dist_room *room = object->rooms;
        object->rooms = room->next;
        room_free(room);
    }
    while (object->uses != NULL) {
        struct dist_use *use = object->uses;
        object->uses = use->next;
        gradients_free(use->gradients);
        free(use);
    }
    free(object);
}

static void object_on_destroy(void *arg, void *object)
{
    struct dist *dist = arg;
    for (struct dist_object **link = &dist->objects; *link != NULL; link = &(*link)->next) {
        struct dist_object *found = *link;
        if (found->object != object)
            continue;
        *link = found->next;
        object_free(found);
        return;
    }
}

/* ---- a context's uses ---- */

/* The first call in a context takes a use of the object (rref_object_use); later calls share it.
 * Each call checks that its caller holds a reference. */
static enum status use_take(struct dist_context *context, uint16_t source, uint64_t number,
                            struct dist_use **out, struct error *error)
{
    struct rrefs *rrefs = context->dist->config.rrefs;
    const struct rref_class *class;
    struct dist_object *found = NULL;
    void *object;
    enum status status = rref_object_use(rrefs, source, number, &object, &class, error);
    if (status != STATUS_OK)
        return status;
    for (struct dist_use *use = context->uses; use != NULL; use = use->next)
        if (use->number == number) {
            rref_object_done(rrefs, number);
            *out = use;
            return STATUS_OK;
        }
    status = object_find(context->dist, object, class, &found, error);
    struct dist_use *use = NULL;
    if (status == STATUS_OK && (use = found->uses) != NULL)
        found->uses = use->next;
    else if (status == STATUS_OK && (use = calloc(1, sizeof *use)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory to call %s", class->name);
    if (status != STATUS_OK) {
        rref_object_done(rrefs, number);
        return status;
    }
    use->number = number;
    use->object = found;
    use->trains = false;
    use->next = context->uses;
    *out = context->uses = use;
    return STATUS_OK;
}

/* Where a piece that trains adds its gradients. NULL: the object has no parameters. */
static enum status use_gradients(struct dist_use *use, struct gradients **out, struct error *error)
{
    struct params *params = use->object->params;
    enum status status = STATUS_OK;
    if (params != NULL && use->gradients == NULL)
        status = gradients_new(&use->gradients, params, error);
    if (status != STATUS_OK)
        return status;
    if (params != NULL && !use->trains)
        gradients_begin(use->gradients);
    use->trains = params != NULL;
    *out = use->gradients;
    return STATUS_OK;
}

/* The last use of an object may destroy it. */
static void context_release_uses(struct dist_context *context)
{
    while (context->uses != NULL) {
        struct dist_use *use = context->uses;
        const uint64_t number = use->number;
        context->uses = use->next;
        use->next = use->object->uses;
        use->object->uses = use;
        rref_object_done(context->dist->config.rrefs, number);
    }
}

/* ---- rooms ---- */

static enum status room_take(struct dist_use *use, struct dist_room **out, struct error *error)
{
    struct dist_object *object = use->object;
    struct dist *dist = object->dist;
    if (object->rooms != NULL) {
        *out = object->rooms;
        object->rooms = (*out)->next;
        return STATUS_OK;
    }
    struct dist_room *room = calloc(1, sizeof *room);
    if (room == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to compute %s", object->class->name);
    const struct arena_source lent = memory_source(&dist->memory);
    const bool host = object->backend->ops->host;
    enum status status =
        tape_new_in(&room->tape, object->backend, host ? &lent : &object->backend->source, error);
    if (status == STATUS_OK && !host)
        status = arena_new(&room->own, &lent, error);
    if (status != STATUS_OK) {
        room_free(room);
        return status;
    }
    room->staging = host ? tape_arena(room->tape) : room->own;
    tape_on_progress(room->tape, dist->config.progress, dist->config.progress_context);
    *out = room;
    return STATUS_OK;
}

/* Ends the step that it computed. */
static void room_release(struct dist_use *use, struct dist_room *room)
{
    struct dist_object *object = use->object;
    tape_finish(room->tape, NULL);
    if (room->own != NULL)
        arena_reset(room->own);
    room->next = object->rooms;
    object->rooms = room;
}

/* ---- pieces: the version of the parameters that they read ---- */

/* All pieces of a context that read an object's parameters at a time read the same version. */
static void piece_start_reading(struct dist_piece *piece)
{
    struct dist_use *use = piece->use;
    piece->reads = true;
    if (use->readers++ == 0 && use->object->versions != NULL)
        use->slot = dist_versions_hold(use->object->versions);
}

static void piece_stop_reading(struct dist_piece *piece)
{
    struct dist_use *use = piece->use;
    if (piece->reads && --use->readers == 0 && use->object->versions != NULL)
        dist_versions_drop(use->object->versions, use->slot);
    piece->reads = false;
}

/* Before and after the class's code and the tape's walk: places the params on that version. */
static void piece_enter(struct dist_piece *piece)
{
    if (piece->reads && piece->use->object->versions != NULL)
        dist_versions_place(piece->use->object->versions, piece->use->slot);
}

static void piece_leave(struct dist_piece *piece)
{
    if (piece->use->object->versions != NULL)
        dist_versions_place_newest(piece->use->object->versions);
}

/* ---- pieces: answering ---- */

static void piece_reply(struct dist_piece *piece, const struct rpc_message *answer)
{
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    rpc_reply(request, answer);
}

static void piece_refuse(struct dist_piece *piece, enum status status, const char *text)
{
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    rpc_fail(request, status, "worker %u: %s: %s", piece->context->dist->worker,
             piece->use->object->class->name, text);
}

/* ---- pieces: ending ---- */

/* Gives the room back, and the piece's outputs with it. */
static void piece_leave_room(struct dist_piece *piece, enum status status)
{
    if (piece->room == NULL)
        return;
    tape_fail(piece->frame.tape, status, "a call by an object that has answered its own call");
    frame_close(&piece->frame, status);
    room_release(piece->use, piece->room);
    piece->room = NULL;
}

/* Fails its open request and its calls, and frees it. */
static void piece_end(struct dist_piece *piece, enum status status, const char *text)
{
    struct dist_context *context = piece->context;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    if (piece->state == PIECE_FORWARD)
        piece->state = PIECE_FAILED;
    if (request != NULL)
        rpc_fail(request, status, "worker %u: %s", context->dist->worker, text);
    piece_leave_room(piece, status);
    piece_stop_reading(piece);
    struct dist_piece **link = &context->pieces;
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    context->dist->counts.pieces--;
    free(piece);
}

/* No BACKWARD will come, or it is answered: nothing but lent memory is still needed. */
static void piece_finish(struct dist_piece *piece)
{
    piece->state = PIECE_OVER;
    if (!piece->lends)
        piece_leave_room(piece, STATUS_INVALID);
    piece_stop_reading(piece);
}

/* After the class's code has recorded the forward: keeps the tensors that a backward will read. The piece may
 * be gone afterwards. */
static void piece_finish_forward(struct dist_piece *piece)
{
    if (piece->state == PIECE_OVER)
        piece_finish(piece);
    if (piece->state == PIECE_FAILED)
        piece_end(piece, STATUS_INVALID, "the call has failed");
}

/* ---- pieces: walking ---- */

static enum status piece_answer_gradients(struct dist_piece *piece, struct error *error)
{
    struct rpc_message answer = {.context = piece->context->id};
    enum status status = tape_status(piece->frame.tape, error);
    for (uint32_t i = 0; i < DIST_INPUTS_MAX && status == STATUS_OK; i++) {
        const struct tensor *gradient =
            piece->flags.wanted >> i & 1 ? variable_gradient(piece->given.in[i]) : NULL;
        void *block;
        if (gradient == NULL)
            continue;
        answer.args[GRADIENT_INPUTS] |= (uint64_t)1 << i;
        status = message_put_tensor(piece->frame.tape, piece->frame.staging, gradient, true, &answer, &block,
                                    error);
    }
    if (status != STATUS_OK)
        return status;
    piece->lends = piece->lends || message_is_large(&answer);
    piece_reply(piece, &answer);
    return STATUS_OK;
}

/* Answers BACKWARD. */
static void piece_finish_walk(struct dist_piece *piece, enum status status, struct error *error)
{
    if (status == STATUS_OK)
        status = piece_answer_gradients(piece, error);
    if (status != STATUS_OK)
        piece_refuse(piece, status, error->text);
    piece_finish(piece);
}

static void piece_advance_walk(struct dist_piece *piece, enum status (*walk)(struct tape *tape))
{
    struct error error = {0};
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    piece_enter(piece);
    enum status status = walk(piece->frame.tape);
    piece_leave(piece);
    profile_leave(before);
    if (status == STATUS_AGAIN)
        return;
    if (status != STATUS_OK)
        tape_status(piece->frame.tape, &error);
    piece_finish_walk(piece, status, &error);
}

static void piece_resume(struct dist_piece *piece)
{
    piece_advance_walk(piece, tape_resume);
}

/* ---- pieces: beginning ---- */

/* Takes a room, and begins its step. */
static enum status piece_begin(struct dist_piece *piece, struct error *error)
{
    struct gradients *gradients = NULL;
    enum status status = STATUS_OK;
    if (piece->flags.trains)
        status = use_gradients(piece->use, &gradients, error);
    if (status == STATUS_OK)
        status = room_take(piece->use, &piece->room, error);
    if (status != STATUS_OK)
        return status;
    struct tape *tape = piece->room->tape;
    piece->frame = (struct dist_frame){.caller = &piece->context->caller,
                                       .piece = piece,
                                       .tape = tape,
                                       .staging = piece->room->staging,
                                       .depth = piece->flags.depth + 1,
                                       .resume = piece_resume};
    if (piece->flags.trains)
        tape_begin_adding(tape, gradients);
    else
        tape_begin(tape, TAPE_INFER, NULL);
    piece_start_reading(piece);
    return STATUS_OK;
}

static struct dist_piece *piece_find(const struct dist_context *context, uint16_t source, uint64_t call)
{
    struct dist_piece *piece = context->pieces;
    while (piece != NULL && (piece->source != source || piece->call != call))
        piece = piece->next;
    return piece;
}

/* A new piece, with everything but its inputs and its request. */
static enum status piece_new(struct dist_context *context, uint16_t source, const struct rpc_message *message,
                             const struct forward_flags *flags, struct dist_piece **out, struct error *error)
{
    struct dist *dist = context->dist;
    const uint64_t call = message->args[FORWARD_CALL];
    if (piece_find(context, source, call) != NULL)
        return error_set(error, STATUS_INVALID,
                         "call %" PRIu64 " of worker %u came before: expected a new number", call, source);
    if (dist->counts.pieces >= dist->config.pieces_max)
        return error_set(error, STATUS_BUSY,
                         "worker %u computes %u calls of its objects: no more than %u fit", dist->worker,
                         dist->counts.pieces, dist->config.pieces_max);
    struct dist_use *use;
    enum status status = use_take(context, source, message->args[FORWARD_OBJECT], &use, error);
    if (status != STATUS_OK)
        return status;
    struct dist_piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a call");
    piece->context = context;
    piece->source = source;
    piece->call = call;
    piece->use = use;
    piece->flags = *flags;
    piece->given = (struct dist_given){
        .function = flags->function, .number_count = flags->numbers, .in_count = flags->inputs};
    piece->next = context->pieces;
    context->pieces = piece;
    dist->counts.pieces++;
    status = piece_begin(piece, error);
    if (status != STATUS_OK)
        piece_end(piece, status, error->text);
    *out = piece;
    return status;
}

/* ---- pieces: what the class's code calls ----
 * The code may still look at its tape after it has answered, so the piece is tidied only when the code has
 * returned (piece_finish_forward). */

struct tape *dist_piece_tape(struct dist_piece *piece)
{
    return piece->frame.tape;
}

const struct dist_given *dist_piece_given(const struct dist_piece *piece)
{
    return &piece->given;
}

/* An output in the tape's own memory is sent as it lies, and kept until the context ends. Other memory (an
 * input passed on, a parameter) may change before, so it is copied. */
static enum status piece_put_output(struct dist_piece *piece, struct variable *out,
                                    struct rpc_message *answer, struct error *error)
{
    const struct tensor *tensor = variable_tensor(out);
    const uint32_t index = answer->tensor_count;
    void *block;
    if (tensor->data == NULL)
        return error_set(error, STATUS_INVALID, "output %u was released before its return", index);
    enum status status = message_put_tensor(piece->frame.tape, piece->frame.staging, tensor, tape_keep(out),
                                            answer, &block, error);
    if (status != STATUS_OK)
        return status;
    if (tensor->shape.rank == 0)
        answer->args[ANSWER_SCALARS] |= (uint64_t)1 << index;
    if (piece->flags.trains && variable_needs_gradient(out))
        answer->args[ANSWER_KEPT] = 1;
    piece->out[index] = out;
    return STATUS_OK;
}

void dist_return(struct dist_piece *piece, struct variable *const out[], uint32_t out_count)
{
    struct rpc_message answer = {.context = piece->context->id};
    struct error error = {0};
    enum status status = tape_status(piece->frame.tape, &error);
    if (piece->state != PIECE_FORWARD)
        return;
    if (status == STATUS_OK && out_count > DIST_OUTPUTS_MAX)
        status = error_set(&error, STATUS_INVALID, "a call returns %u outputs: expected at most %d",
                           out_count, DIST_OUTPUTS_MAX);
    for (uint32_t i = 0; i < out_count && status == STATUS_OK; i++)
        status = out[i] != NULL ? piece_put_output(piece, out[i], &answer, &error)
                                : error_set(&error, STATUS_INVALID, "a call returns no output %u", i);
    if (status != STATUS_OK) {
        piece->state = PIECE_FAILED;
        piece_refuse(piece, status, error.text);
        return;
    }
    piece->out_count = out_count;
    piece->lends = message_is_large(&answer);
    piece->state = answer.args[ANSWER_KEPT] ? PIECE_KEPT : PIECE_OVER;
    piece_reply(piece, &answer);
}

/* Records an answered call, or ends it when the piece has been completed, and continues the piece's code. */
static void piece_continue(struct dist_piece *piece, struct dist_call *call)
{
    struct variable *out[DIST_OUTPUTS_MAX];
    struct error error = {0};
    const struct dist_follow follow = call_follow(call);
    uint32_t count = 0;
    enum status status = STATUS_INVALID;
    if (piece->state == PIECE_FORWARD) {
        status = call_record(call, out, &count, &error);
        if (status != STATUS_OK)
            tape_fail(piece->frame.tape, status, "%s", error.text);
    } else {
        call_end(call);
    }
    piece_enter(piece);
    follow.then(follow.arg, piece, status, status == STATUS_OK ? out : NULL, status == STATUS_OK ? count : 0);
    piece_leave(piece);
}

/* An answer waits for those of earlier calls, so that calls are recorded in the order in which they were
 * made. */
static void piece_call_answered(struct future *future, void *arg)
{
    struct dist_call *call = arg;
    struct dist_piece *piece = call_answered(call);
    (void)future;
    if (piece == NULL)
        return;
    const bool was_open = piece->state == PIECE_FORWARD;
    while ((call = frame_next_answered(&piece->frame)) != NULL)
        piece_continue(piece, call);
    if (was_open)
        piece_finish_forward(piece);
}

void dist_call_async(struct dist_piece *piece, struct rref *object, uint32_t function,
                     const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                     uint32_t in_count, dist_then *then, void *arg)
{
    struct error error = {0};
    const struct dist_asked asked = {object, function, numbers, number_count, in, in_count};
    const struct dist_follow follow = {then, arg};
    struct dist_call *call;
    enum status status = call_start(&piece->frame, &asked, &follow, piece_call_answered, &call, &error);
    if (status == STATUS_OK)
        return;
    tape_fail(piece->frame.tape, status, "%s", error.text);
    then(arg, piece, status, NULL, 0);
}

/* ---- contexts: beginning ---- */

static uint16_t root_of(uint64_t id)
{
    return (uint16_t)(id >> NUMBER_BITS);
}

/* NULL: not here. */
static struct dist_context *context_find(const struct dist *dist, uint64_t id)
{
    struct dist_context *context = dist->contexts;
    while (context != NULL && context->id != id)
        context = context->next;
    return context;
}

static enum status context_make(struct dist *dist, uint64_t id, struct dist_context **out,
                                struct error *error)
{
    enum status status = lost_check(&dist->lost, error);
    if (status != STATUS_OK)
        return status;
    if (dist->counts.contexts >= dist->config.contexts_max)
        return error_set(error, STATUS_BUSY, "worker %u has %u contexts: no more than %u fit", dist->worker,
                         dist->counts.contexts, dist->config.contexts_max);
    struct dist_context *context =
        calloc(1, sizeof *context + rpc_workers(dist->config.rpc) * sizeof context->called[0]);
    if (context == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a context");
    context->dist = dist;
    context->caller = (struct dist_caller){
        .rpc = dist->config.rpc, .lost = &dist->lost, .context = id, .called = context->called};
    context->id = id;
    context->is_root = root_of(id) == dist->worker;
    context->next = dist->contexts;
    dist->contexts = context;
    dist->counts.contexts++;
    *out = context;
    return STATUS_OK;
}

/* Why a context is not here: STATUS_NOT_FOUND, or a death. */
static enum status context_absent(const struct dist *dist, uint64_t id, struct error *error)
{
    enum status status = lost_check(&dist->lost, error);
    return status != STATUS_OK
               ? status
               : error_set(error, STATUS_NOT_FOUND, "this worker has no context %" PRIx64, id);
}

/* The context for a call; made when this is the first that names it. STATUS_INVALID: no such root;
 * STATUS_NOT_FOUND: its root is this worker, and it has ended; STATUS_BUSY; a death. */
static enum status context_enter(struct dist *dist, uint64_t id, struct dist_context **out,
                                 struct error *error)
{
    const uint16_t root = root_of(id);
    *out = context_find(dist, id);
    if (*out != NULL)
        return lost_check(&dist->lost, error);
    if (root >= rpc_workers(dist->config.rpc))
        return error_set(error, STATUS_INVALID,
                         "context %" PRIx64 " of worker %u: expected a worker below %u", id, root,
                         rpc_workers(dist->config.rpc));
    if (root == dist->worker)
        return error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " has ended", id);
    return context_make(dist, id, out, error);
}

/* ---- contexts: ending ---- */

/* Ends the context here. The newest pieces end first, so that rooms are taken again in the same order. */
static void context_finish(struct dist_context *context, enum status status, const char *text)
{
    struct dist_context **link = &context->dist->contexts;
    if (context->is_root) {
        frame_close(&context->frame, status);
        tape_finish(context->frame.tape, NULL);
    }
    while (context->pieces != NULL)
        piece_end(context->pieces, status, text); // it unlinks; NOLINT(clang-analyzer-unix.Malloc)
    context_release_uses(context);
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    context->dist->counts.contexts--;
}

/* Both end the context here. context_end sends END_CONTEXT to the workers that this one has called in it.
 * context_lose: after a death (`text`), which the others learn of themselves. */
static void context_end(struct dist_context *context)
{
    char text[64];
    snprintf(text, sizeof text, "context %" PRIx64 " has ended", context->id);
    context_finish(context, STATUS_NOT_FOUND, text);
    caller_send_ends(&context->caller);
    free(context);
}

static void context_lose(struct dist_context *context, const char *text)
{
    context_finish(context, STATUS_PEER_DIED, text);
    free(context);
}

/* ---- deaths ---- */

/* A root's own record stays until it is freed. */
static void dist_on_left(void *arg, uint16_t worker, enum status why, const char *reason)
{
    struct dist *dist = arg;
    (void)why;
    (void)reason;
    if (dist->lost.status == STATUS_OK)
        error_set(&dist->lost, STATUS_PEER_DIED, "worker %u is gone", worker);
    for (struct dist_context *context = dist->contexts; context != NULL;) {
        struct dist_context *next = context->next;
        if (!context->is_root)
            context_lose(context, dist->lost.text);
        context = next;
    }
}

/* ---- END_CONTEXT ---- */

/* Whether `source` may end this record: a piece comes from it, or failed calls have left no piece at all. */
static bool context_serves(const struct dist_context *context, uint16_t source)
{
    const struct dist_piece *piece = context->pieces;
    while (piece != NULL && piece->source != source)
        piece = piece->next;
    return piece != NULL || context->pieces == NULL;
}

static void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct dist_context *context = context_find(dist, message->context);
    const uint16_t source = rpc_request_source(request);
    if (context != NULL && context->is_root) {
        rpc_reject(request, "worker %u ends context %" PRIx64 ", which another worker began", source,
                   message->context);
        return;
    }
    if (context != NULL && (source == root_of(context->id) || context_serves(context, source)))
        context_end(context);
    rpc_reply(request, NULL);
}

/* ---- for the optimizer ---- */

enum status dist_gradients(struct dist *dist, uint64_t context, void *object, struct gradients **out,
                           struct error *error)
{
    const struct dist_context *found = context_find(dist, context);
    if (found == NULL)
        return context_absent(dist, context, error);
    *out = NULL;
    for (const struct dist_use *use = found->uses; use != NULL; use = use->next)
        if (use->object->object == object && use->trains)
            *out = use->gradients;
    return STATUS_OK;
}

/* ---- FORWARD, received ---- */

static void request_refuse(struct dist *dist, struct rpc_request *request, const struct error *error)
{
    rpc_fail(request, error->status, "worker %u: %s", dist->worker, error->text);
}

static enum status piece_take_inputs(struct dist_piece *piece, const struct rpc_message *message,
                                     struct error *error)
{
    const struct forward_flags *flags = &piece->flags;
    uint32_t at = flags->numbers > 0;
    if (flags->numbers > 0)
        memcpy(piece->given.numbers, message->data[0], flags->numbers * sizeof piece->given.numbers[0]);
    for (uint32_t i = 0; i < DIST_INPUTS_MAX; i++) {
        if (!(flags->present >> i & 1))
            continue;
        struct tensor tensor;
        enum status status = message_take_tensor(piece->frame.tape, piece->frame.staging, message, at++,
                                                 flags->scalars >> i & 1, &tensor, error);
        if (status != STATUS_OK)
            return status;
        tensor.name = "input";
        piece->given.in[i] = tape_constant(piece->frame.tape, &tensor);
        if (flags->wanted >> i & 1)
            tape_want_gradient(piece->given.in[i]);
    }
    return tape_status(piece->frame.tape, error);
}

static void piece_compute_forward(struct dist_piece *piece, const struct rpc_message *message)
{
    struct error error = {0};
    enum status status = piece_take_inputs(piece, message, &error);
    const enum profile_kind before =
        profile_enter(piece->flags.trains ? PROFILE_LEARNING : PROFILE_INFERENCE);
    piece_enter(piece);
    if (status == STATUS_OK) {
        piece->use->object->rules->forward(piece->use->object->object, piece);
    } else {
        tape_fail(piece->frame.tape, status, "%s", error.text);
        dist_return(piece, NULL, 0);
    }
    piece_leave(piece);
    profile_leave(before);
    piece_finish_forward(piece);
}

static void dist_on_forward(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct error error = {0};
    struct forward_flags flags;
    struct dist_context *context = NULL;
    struct dist_piece *piece = NULL;
    if (message->context == 0 || !flags_unpack(message, &flags)) {
        rpc_reject(request, "a call within a context whose flags do not fit its tensors");
        return;
    }
    enum status status = STATUS_OK;
    if (flags.depth > DIST_DEPTH_MAX)
        status = error_set(&error, STATUS_INVALID, "calls nested deeper than %d", DIST_DEPTH_MAX);
    if (status == STATUS_OK)
        status = context_enter(dist, message->context, &context, &error);
    if (status == STATUS_OK)
        status = piece_new(context, rpc_request_source(request), message, &flags, &piece, &error);
    if (status != STATUS_OK) {
        request_refuse(dist, request, &error);
        return;
    }
    piece->request = request;
    piece_compute_forward(piece, message);
}

/* ---- BACKWARD, received ---- */

static bool gradients_are_sound(const struct rpc_message *message)
{
    const uint64_t outputs = message->args[BACKWARD_OUTPUTS];
    bool sound = message->context != 0 && outputs != 0 && outputs >> DIST_OUTPUTS_MAX == 0 &&
                 __builtin_popcountll(outputs) == message->tensor_count;
    for (uint32_t i = 0; i < message->tensor_count && sound; i++)
        sound = wire_tensor_is_sound(&message->tensors[i], false) && message->tensors[i].dtype == WIRE_F32;
    return sound;
}

/* The piece that the message walks back. */
static enum status piece_find_kept(const struct dist *dist, const struct rpc_message *message,
                                   uint16_t source, struct dist_piece **out, struct error *error)
{
    const uint64_t call = message->args[BACKWARD_CALL];
    const struct dist_context *context = context_find(dist, message->context);
    if (context == NULL)
        return context_absent(dist, message->context, error);
    struct dist_piece *piece = piece_find(context, source, call);
    if (piece == NULL)
        return error_set(error, STATUS_NOT_FOUND, "this worker has no call %" PRIu64 " of worker %u", call,
                         source);
    if (piece->state != PIECE_KEPT)
        return error_set(error, STATUS_INVALID,
                         piece->state == PIECE_FORWARD
                             ? "a backward of call %" PRIu64 " before the call's answer"
                             : "a backward of call %" PRIu64 ": it had one before, or keeps nothing for it",
                         call);
    if (message->args[BACKWARD_OUTPUTS] >> piece->out_count != 0)
        return error_set(error, STATUS_INVALID,
                         "a backward of call %" PRIu64 ": expected gradients of its %u outputs alone", call,
                         piece->out_count);
    *out = piece;
    return STATUS_OK;
}

/* A gradient of a wrong shape fails the tape. */
static enum status piece_seed(struct dist_piece *piece, const struct rpc_message *message,
                              struct error *error)
{
    struct tape *tape = piece->frame.tape;
    uint32_t at = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < piece->out_count && status == STATUS_OK; i++) {
        if (!(message->args[BACKWARD_OUTPUTS] >> i & 1))
            continue;
        struct tensor gradient;
        status = message_take_tensor(tape, piece->frame.staging, message, at++,
                                     variable_tensor(piece->out[i])->shape.rank == 0, &gradient, error);
        if (status == STATUS_OK && tape_seed(tape, piece->out[i], &gradient) != STATUS_OK)
            status = tape_status(tape, error);
    }
    return status;
}

static void dist_on_backward(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct error error = {0};
    struct dist_piece *piece = NULL;
    if (!gradients_are_sound(message)) {
        rpc_reject(request, "a backward whose gradients do not match the outputs that it names");
        return;
    }
    enum status status = piece_find_kept(dist, message, rpc_request_source(request), &piece, &error);
    if (status != STATUS_OK) {
        request_refuse(dist, request, &error);
        return;
    }
    piece->request = request;
    piece->state = PIECE_WALKING;
    status = piece_seed(piece, message, &error);
    if (status == STATUS_OK)
        piece_advance_walk(piece, tape_walk);
    else
        piece_finish_walk(piece, status, &error);
}

/* ---- the root: its context ---- */

/* Host memory for tensors of messages: the tape's own, or one arena of all roots here where the tape's is a
 * device's. */
static enum status root_staging(struct dist *dist, struct tape *tape, struct arena **out, struct error *error)
{
    const bool host = tape_backend(tape)->ops->host;
    const struct arena_source source = memory_source(&dist->memory);
    enum status status =
        host || dist->staging != NULL ? STATUS_OK : arena_new(&dist->staging, &source, error);
    *out = host ? tape_arena(tape) : dist->staging;
    return status;
}

enum status dist_context_new(struct dist_context **out, struct dist *dist, enum tape_mode mode,
                             struct tape *tape, struct error *error)
{
    struct dist_context *context;
    struct arena *staging;
    enum status status = root_staging(dist, tape, &staging, error);
    if (status == STATUS_OK)
        status = context_make(dist, dist->next_context, &context, error);
    if (status != STATUS_OK)
        return status;
    dist->next_context++;
    tape_begin(tape, mode, NULL);
    context->frame =
        (struct dist_frame){.caller = &context->caller, .tape = tape, .staging = staging, .depth = 1};
    *out = context;
    return STATUS_OK;
}

void dist_context_free(struct dist_context *context)
{
    if (context != NULL)
        context_end(context);
}

uint64_t dist_context_id(const struct dist_context *context)
{
    return context->id;
}

/* ---- the root: calls ---- */

enum status dist_call(struct dist_context *context, struct rref *object, uint32_t function,
                      const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                      uint32_t in_count, struct variable *out[], uint32_t out_count)
{
    struct error error = {0};
    const struct dist_asked asked = {object, function, numbers, number_count, in, in_count};
    enum status status = frame_call(&context->frame, &asked, out, out_count, &error);
    if (status == STATUS_OK)
        return STATUS_OK;
    for (uint32_t i = 0; i < out_count; i++) // not before: `out` may be `in`
        out[i] = NULL;
    tape_fail(context->frame.tape, status, "%s", error.text);
    return status;
}

/* ---- the root: backward ---- */

static enum status root_walk(struct dist_frame *frame, struct error *error)
{
    enum status status = tape_walk(frame->tape);
    while (status == STATUS_AGAIN) {
        status = frame_wait(frame, error);
        if (status != STATUS_OK)
            return status;
        status = tape_resume(frame->tape);
    }
    return status == STATUS_OK ? lost_check(frame->caller->lost, error) : tape_status(frame->tape, error);
}

enum status dist_backward(struct dist_context *context, struct variable *loss, struct error *error)
{
    struct dist_frame *frame = &context->frame;
    struct error failure = {0};
    if (lost_check(&context->dist->lost, &failure) != STATUS_OK)
        tape_fail(frame->tape, failure.status, "%s", failure.text);
    if (loss != NULL && variable_tensor(loss)->shape.rank != 0)
        tape_fail(frame->tape, STATUS_INVALID, "a loss that is no scalar");
    enum status status = tape_seed(frame->tape, loss, NULL);
    if (status == STATUS_OK)
        status = root_walk(frame, &failure);
    else
        tape_status(frame->tape, &failure);
    if (status != STATUS_OK)
        tape_fail(frame->tape, status, "%s", failure.text);
    if (status != STATUS_OK && error != NULL)
        *error = failure;
    return status;
}

/* ---- opening, closing, counting ---- */

static const struct rpc_method methods[] = {
    {.method = METHOD_FORWARD, .callers = UINT8_MAX, .any_tensors = true, .handler = dist_on_forward},
    {.method = METHOD_BACKWARD, .callers = UINT8_MAX, .any_tensors = true, .handler = dist_on_backward},
    {.method = METHOD_END_CONTEXT, .callers = UINT8_MAX, .at_once = true, .handler = dist_on_end},
};

enum status dist_new(struct dist **out, const struct dist_config *config, struct error *error)
{
    struct dist *dist = calloc(1, sizeof *dist);
    if (dist == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for distributed autograd");
    dist->config = *config;
    dist->worker = rpc_worker(config->rpc);
    dist->next_context = (uint64_t)dist->worker << NUMBER_BITS | 1;
    enum status status = memory_new(&dist->memory, config->outbox, error);
    if (status != STATUS_OK) {
        memory_free(&dist->memory);
        free(dist);
        return status;
    }
    rpc_add_methods(config->rpc, methods, sizeof methods / sizeof methods[0], dist);
    rpc_on_left(config->rpc, dist_on_left, dist);
    rrefs_on_destroy(config->rrefs, object_on_destroy, dist);
    *out = dist;
    return STATUS_OK;
}

void dist_free(struct dist *dist)
{
    if (dist == NULL)
        return;
    rrefs_on_destroy(dist->config.rrefs, NULL, dist);
    while (dist->contexts != NULL)
        context_lose(dist->contexts, "it has left the job"); // it unlinks; NOLINT(clang-analyzer-unix.Malloc)
    while (dist->objects != NULL)
        object_on_destroy(dist, dist->objects->object);
    arena_free(dist->staging);
    memory_free(&dist->memory);
    free(dist);
}

struct rpc *dist_rpc(const struct dist *dist)
{
    return dist->config.rpc;
}

struct rrefs *dist_rrefs(const struct dist *dist)
{
    return dist->config.rrefs;
}

struct arena_source dist_arena_source(struct dist *dist)
{
    return memory_source(&dist->memory);
}

void dist_counts(const struct dist *dist, struct dist_counts *counts)
{
    *counts = dist->counts;
}
