/* The callee: FORWARD and BACKWARD, received. */
#include "worker/autograd/dist_internal.h"

#include "kernels/base/profile.h"

#include <inttypes.h>
#include <string.h>

static void request_refuse(struct dist *dist, struct rpc_request *request, const struct error *error)
{
    rpc_fail(request, error->status, "worker %u: %s", rpc_worker(dist->config.rpc), error->text);
}

/* ---- FORWARD ---- */

static enum status piece_take_inputs(struct dist_piece *piece, const struct rpc_message *message,
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
            message_take_tensor(&piece->frame, message, at++, flags->scalars >> i & 1, &tensor, error);
        if (status != STATUS_OK)
            return status;
        tensor.name = "input";
        piece->in[i] = tape_constant(piece->frame.tape, &tensor);
        if (flags->wanted >> i & 1)
            tape_want_gradient(piece->in[i]);
    }
    return tape_status(piece->frame.tape, error);
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
        status = context_enter(dist, message->context, &context, &error);
    if (status == STATUS_OK)
        status = piece_new(context, caller, message, &flags, &piece, &error);
    if (status != STATUS_OK) {
        request_refuse(dist, request, &error);
        return;
    }
    piece->request = request;
    status = piece_take_inputs(piece, message, &error);
    const enum profile_kind before = profile_enter(flags.trains ? PROFILE_LEARNING : PROFILE_INFERENCE);
    piece_enter(piece);
    if (status == STATUS_OK)
        piece->use->object->rules->forward(piece->use->object->object, piece);
    else
        dist_fail(piece, status, "%s", error.text);
    piece_leave(piece);
    profile_leave(before);
    piece_finish_forward(piece);
}

/* ---- BACKWARD ---- */

static bool gradients_are_sound(const struct rpc_message *message)
{
    const uint64_t outputs = message->args[BACKWARD_OUTPUTS];
    bool sound = message->context != 0 && outputs != 0 && outputs >> DIST_OUTPUTS_MAX == 0 &&
                 __builtin_popcountll(outputs) == message->tensor_count;
    for (uint32_t i = 0; i < message->tensor_count && sound; i++)
        sound = wire_tensor_is_sound(&message->tensors[i]) && message->tensors[i].dtype == WIRE_F32;
    return sound;
}

static enum status piece_find_kept(struct dist *dist, const struct rpc_message *message, uint16_t caller,
                                   struct dist_piece **out, struct error *error)
{
    const struct dist_context *context = context_find(dist, message->context);
    if (context == NULL)
        return context_absent(dist, message->context, error);
    const uint64_t call = message->args[BACKWARD_CALL];
    struct dist_piece *piece = piece_find(context, caller, call);
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
static enum status piece_seed(struct dist_piece *piece, const struct rpc_message *message,
                              struct error *error)
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
        status = message_take_tensor(&piece->frame, message, at++, is_scalar, &gradient, error);
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
    enum status status = piece_find_kept(dist, message, rpc_request_source(request), &piece, &error);
    if (status != STATUS_OK || piece == NULL) {
        request_refuse(dist, request, &error);
        return;
    }
    piece->request = request;
    piece->state = PIECE_WALKING;
    status = piece_seed(piece, message, &error);
    if (status == STATUS_OK)
        piece_walk(piece);
    else
        piece_finish_walk(piece, status, &error);
}
