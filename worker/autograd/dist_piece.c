/* The callee: pieces. One is made by FORWARD, computes on a tape of its own, and waits for BACKWARD or DROP.
 * What it was answered with lies in its room until the context ends, if it is large enough to be lent. */
#include "worker/autograd/dist_internal.h"

#include <inttypes.h>
#include <string.h>

static void refuse(struct dist *dist, struct rpc_request *request, const struct error *error)
{
    rpc_fail(request, error->status, "worker %u: %s", rpc_worker(dist->config.rpc), error->text);
}

static struct dist_piece *find_piece(const struct dist_context *context, uint16_t caller, uint64_t call)
{
    struct dist_piece *piece = context->pieces;
    while (piece != NULL && (piece->caller != caller || piece->call != call))
        piece = piece->next;
    return piece;
}

/* ---- versions ---- */

/* What its context's other pieces of the object hold, or else the newest. */
static void hold_version(struct dist_piece *piece)
{
    struct dist_versions *versions = piece->part->object->versions;
    const struct dist_piece *other = piece->frame.context->pieces;
    if (versions == NULL)
        return;
    while (other != NULL && !(other->part == piece->part && other->has_version))
        other = other->next;
    if (other != NULL)
        dist_versions_hold_same(versions, other->version);
    piece->version = other != NULL ? other->version : dist_versions_hold(versions);
    piece->has_version = true;
}

static void drop_version(struct dist_piece *piece)
{
    if (piece->has_version)
        dist_versions_drop(piece->part->object->versions, piece->version);
    piece->has_version = false;
}

/* ---- ending ---- */

/* Gives the room back; with it goes what was answered. */
static void leave_room(struct dist_piece *piece, enum status status)
{
    if (piece->room == NULL)
        return;
    tape_fail(piece->frame.tape, status, "the call was answered");
    frame_close(&piece->frame, status);
    room_release(piece->part->object, piece->room);
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
    leave_room(piece, status);
    drop_version(piece);
    struct dist_piece **link = &context->pieces;
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    piece->next = dist->free_pieces;
    dist->free_pieces = piece;
    dist->piece_count--;
}

/* Nobody will ask it back. The walk from no seed lets go of what was kept for that, and of calls. */
static void piece_over(struct dist_piece *piece)
{
    piece->state = PIECE_OVER;
    if (piece->lends && piece->flags.trains)
        tape_walk(piece->frame.tape);
    if (!piece->lends)
        leave_room(piece, STATUS_INVALID);
    drop_version(piece);
    drops_send(piece->frame.context);
}

void piece_settle(struct dist_piece *piece)
{
    struct dist_context *context = piece->frame.context;
    if (piece->state == PIECE_OVER && piece->room != NULL)
        piece_over(piece);
    if (piece->state == PIECE_FAILED) {
        piece_end(piece, STATUS_INVALID, "the call has failed");
        drops_send(context);
    }
}

/* ---- FORWARD ---- */

static enum status take_inputs(struct dist_piece *piece, const struct rpc_message *message,
                               struct error *error)
{
    const struct forward_flags *flags = &piece->flags;
    uint32_t at = flags->numbers > 0;
    if (flags->numbers > 0)
        memcpy(piece->numbers, message->data[0], flags->numbers * sizeof piece->numbers[0]);
    for (uint32_t i = 0; i < DIST_INPUTS_MAX; i++) {
        if (!(flags->present >> i & 1))
            continue;
        struct tensor tensor;
        enum status status =
            travel_take(&piece->frame, message, at++, flags->scalars >> i & 1, &tensor, error);
        if (status != STATUS_OK)
            return status;
        tensor.name = "input";
        piece->in[i] = tape_constant(piece->frame.tape, &tensor);
        if (flags->wanted >> i & 1)
            tape_want_gradient(piece->in[i]);
    }
    return tape_status(piece->frame.tape, error);
}

/* Takes the room, and begins its step. */
static enum status begin(struct dist_piece *piece, struct error *error)
{
    struct dist_context *context = piece->frame.context;
    struct dist_object *object = piece->part->object;
    struct gradients *gradients = NULL;
    enum status status = STATUS_OK;
    if (piece->flags.trains)
        status = part_gradients(piece->part, &gradients, error);
    if (status == STATUS_OK)
        status = room_take(context->dist, object, &piece->room, error);
    if (status != STATUS_OK)
        return status;
    struct tape *tape = piece->room->tape;
    frame_open(&piece->frame, context, piece, tape, piece->room->staging, piece->flags.depth + 1);
    if (piece->flags.trains)
        tape_begin_adding(tape, gradients);
    else
        tape_begin(tape, TAPE_INFER, NULL);
    hold_version(piece);
    return STATUS_OK;
}

