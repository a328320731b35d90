/* The caller's backward: what a call's node does when the walk reaches it, and the walk of a frame. dist.c
 * says why the order in which requests are sent makes sums equal. */
#include "worker/autograd/dist_internal.h"

#include <assert.h>

/* Backwards of one frame that go ahead at a time: enough to keep a worker busy, and no more than an rpc has
 * room for beside its other calls. */
enum { AHEAD_MAX = 32 };

/* ---- waking ---- */

/* Something that the frame has waited for is there. The root waits in dist_backward. */
static void wake(struct dist_frame *frame)
{
    if (frame->is_walking)
        frame->was_woken = true;
    else if (frame->piece != NULL)
        piece_go_on(frame->piece);
}

/* Staged gradients of a request that is answered, or that was copied when it was sent. */
static void release_outputs(struct dist_call *call)
{
    for (uint32_t i = 0; i < DIST_OUTPUTS_MAX; i++) {
        arena_release(call->frame->staging, call->output_block[i]);
        call->output_block[i] = NULL;
    }
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
        wake(frame);
        return status;
    }
    if (status != STATUS_OK && frame->ahead_error.status == STATUS_OK)
        call_failure(call, &frame->ahead_error);
    call_forget(call);
    if (--frame->ahead == 0)
        wake(frame);
    return status;
}

/* ---- one node ---- */

/* Sends BACKWARD. It goes ahead when nobody needs its answer, nothing that it reads is lent, and nobody else
 * is asked because of it. */
static enum status send(struct dist_call *call, const struct tensor *const dout[], struct error *error)
{
    struct dist_frame *frame = call->frame;
    struct rpc_message message = {.context = frame->context->id, .args = {[BACKWARD_CALL] = call->id}};
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < call->out_count && status == STATUS_OK; i++) {
        if (dout[i] == NULL)
            continue;
        message.args[BACKWARD_OUTPUTS] |= (uint64_t)1 << i;
        status = travel_put(frame, dout[i], true, &message, &call->output_block[i], error);
    }
    call->is_ahead = call->wanted == 0 && !call->has_called && !call->is_lent && !travel_is_large(&message);
    if (call->is_ahead) {
        frame->ahead++;
        frame->ahead_worker = call->worker;
    }
    call->state = CALL_BACKWARD;
    call->was_walked = true;
    if (status == STATUS_OK)
        status = call_send(call, METHOD_BACKWARD, &message, on_gradients, error);
    if (call->is_ahead || status != STATUS_OK)
        release_outputs(call);
    if (call->is_ahead && status != STATUS_OK)
        frame->ahead--;
    return status;
}

/* The answer's gradients go where the tape wants them. */
static enum status take(struct dist_call *call, struct tensor *const din[], struct error *error)
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
            status = travel_copy(frame, answer, index, din[i], error);
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
        return STATUS_OK; // nothing of it depends on what has a gradient
    if (first)
        call->state = CALL_TURN;
    if (call->state == CALL_TURN) {
        if (frame->ahead >= AHEAD_MAX || (frame->ahead > 0 && frame->ahead_worker != call->worker))
            return STATUS_AGAIN;
        enum status status = frame_failure(frame, error);
        if (status == STATUS_OK)
            status = send(call, dout, error);
        return status == STATUS_OK && !call->is_ahead ? STATUS_AGAIN : status;
    }
    if (call->is_pending)
        return STATUS_AGAIN;
    enum status status = take(call, din, error);
    release_outputs(call);
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

/* ---- the root ---- */

static enum status pass_on(struct future *future, void *arg)
{
    (void)arg;
    return future_status(future);
}

/* Serves calls until one of those that the walk has sent is answered; on_gradients has seen to it then, and
 * may have let the call and its future go: hence a future of our own. */
static enum status wait_for_one(struct dist_frame *frame, struct error *error)
{
    struct dist_call *call = frame->calls;
    while (call != NULL && !call->is_pending)
        call = call->next;
    if (call == NULL)
        return error_set(error, STATUS_INTERNAL, "a walk waits for nobody");
    struct error failure = {0};
    struct future *answer;
    enum status status = future_then(call->future, pass_on, NULL, &answer);
    if (status != STATUS_OK)
        return error_set(error, status, "no future is left to wait for worker %u", call->worker);
    status = rpc_wait(frame->dist->config.rpc, answer, &failure);
    const bool is_done = future_done(answer); // else the rpc itself has failed
    future_release(answer);
    return is_done ? STATUS_OK : error_set(error, status, "%s", failure.text);
}

static enum status walk_root(struct dist_frame *frame, struct error *error)
{
    enum status status = frame_walk(frame, true, error), waited;
    while (status == STATUS_AGAIN) {
        waited = wait_for_one(frame, error);
        if (waited != STATUS_OK)
            return waited;
        status = frame_walk(frame, false, error);
    }
    while (status == STATUS_OK && frame->ahead > 0)
        status = wait_for_one(frame, error);
    return status == STATUS_OK ? frame_failure(frame, error) : status;
}

enum status dist_backward(struct dist_context *context, struct variable *loss, struct error *error)
{
    struct dist_frame *frame = &context->frame;
    struct error failure = {0};
    if (context->error.status != STATUS_OK)
        tape_fail(frame->tape, context->error.status, "%s", context->error.text);
    if (loss != NULL && variable_tensor(loss)->shape.rank != 0)
        tape_fail(frame->tape, STATUS_INVALID, "a loss that is no scalar");
    enum status status = tape_seed(frame->tape, loss, NULL);
    if (status == STATUS_OK)
        status = walk_root(frame, &failure);
    else
        tape_status(frame->tape, &failure);
    if (status == STATUS_OK)
        drops_send(context);
    else
        tape_fail(frame->tape, status, "%s", failure.text);
    if (status != STATUS_OK && error != NULL)
        *error = failure;
    return status;
}
