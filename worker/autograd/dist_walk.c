/* The caller: the backward of a call, when the walk of its tape reaches the call's node; and the walk of one
 * frame. dist.c argues why the order of the requests makes sums equal. */
#include "worker/autograd/dist_internal.h"

#include <assert.h>

/* Backwards of one frame ahead at a time: enough to keep a worker busy, and far fewer calls than an rpc has
 * room for. */
enum { AHEAD_MAX = 32 };

/* ---- waking ---- */

static void frame_wake(struct dist_frame *frame)
{
    if (frame->is_walking)
        frame->was_woken = true;
    else if (frame->woken != NULL)
        frame->woken(frame);
}

/* A backward that was sent is answered. */
static enum status on_gradients(struct future *future, void *arg)
{
    struct dist_call *call = arg;
    const enum status status = future_status(future);
    if (!call_answered(call))
        return status;
    struct dist_frame *frame = call->frame;
    if (!call->is_ahead) {
        frame_wake(frame);
        return status;
    }
    if (status != STATUS_OK && frame->ahead_error.status == STATUS_OK)
        call_failure(call, &frame->ahead_error);
    call_forget(call);
    if (--frame->ahead == 0)
        frame_wake(frame);
    return status;
}

/* ---- one node ---- */

/* A BACKWARD goes ahead, unawaited, when its answer has no gradient, nothing in it is lent, and its piece has
 * called nobody. */
static enum status call_send_backward(struct dist_call *call, const struct tensor *const dout[],
                                      struct error *error)
{
    struct dist_frame *frame = call->frame;
    struct rpc_message message = {.context = frame->context->id, .args = {[BACKWARD_CALL] = call->id}};
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < call->out_count && status == STATUS_OK; i++) {
        if (dout[i] == NULL)
            continue;
        message.args[BACKWARD_OUTPUTS] |= (uint64_t)1 << i;
        status = message_put_tensor(frame, dout[i], true, &message, &call->output_block[i], error);
    }
    call->is_ahead = call->wanted == 0 && !call->has_called && !call->is_lent && !message_is_large(&message);
    if (call->is_ahead) {
        frame->ahead++;
        frame->ahead_worker = call->worker;
    }
    call->state = CALL_BACKWARD;
    call->was_walked = true;
    if (status == STATUS_OK)
        status = call_send(call, METHOD_BACKWARD, &message, on_gradients, error);
    if (call->is_ahead || status != STATUS_OK)
        call_release_outputs(call);
    if (call->is_ahead && status != STATUS_OK)
        frame->ahead--;
    return status;
}

/* Copies the answer's gradients to where the tape wants them. */
static enum status call_take_gradients(struct dist_call *call, struct tensor *const din[],
                                       struct error *error)
{
    struct dist_frame *frame = call->frame;
    enum status status = call_failure(call, error);
    if (status != STATUS_OK)
        return status;
    const struct rpc_message *answer = future_value(call->future);
    const uint64_t given = answer->args[GRADIENT_INPUTS];
    if ((given & ~(uint64_t)call->wanted) != 0 ||
        (uint32_t)__builtin_popcountll(given) != answer->tensor_count)
        return error_set(error, STATUS_INVALID, "worker %u has answered with gradients that it was not asked",
                         call->worker);
    uint32_t at = 0;
    for (uint32_t i = 0; i < call->in_count && status == STATUS_OK; i++) {
        if (!(given >> i & 1))
            continue;
        const uint32_t index = at++;
        if (din[i] == NULL)
            continue;
        if (din[i]->data == NULL)
            status = tensor_new(din[i], tape_arena(frame->tape), din[i]->shape, din[i]->dtype, din[i]->name,
                                error);
        if (status == STATUS_OK)
            status = message_copy_tensor(frame, answer, index, din[i], error);
    }
    return status;
}

enum status call_backward(void *arg, struct tape *tape, bool first, const struct tensor *const dout[],
                          struct tensor *const din[], struct error *error)
{
    struct dist_call *call = arg;
    struct dist_frame *frame = call->frame;
    (void)tape;
    if (!call->is_kept)
        return STATUS_OK; // its outputs have no gradient
    if (first)
        call->state = CALL_TURN;
    if (call->state == CALL_TURN) {
        if (frame->ahead >= AHEAD_MAX || (frame->ahead > 0 && frame->ahead_worker != call->worker))
            return STATUS_AGAIN;
        enum status status = frame_failure(frame, error);
        if (status == STATUS_OK)
            status = call_send_backward(call, dout, error);
        return status == STATUS_OK && !call->is_ahead ? STATUS_AGAIN : status;
    }
    if (call->is_pending)
        return STATUS_AGAIN;
    enum status status = call_take_gradients(call, din, error);
    call_release_outputs(call);
    return status;
}

/* ---- a frame ---- */

enum status frame_failure(const struct dist_frame *frame, struct error *error)
{
    const struct error *first =
        frame->ahead_error.status != STATUS_OK ? &frame->ahead_error : &frame->context->error;
    if (first->status != STATUS_OK)
        *error = *first;
    return first->status;
}

enum status frame_walk(struct dist_frame *frame, bool first, struct error *error)
{
    enum status status;
    frame->is_walking = true;
    do {
        frame->was_woken = false;
        status = first ? tape_walk(frame->tape) : tape_resume(frame->tape);
        first = false;
    } while (status == STATUS_AGAIN && frame->was_woken);
    frame->is_walking = false;
    if (status != STATUS_OK && status != STATUS_AGAIN)
        tape_status(frame->tape, error);
    return status;
}