/* A new piece in its context, with everything but its inputs. */
static enum status make_piece(struct dist_context *context, uint16_t caller,
                              const struct rpc_message *message, const struct forward_flags *flags,
                              struct dist_piece **out, struct error *error)
{
    struct dist *dist = context->dist;
    const uint64_t call = message->args[FORWARD_CALL];
    if (find_piece(context, caller, call) != NULL)
        return error_set(error, STATUS_INVALID, "call %" PRIu64 " of worker %u was made before", call,
                         caller);
    if (dist->piece_count >= dist->config.pieces_max)
        return error_set(error, STATUS_BUSY, "%u calls are kept, as many as may be", dist->piece_count);
    struct dist_part *part;
    enum status status = part_take(context, caller, message->args[FORWARD_OBJECT], &part, error);
    if (status != STATUS_OK)
        return status;
    struct dist_piece *piece = dist_take((void **)&dist->free_pieces, sizeof *piece);
    if (piece == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a call");
    piece->frame.context = context;
    piece->caller = caller;
    piece->call = call;
    piece->part = part;
    piece->flags = *flags;
    piece->next = context->pieces;
    context->pieces = piece;
    dist->piece_count++;
    status = begin(piece, error);
    if (status != STATUS_OK)
        piece_end(piece, status, error->text);
    *out = piece;
    return status;
}

void dist_on_forward(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct error error = {0};
    struct forward_flags flags;
    struct dist_context *context = NULL;
    struct dist_piece *piece = NULL;
    const uint16_t caller = rpc_request_source(request);
    if (message->context == 0 || !flags_unpack(message, &flags)) {
        rpc_reject(request, "a call within a context whose flags do not fit its tensors");
        return;
    }
    enum status status = STATUS_OK;
    if (flags.depth > DIST_DEPTH_MAX)
        status = error_set(&error, STATUS_INVALID, "calls nested deeper than %d", DIST_DEPTH_MAX);
    if (status == STATUS_OK)
        status = context_enter(dist, message->context, caller, &context, &error);
    if (status == STATUS_OK)
        status = make_piece(context, caller, message, &flags, &piece, &error);
    if (status != STATUS_OK) {
        refuse(dist, request, &error);
        return;
    }
    piece->request = request;
    status = take_inputs(piece, message, &error);
    piece_enter(piece);
    if (status == STATUS_OK)
        piece->part->object->rules->forward(piece->part->object->object, piece);
    else
        dist_fail(piece, status, "%s", error.text);
    piece_leave(piece);
    piece_settle(piece);
}

/* ---- BACKWARD ---- */

static enum status answer_gradients(struct dist_piece *piece, struct error *error)
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
        status = travel_put(&piece->frame, gradient, true, &answer, &block, error);
    }
    if (status != STATUS_OK)
        return status;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    piece->lends = piece->lends || travel_is_large(&answer);
    rpc_reply(request, &answer);
    return STATUS_OK;
}

/* The walk has ended, `status` says how. */
static void finish(struct dist_piece *piece, enum status status, struct error *error)
{
    if (status == STATUS_OK)
        status = answer_gradients(piece, error);
    if (status != STATUS_OK) {
        struct rpc_request *request = piece->request;
        piece->request = NULL;
        rpc_fail(request, status, "worker %u: %s: %s", rpc_worker(piece->frame.dist->config.rpc),
                 piece->part->object->class->name, error->text);
    }
    piece->state = PIECE_OVER;
    if (!piece->lends)
        leave_room(piece, STATUS_INVALID);
    drop_version(piece);
    drops_send(piece->frame.context);
}

static void walk(struct dist_piece *piece, bool first)
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
        finish(piece, status, &error);
}

void piece_go_on(struct dist_piece *piece)
{
    struct error error = {0};
    if (piece->state == PIECE_WALKING)
        walk(piece, false);
    else if (piece->state == PIECE_GATHERING && piece->frame.ahead == 0)
        finish(piece, STATUS_OK, &error);
}

