/* The callee: the life of a piece. FORWARD makes a piece, which computes on a tape of its own and then waits
 * for BACKWARD or DROP. Large outputs are lent to the caller, not copied, so their memory is kept until the
 * context ends. */
#include "kernels/params/gradients.h"
#include "worker/autograd/dist_internal.h"

#include <inttypes.h>

struct dist_piece *piece_find(const struct dist_context *context, uint16_t caller, uint64_t call)
{
    struct dist_piece *piece = context->pieces;
    while (piece != NULL && (piece->caller != caller || piece->call != call))
        piece = piece->next;
    return piece;
}

/* ---- versions ---- */

/* The version that the context's other pieces of the object hold, or else the newest. */
static void piece_hold_version(struct dist_piece *piece)
{
    struct dist_versions *versions = piece->use->object->versions;
    const struct dist_piece *other = piece->frame.context->pieces;
    if (versions == NULL)
        return;
    while (other != NULL && !(other->use == piece->use && other->has_version))
        other = other->next;
    if (other != NULL)
        dist_versions_hold_same(versions, other->version);
    piece->version = other != NULL ? other->version : dist_versions_hold(versions);
    piece->has_version = true;
}

static void piece_drop_version(struct dist_piece *piece)
{
    if (piece->has_version)
        dist_versions_drop(piece->use->object->versions, piece->version);
    piece->has_version = false;
}

void piece_enter(struct dist_piece *piece)
{
    if (piece->has_version)
        dist_versions_place(piece->use->object->versions, piece->version);
}

void piece_leave(struct dist_piece *piece)
{
    if (piece->has_version)
        dist_versions_place_newest(piece->use->object->versions);
}

/* ---- ending ---- */

/* Gives the room back, and the piece's outputs with it. */
static void piece_leave_room(struct dist_piece *piece, enum status status)
{
    if (piece->room == NULL)
        return;
    tape_fail(piece->frame.tape, status, "the call was answered");
    frame_close(&piece->frame, status);
    room_release(piece->use->object, piece->room);
    piece->room = NULL;
}

void piece_end(struct dist_piece *piece, enum status status, const char *text)
{
    struct dist_context *context = piece->frame.context;
    struct dist *dist = context->dist;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    if (piece->state == PIECE_FORWARD)
        piece->state = PIECE_FAILED;
    if (request != NULL)
        rpc_fail(request, status, "worker %u: %s", rpc_worker(dist->config.rpc), text);
    piece_leave_room(piece, status);
    piece_drop_version(piece);
    struct dist_piece **link = &context->pieces;
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    piece->next = dist->free_pieces;
    dist->free_pieces = piece;
    dist->piece_count--;
}

/* A backward walk without a seed computes nothing: it frees what was saved for it, the piece's own calls
 * included. */
void piece_drop(struct dist_piece *piece)
{
    piece->state = PIECE_OVER;
    if (piece->lends && piece->flags.trains)
        tape_walk(piece->frame.tape);
    if (!piece->lends)
        piece_leave_room(piece, STATUS_INVALID);
    piece_drop_version(piece);
    drops_send(piece->frame.context);
}

void piece_finish_forward(struct dist_piece *piece)
{
    struct dist_context *context = piece->frame.context;
    if (piece->state == PIECE_OVER && piece->room != NULL)
        piece_drop(piece);
    if (piece->state == PIECE_FAILED) {
        piece_end(piece, STATUS_INVALID, "the call has failed");
        drops_send(context);
    }
}

/* ---- walking ---- */

static enum status piece_answer_gradients(struct dist_piece *piece, struct error *error)
{
    struct rpc_message answer = {.context = piece->frame.context->id};
    enum status status = tape_status(piece->frame.tape, error);
    if (status == STATUS_OK)
        status = frame_failure(&piece->frame, error);
    for (uint32_t i = 0; i < DIST_INPUTS_MAX && status == STATUS_OK; i++) {
        const struct tensor *gradient = piece->flags.wanted >> i & 1 ? variable_gradient(piece->in[i]) : NULL;
        void *block;
        if (gradient == NULL)
            continue;
        answer.args[GRADIENT_INPUTS] |= (uint64_t)1 << i;
        status = message_put_tensor(&piece->frame, gradient, true, &answer, &block, error);
    }
    if (status != STATUS_OK)
        return status;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    piece->lends = piece->lends || message_is_large(&answer);
    rpc_reply(request, &answer);
    return STATUS_OK;
}

