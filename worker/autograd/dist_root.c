/* The root of a context: begins and ends it, calls objects, walks back from the loss. These functions turn
 * the rpc while they wait, and run at a role's top level. */
#include "worker/autograd/dist_internal.h"

#include <string.h>

/* ---- the context ---- */

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
                             struct tape *tape, struct gradients *gradients, struct error *error)
{
    struct dist_context *context;
    struct arena *staging;
    enum status status = root_staging(dist, tape, &staging, error);
    if (status == STATUS_OK)
        status = context_make(dist, dist->next_context, &context, error);
    if (status != STATUS_OK)
        return status;
    dist->next_context++;
    tape_begin(tape, mode, gradients);
    context->frame = (struct dist_frame){.context = context, .tape = tape, .staging = staging, .depth = 1};
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
    status = rpc_wait(frame->context->dist->config.rpc, call->future, &failure);
    if (!future_done(call->future)) { // the rpc itself has failed
        *error = failure;
        call_end(call);
        return status;
    }
    status = call_record(call, answered, &count, error);
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

/* Serves calls until the backward that the walk waits for is answered. */
static enum status root_wait(struct dist_frame *frame, struct error *error)
{
    const struct dist_call *call = frame->calls;
    struct error failure = {0};
    while (call->future == NULL)
        call = call->next;
    const enum status status = rpc_wait(frame->context->dist->config.rpc, call->future, &failure);
    return future_done(call->future) ? STATUS_OK : error_set(error, status, "%s", failure.text);
}

static enum status root_walk(struct dist_frame *frame, struct error *error)
{
    enum status status = tape_walk(frame->tape);
    while (status == STATUS_AGAIN) {
        status = root_wait(frame, error);
        if (status != STATUS_OK)
            return status;
        status = tape_resume(frame->tape);
    }
    return status == STATUS_OK ? dist_check_alive(frame->context->dist, error)
                               : tape_status(frame->tape, error);
}

enum status dist_backward(struct dist_context *context, struct variable *loss, struct error *error)
{
    struct dist_frame *frame = &context->frame;
    struct error failure = {0};
    if (dist_check_alive(context->dist, &failure) != STATUS_OK)
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
