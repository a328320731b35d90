/* The callee: the life of a piece. FORWARD makes a piece, which computes on a tape of its own and then waits
 * for BACKWARD or the context's end. Large outputs are lent to the caller, not copied, so their memory is
 * kept until the context ends. */
#include "kernels/base/profile.h"
#include "kernels/params/gradients.h"
#include "worker/autograd/dist_internal.h"

#include <inttypes.h>
#include <stdlib.h>

struct dist_piece *piece_find(const struct dist_context *context, uint16_t caller, uint64_t call)
{
    struct dist_piece *piece = context->pieces;
    while (piece != NULL && (piece->caller != caller || piece->call != call))
        piece = piece->next;
    return piece;
}

/* ---- versions ---- */

void piece_enter(struct dist_piece *piece)
{
    struct dist_versions *versions = piece->use->object->versions;
    if (versions != NULL && piece->reads)
        dist_versions_place(versions, piece->use->slot);
}

void piece_leave(struct dist_piece *piece)
{
    struct dist_versions *versions = piece->use->object->versions;
    if (versions != NULL)
        dist_versions_place_newest(versions);
}

/* ---- ending ---- */

/* Gives the room back, and the piece's outputs with it. */
static void piece_leave_room(struct dist_piece *piece, enum status status)
{
    if (piece->room == NULL)
        return;
    tape_fail(piece->frame.tape, status, "a call by an object that has answered its own call");
    frame_close(&piece->frame, status);
    room_release(piece->use->object, piece->room);
    piece->room = NULL;
}

static void piece_stop_reading(struct dist_piece *piece)
{
    if (piece->reads)
        use_stop_reading(piece->use);
    piece->reads = false;
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
    piece_stop_reading(piece);
    struct dist_piece **link = &context->pieces;
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    dist->piece_count--;
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

void piece_finish_forward(struct dist_piece *piece)
{
    if (piece->state == PIECE_OVER)
        piece_finish(piece);
    if (piece->state == PIECE_FAILED)
        piece_end(piece, STATUS_INVALID, "the call has failed");
}

/* ---- walking ---- */

static enum status piece_answer_gradients(struct dist_piece *piece, struct error *error)
{
    struct rpc_message answer = {.context = piece->frame.context->id};
    enum status status = tape_status(piece->frame.tape, error);
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
void piece_finish_walk(struct dist_piece *piece, enum status status, struct error *error)
{
    if (status == STATUS_OK)
        status = piece_answer_gradients(piece, error);
    if (status != STATUS_OK) {
        struct rpc_request *request = piece->request;
        piece->request = NULL;
        rpc_fail(request, status, "worker %u: %s: %s", rpc_worker(piece->frame.context->dist->config.rpc),
                 piece->use->object->class->name, error->text);
    }
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

void piece_walk(struct dist_piece *piece)
{
    piece_advance_walk(piece, tape_walk);
}

static void piece_resume(struct dist_piece *piece)
{
    piece_advance_walk(piece, tape_resume);
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
    piece->frame = (struct dist_frame){.context = context,
                                       .piece = piece,
                                       .tape = tape,
                                       .staging = piece->room->staging,
                                       .depth = piece->flags.depth + 1,
                                       .resume = piece_resume};
    if (piece->flags.trains)
        tape_begin_adding(tape, gradients);
    else
        tape_begin(tape, TAPE_INFER, NULL);
    use_start_reading(piece->use);
    piece->reads = true;
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
        return error_set(error, STATUS_BUSY, "worker %u holds %u calls of its objects, at most %u",
                         rpc_worker(dist->config.rpc), dist->piece_count, dist->config.pieces_max);
    struct dist_use *use;
    enum status status = use_take(context, caller, message->args[FORWARD_OBJECT], &use, error);
    if (status != STATUS_OK)
        return status;
    struct dist_piece *piece = calloc(1, sizeof *piece);
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