static bool gradients_are_sound(const struct rpc_message *message)
{
    const uint64_t outputs = message->args[BACKWARD_OUTPUTS];
    bool sound = message->context != 0 && outputs != 0 && outputs >> DIST_OUTPUTS_MAX == 0 &&
                 __builtin_popcountll(outputs) == message->tensor_count;
    for (uint32_t i = 0; i < message->tensor_count && sound; i++)
        sound = travel_is_sound(&message->tensors[i]) && message->tensors[i].dtype == WIRE_F32;
    return sound;
}

static enum status find_kept(struct dist *dist, const struct rpc_message *message, uint16_t caller,
                             struct dist_piece **out, struct error *error)
{
    const struct dist_context *context = context_find(dist, message->context);
    if (context == NULL)
        return context_absent(dist, message->context, error);
    if (context->error.status != STATUS_OK)
        return error_set(error, context->error.status, "%s", context->error.text);
    const uint64_t call = message->args[BACKWARD_CALL];
    struct dist_piece *piece = find_piece(context, caller, call);
    if (piece == NULL)
        return error_set(error, STATUS_NOT_FOUND, "call %" PRIu64 " of worker %u is not here", call, caller);
    if (piece->state != PIECE_KEPT)
        return error_set(error, STATUS_INVALID,
                         piece->state == PIECE_FORWARD
                             ? "a backward of call %" PRIu64 ", which is not answered yet"
                             : "a second backward of call %" PRIu64 ", or it keeps nothing",
                         call);
    if (message->args[BACKWARD_OUTPUTS] >> piece->out_count != 0)
        return error_set(error, STATUS_INVALID, "call %" PRIu64 " has %u outputs: no gradient for more", call,
                         piece->out_count);
    *out = piece;
    return STATUS_OK;
}

/* A gradient of a wrong shape fails the tape. */
static enum status seed(struct dist_piece *piece, const struct rpc_message *message, struct error *error)
{
    struct tape *tape = piece->frame.tape;
    uint32_t at = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < piece->out_count && status == STATUS_OK; i++) {
        if (!(message->args[BACKWARD_OUTPUTS] >> i & 1))
            continue;
        const struct wire_tensor *wire = &message->tensors[at];
        const bool is_scalar =
            variable_tensor(piece->out[i])->shape.rank == 0 && wire->rank == 1 && wire->dims[0] == 1;
        struct tensor gradient;
        status = travel_take(&piece->frame, message, at++, is_scalar, &gradient, error);
        if (status == STATUS_OK && tape_seed(tape, piece->out[i], &gradient) != STATUS_OK)
            status = tape_status(tape, error);
    }
    return status;
}

void dist_on_backward(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct error error = {0};
    struct dist_piece *piece = NULL;
    if (!gradients_are_sound(message)) {
        rpc_reject(request, "a backward whose gradients are not those that it names");
        return;
    }
    enum status status = find_kept(dist, message, rpc_request_source(request), &piece, &error);
    if (status != STATUS_OK || piece == NULL) {
        refuse(dist, request, &error);
        return;
    }
    piece->request = request;
    piece->state = PIECE_WALKING;
    status = seed(piece, message, &error);
    if (status == STATUS_OK)
        walk(piece, true);
    else
        finish(piece, status, &error);
}

/* ---- DROP ---- */

void dist_on_drop(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    const uint16_t caller = rpc_request_source(request);
    const struct wire_tensor *ids = &message->tensors[0];
    if (message->context == 0 || message->tensor_count != 1 || ids->dtype != WIRE_U64 || ids->rank != 1 ||
        ids->dims[0] > DROPS_MAX) {
        rpc_reject(request, "calls to let go of that are no list of at most %d numbers", DROPS_MAX);
        return;
    }
    const struct dist_context *context = context_find(dist, message->context);
    for (uint32_t i = 0; context != NULL && i < ids->dims[0]; i++) {
        uint64_t call;
        memcpy(&call, (const char *)message->data[0] + i * sizeof call, sizeof call);
        struct dist_piece *piece = find_piece(context, caller, call);
        if (piece != NULL && piece->state == PIECE_KEPT)
            piece_over(piece);
    }
    rpc_reply(request, NULL);
}
