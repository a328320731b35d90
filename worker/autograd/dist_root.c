/* The root of a context: begins and ends it, calls objects, walks back from the loss. These functions turn
 * the rpc while they wait, and run at a role's top level. */
#include "worker/autograd/dist_internal.h"

#include <string.h>

/* ---- the context ---- */

/* Host memory for tensors of messages: the tape's own, or the context's where the tape's is a device's. */
static enum status root_staging(struct dist_context *context, struct tape *tape, struct arena **out,
                                struct error *error)
{
    *out = tape_arena(tape);
    if (tape_backend(tape)->ops->host)
        return STATUS_OK;
    const struct arena_source source = memory_source(&context->dist->memory);
    enum status status = context->staging != NULL ? STATUS_OK : arena_new(&context->staging, &source, error);
    *out = context->staging;
    return status;
}

enum status dist_context_new(struct dist_context **out, struct dist *dist, enum tape_mode mode,
                             struct tape *tape, struct gradients *gradients, struct error *error)
{
    struct dist_context *context;
    struct arena *staging;
    enum status status = context_make(dist, dist->next_context, &context, error);
    if (status != STATUS_OK)
        return status;
    dist->next_context++;
    status = root_staging(context, tape, &staging, error);
    if (status != STATUS_OK) {
        context_end(context);
        return status;
    }
    context->is_root = true;
    tape_begin(tape, mode, gradients);
    frame_open(&context->frame, context, NULL, tape, staging, 1);
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

/* ---- calls ---- */

static enum status root_call(struct dist_frame *frame, const struct dist_asked *asked, struct variable *out[],
                             uint32_t out_count, struct error *error)
{
    struct variable *answered[DIST_OUTPUTS_MAX];
    struct dist_call *call;
    uint32_t count = 0;
    enum status status = call_start(frame, asked, NULL, NULL, NULL, &call, error);
    if (status != STATUS_OK)
        return status;
    struct error failure;
    status = rpc_wait(frame->dist->config.rpc, call->future, &failure);
    if (!future_done(call->future)) { // the rpc itself has failed
        *error = failure;
        call_cancel(call);
        return status;
    }
    status = call_record(frame, call, answered, &count, error);
    if (status == STATUS_OK && count != out_count)
        status =
            error_set(error, STATUS_INVALID, "worker %u has answered a call with %u outputs, expected %u",
                      rref_owner(asked->object), count, out_count);
    if (status == STATUS_OK && count > 0)
        memcpy(out, answered, count * sizeof out[0]);
    return status;
}

enum status dist_call(struct dist_context *context, struct rref *object, uint32_t function,
                      const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                      uint32_t in_count, struct variable *out[], uint32_t out_count)
{
    struct error error = {0};
    const struct dist_asked asked = {object, function, numbers, number_count, in, in_count};
    enum status status = root_call(&context->frame, &asked, out, out_count, &error);
    if (status == STATUS_OK)
        return STATUS_OK;
    for (uint32_t i = 0; i < out_count; i++) // not before: `out` may be `in`
        out[i] = NULL;
    tape_fail(context->frame.tape, status, "%s", error.text);
    return status;
}

/* ---- backward ---- */

static enum status same_status(struct future *future, void *arg)
{
    (void)arg;
    return future_status(future);
}

/* Serves calls until a backward that the walk has sent is answered. dist_walk.c has handled the answer then,
 * and may have freed the call and its future: hence a future of our own. */
static enum status root_wait(struct dist_frame *frame, struct error *error)
{
    struct dist_call *call = frame->calls;
    while (call != NULL && !call->is_pending)
        call = call->next;
    if (call == NULL)
        return error_set(error, STATUS_INTERNAL, "a walk has paused without a request");
    struct error failure = {0};
    struct future *answer;
    enum status status = future_then(call->future, same_status, NULL, &answer);
    if (status != STATUS_OK)
        return error_set(error, status, "no future is left to wait for worker %u", call->worker);
    status = rpc_wait(frame->dist->config.rpc, answer, &failure);
    const bool is_done = future_done(answer); // else the rpc itself has failed
    future_release(answer);
    return is_done ? STATUS_OK : error_set(error, status, "%s", failure.text);
}

static enum status root_walk(struct dist_frame *frame, struct error *error)
{
    enum status status = frame_walk(frame, true, error), waited;
    while (status == STATUS_AGAIN) {
        waited = root_wait(frame, error);
        if (waited != STATUS_OK)
            return waited;
        status = frame_walk(frame, false, error);
    }
    while (status == STATUS_OK && frame->ahead > 0)
        status = root_wait(frame, error);
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
        status = root_walk(frame, &failure);
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