/* Answers BACKWARD. */
void piece_finish_walk(struct dist_piece *piece, enum status status, const struct error *error)
{
    struct error failure = {0};
    if (status == STATUS_OK) {
        status = piece_answer_gradients(piece, &failure);
        error = &failure;
    }
    if (status != STATUS_OK) {
        struct rpc_request *request = piece->request;
        piece->request = NULL;
        rpc_fail(request, status, "worker %u: %s: %s", rpc_worker(piece->frame.dist->config.rpc),
                 piece->use->object->class->name, error->text);
    }
    piece->state = PIECE_OVER;
    if (!piece->lends)
        piece_leave_room(piece, STATUS_INVALID);
    piece_drop_version(piece);
    drops_send(piece->frame.context);
}

static void piece_advance_walk(struct dist_piece *piece, bool first)
{
    struct error error = {0};
    piece_enter(piece);
    enum status status = frame_walk(&piece->frame, first, &error);
    piece_leave(piece);
    if (status == STATUS_AGAIN)
        return;
    if (status == STATUS_OK && piece->frame.ahead > 0)
        piece->state = PIECE_GATHERING;
    else
        piece_finish_walk(piece, status, &error);
}

void piece_walk(struct dist_piece *piece)
{
    piece_advance_walk(piece, true);
}

static void piece_woken(struct dist_frame *frame)
{
    struct dist_piece *piece = frame->piece;
    if (piece->state == PIECE_WALKING)
        piece_advance_walk(piece, false);
    else if (piece->state == PIECE_GATHERING && frame->ahead == 0)
        piece_finish_walk(piece, STATUS_OK, NULL);
}

/* ---- beginning ---- */

/* Takes a room, and begins its step. */
static enum status piece_begin(struct dist_piece *piece, struct error *error)
{
    struct dist_context *context = piece->frame.context;
    struct dist_object *object = piece->use->object;
    struct gradients *gradients = NULL;
    enum status status = STATUS_OK;
    if (piece->flags.trains)
        status = use_gradients(piece->use, &gradients, error);
    if (status == STATUS_OK)
        status = room_take(context->dist, object, &piece->room, error);
    if (status != STATUS_OK)
        return status;
    struct tape *tape = piece->room->tape;
    frame_open(&piece->frame, context, piece, tape, piece->room->staging, piece->flags.depth + 1);
    piece->frame.woken = piece_woken;
    if (piece->flags.trains)
        tape_begin_adding(tape, gradients);
    else
        tape_begin(tape, TAPE_INFER, NULL);
    piece_hold_version(piece);
    return STATUS_OK;
}

enum status piece_new(struct dist_context *context, uint16_t caller, const struct rpc_message *message,
                      const struct forward_flags *flags, struct dist_piece **out, struct error *error)
{
    struct dist *dist = context->dist;
    const uint64_t call = message->args[FORWARD_CALL];
    if (piece_find(context, caller, call) != NULL)
        return error_set(error, STATUS_INVALID, "call %" PRIu64 " of worker %u was made before", call,
                         caller);
    if (dist->piece_count >= dist->config.pieces_max)
        return error_set(error, STATUS_BUSY, "%u calls are kept, as many as may be", dist->piece_count);
    struct dist_use *use;
    enum status status = use_take(context, caller, message->args[FORWARD_OBJECT], &use, error);
    if (status != STATUS_OK)
        return status;
    struct dist_piece *piece = dist_pool_take((void **)&dist->free_pieces, sizeof *piece);
    if (piece == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a call");
    piece->frame.context = context;
    piece->caller = caller;
    piece->call = call;
    piece->use = use;
    piece->flags = *flags;
    piece->next = context->pieces;
    context->pieces = piece;
    dist->piece_count++;
    status = piece_begin(piece, error);
    if (status != STATUS_OK)
        piece_end(piece, status, error->text);
    *out = piece;
    return status;
}
