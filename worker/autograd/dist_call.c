/* The caller: the forward of a call. Once answered, the call becomes a node of the caller's tape.
 *
 * Calls of one frame are recorded in the order in which they were made, whichever is answered first
 * (dist_forward.c), so that the tape and its walk depend on the code alone.
 *
 * Two may refer to a call: its node, and its future while an answer is to come. When both are done the call
 * is freed. A call whose frame has ended before its answer is an orphan: it only waits for its future. */
#include "worker/autograd/dist_internal.h"

#include <assert.h>
#include <string.h>

/* ---- calls and frames ---- */

void frame_open(struct dist_frame *frame, struct dist_context *context, struct dist_piece *piece,
                struct tape *tape, struct arena *staging, uint32_t depth)
{
    *frame = (struct dist_frame){.dist = context->dist,
                                 .context = context,
                                 .piece = piece,
                                 .tape = tape,
                                 .staging = staging,
                                 .depth = depth};
}

static struct dist_call *call_new(struct dist_frame *frame)
{
    struct dist_call *call = dist_pool_take((void **)&frame->dist->free_calls, sizeof *call);
    if (call == NULL)
        return NULL;
    call->dist = frame->dist;
    call->frame = frame;
    call->next = frame->calls;
    if (call->next != NULL)
        call->next->previous = call;
    frame->calls = call;
    if (frame->unrecorded == NULL)
        frame->unrecorded = call;
    return call;
}

static void call_unlink(struct dist_call *call)
{
    if (call->previous != NULL)
        call->previous->next = call->next;
    else
        call->frame->calls = call->next;
    if (call->next != NULL)
        call->next->previous = call->previous;
    if (call->frame->unrecorded == call)
        call->frame->unrecorded = call->previous;
    call->previous = call->next = NULL;
    call->frame = NULL;
}

void call_release_outputs(struct dist_call *call)
{
    for (uint32_t i = 0; i < DIST_OUTPUTS_MAX; i++) {
        arena_release(call->frame->staging, call->output_block[i]);
        call->output_block[i] = NULL;
    }
}

static void call_release_blocks(struct dist_call *call)
{
    for (uint32_t i = 0; i < DIST_INPUTS_MAX; i++) {
        arena_release(call->frame->staging, call->input_block[i]);
        call->input_block[i] = NULL;
    }
    call_release_outputs(call);
}

static void call_release_future(struct dist_call *call)
{
    if (call->future != NULL)
        future_release(call->future);
    call->future = NULL;
}

/* The forward is answered, or was never sent. After dist_free the references are gone. */
static void call_release_object(struct dist_call *call)
{
    if (!call->dist->is_closed)
        rref_release(call->object);
    call->object = NULL;
}

void call_forget(struct dist_call *call)
{
    if (call->is_recorded || call->is_pending)
        return;
    call_release_future(call);
    call_release_object(call);
    if (call->frame != NULL)
        call_unlink(call);
    call->next = call->dist->free_calls;
    call->dist->free_calls = call;
}

void call_cancel(struct dist_call *call)
{
    call_release_blocks(call);
    call_forget(call);
}

/* The tape has released the node. */
static void call_release(void *arg)
{
    struct dist_call *call = arg;
    call->is_recorded = false;
    if (call->frame == NULL) {
        call_forget(call);
        return;
    }
    call_release_blocks(call);
    if (!call->is_kept || call->was_walked) {
        call_forget(call);
        return;
    }
    struct dist_context *context = call->frame->context;
    call_unlink(call);
    call->next = context->drops;
    context->drops = call;
}

/* The frame's memory is about to go, and the staged blocks with it. */
static void call_orphan(struct dist_call *call)
{
    memset(call->input_block, 0, sizeof call->input_block);
    memset(call->output_block, 0, sizeof call->output_block);
    call_release_future(call);
    call_unlink(call);
    call->dist->orphans++;
}

void call_pass_by(struct dist_call *call)
{
    const struct rpc_message *answer = future_value(call->future);
    call->is_kept = answer != NULL && (answer->args[ANSWER_FLAGS] & ANSWER_KEPT);
    call_release_object(call);
    call->is_recorded = true; // its release is the same in every case
    call_release(call);
}

void frame_close(struct dist_frame *frame, enum status status)
{
    for (struct dist_call *call = frame->calls; call != NULL;) {
        struct dist_call *next = call->next;
        dist_then *then = call->state == CALL_FORWARD ? call->then : NULL;
        void *arg = call->arg;
        if (call->is_pending)
            call_orphan(call);
        else if (call->state == CALL_FORWARD)
            call_pass_by(call);
        if (then != NULL)
            then(arg, frame->piece, status, NULL, 0);
        call = next;
    }
}

/* ---- requests ---- */

/* A worker without a session had one when the reference was made. */
static enum status call_post(struct dist_call *call, enum wire_method method,
                             const struct rpc_message *message, struct error *error)
{
    enum status status = rpc_call_async(call->dist->config.rpc, call->worker, method, message, MONOTIME_NEVER,
                                        &call->future, error);
    if (status == STATUS_OK)
        end_becomes_due(call->frame->context, call->worker);
    if (status != STATUS_NOT_FOUND)
        return status;
    return error_set(error, STATUS_PEER_DIED, "worker %u is gone", call->worker);
}

enum status call_send(struct dist_call *call, enum wire_method method, const struct rpc_message *message,
                      future_then_function *done, struct error *error)
{
    enum status status = call_post(call, method, message, error);
    if (status != STATUS_OK || done == NULL)
        return status;
    struct future *then;
    call->is_pending = true;
    status = future_then(call->future, done, call, &then);
    if (status == STATUS_OK) {
        future_release(then);
        return STATUS_OK;
    }
    call->is_pending = false;
    call_release_future(call);
    return error_set(error, status, "no future is left for a call of worker %u", call->worker);
}

bool call_answered(struct dist_call *call)
{
    struct dist *dist = call->dist;
    call->is_pending = false;
    if (call->frame != NULL)
        return true;
    call_forget(call);
    dist_pool_orphan_done(dist);
    return false;
}

enum status call_failure(const struct dist_call *call, struct error *error)
{
    const enum status status = future_status(call->future);
    const char *text = future_text(call->future);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (*text == '\0')
        return error_set(error, status, "worker %u: %s", call->worker, status_name(status));
    return error_set(error, status, "%s", text);
}

/* ---- FORWARD, sent ---- */

static enum status call_check(struct dist_frame *frame, const struct rref *object, uint32_t number_count,
                              uint32_t in_count, struct error *error)
{
    if (frame->context->error.status != STATUS_OK) {
        *error = frame->context->error;
        return error->status;
    }
    if (in_count > DIST_INPUTS_MAX || number_count > DIST_NUMBERS_MAX)
        return error_set(error, STATUS_INVALID,
                         "a call with %u inputs and %u numbers, expected at most %d and %d", in_count,
                         number_count, DIST_INPUTS_MAX, DIST_NUMBERS_MAX);
    if (object == NULL)
        return error_set(error, STATUS_INVALID, "a call of no object");
    enum status status = rref_ready(object, error);
    return status != STATUS_AGAIN
               ? status
               : error_set(error, STATUS_BUSY, "worker %u has not made the object yet", rref_owner(object));
}

static enum status call_put_inputs(struct dist_call *call, bool trains, struct forward_flags *flags,
                                   struct rpc_message *message, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < call->in_count && status == STATUS_OK; i++) {
        const struct variable *in = call->in[i];
        if (in == NULL)
            continue;
        const struct tensor *tensor = variable_tensor(in);
        if (tensor->data == NULL)
            return error_set(error, STATUS_INVALID, "input %u was given back already", i);
        status = message_put_tensor(call->frame, tensor, true, message, &call->input_block[i], error);
        flags->present |= 1u << i;
        if (tensor->shape.rank == 0)
            flags->scalars |= 1u << i;
        if (trains && variable_needs_gradient(in) && tensor->dtype != DTYPE_I32)
            flags->wanted |= 1u << i;
    }
    return status;
}

/* The request. `numbers` go first. */
static enum status call_build(struct dist_call *call, const struct rref *object, uint32_t function,
                              const uint64_t *numbers, uint32_t number_count, struct rpc_message *message,
                              struct error *error)
{
    struct dist_frame *frame = call->frame;
    const bool trains = tape_records(frame->tape);
    struct forward_flags flags = {
        .depth = frame->depth, .trains = trains, .inputs = call->in_count, .numbers = number_count};
    *message = (struct rpc_message){.context = frame->context->id};
    if (number_count > 0) {
        message->tensor_count = 1;
        message->tensors[0] = (struct wire_tensor){.dtype = WIRE_U64, .rank = 1, .dims = {number_count}};
        message->data[0] = numbers;
    }
    enum status status = call_put_inputs(call, trains, &flags, message, error);
    call->wanted = flags.wanted;
    call->is_lent = message_is_large(message);
    message->args[FORWARD_OBJECT] = rref_object(object);
    message->args[FORWARD_FUNCTION] = function;
    message->args[FORWARD_CALL] = call->id;
    message->args[FORWARD_FLAGS] = flags_pack(&flags);
    return status;
}

enum status call_start(struct dist_frame *frame, const struct dist_asked *asked, dist_then *then, void *arg,
                       future_then_function *done, struct dist_call **out, struct error *error)
{
    enum status status = tape_status(frame->tape, error);
    if (status == STATUS_OK)
        status = call_check(frame, asked->object, asked->number_count, asked->in_count, error);
    if (status != STATUS_OK)
        return status;
    struct dist_call *call = call_new(frame);
    if (call == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a call");
    call->object = rref_copy(asked->object);
    call->worker = rref_owner(asked->object);
    call->id = ++frame->context->calls;
    call->then = then;
    call->arg = arg;
    call->in_count = asked->in_count;
    if (asked->in_count > 0)
        memcpy(call->in, asked->in, asked->in_count * sizeof call->in[0]);
    struct rpc_message message;
    status = call_build(call, asked->object, asked->function, asked->numbers, asked->number_count, &message,
                        error);
    if (status == STATUS_OK)
        status = end_prepare(frame->context, call->worker, error);
    if (status == STATUS_OK)
        status = call_send(call, METHOD_FORWARD, &message, done, error);
    if (status != STATUS_OK) {
        call_cancel(call);
        return status;
    }
    frame->has_called = true;
    *out = call;
    return STATUS_OK;
}

/* ---- FORWARD, answered ---- */

static enum status call_check_answer(const struct dist_call *call, const struct rpc_message *answer,
                                     struct error *error)
{
    bool sound = answer->tensor_count <= DIST_OUTPUTS_MAX && answer->args[ANSWER_FLAGS] <= 3 &&
                 answer->args[ANSWER_SCALARS] >> answer->tensor_count == 0;
    for (uint32_t i = 0; i < answer->tensor_count && sound; i++)
        sound = wire_tensor_is_sound(&answer->tensors[i]) &&
                (!(answer->args[ANSWER_SCALARS] >> i & 1) ||
                 (answer->tensors[i].rank == 1 && answer->tensors[i].dims[0] == 1));
    return sound ? STATUS_OK
                 : error_set(error, STATUS_INVALID,
                             "worker %u has answered a call in another form than agreed", call->worker);
}

enum status call_record(struct dist_frame *frame, struct dist_call *call,
                        struct variable *out[DIST_OUTPUTS_MAX], uint32_t *out_count, struct error *error)
{
    const struct rpc_message *answer = future_value(call->future);
    struct tape_node node = {.name = "call",
                             .context = call,
                             .backward = call_backward,
                             .release = call_release,
                             .inputs = call->in_count};
    enum status status = call_failure(call, error);
    call_release_object(call);
    if (status == STATUS_OK)
        status = call_check_answer(call, answer, error);
    call->is_kept = status == STATUS_OK && (answer->args[ANSWER_FLAGS] & ANSWER_KEPT);
    for (uint32_t i = 0; status == STATUS_OK && i < answer->tensor_count; i++)
        status =
            message_take_tensor(frame, answer, i, answer->args[ANSWER_SCALARS] >> i & 1, &node.out[i], error);
    frame->unrecorded = call->previous;
    call->is_recorded = true; // its release is the same in every case
    if (status != STATUS_OK) {
        call_release(call);
        return status;
    }
    call->has_called = answer->args[ANSWER_FLAGS] & ANSWER_CALLED;
    call->state = CALL_READY;
    *out_count = node.outputs = call->out_count = answer->tensor_count;
    memcpy(node.in, call->in, sizeof call->in);
    node.reaches_beyond = call->is_kept;
    call_release_future(call); // tensors that are not lent have been copied
    if (tape_node(frame->tape, &node, out) != STATUS_OK)
        return tape_status(frame->tape, error);
    return STATUS_OK;
}

/* ---- calls that had no part in the loss ---- */

void drops_forget(struct dist_context *context)
{
    while (context->drops != NULL) {
        struct dist_call *call = context->drops;
        context->drops = call->next;
        call->next = NULL;
        call_forget(call);
    }
}

/* One DROP for as many calls of one worker as it can hold. A DROP that cannot be sent is not sent again: its
 * pieces end with the context. */
static void drops_send_some(struct dist_context *context)
{
    const uint16_t worker = context->drops->worker;
    uint64_t ids[DROPS_MAX];
    uint32_t count = 0;
    for (struct dist_call **link = &context->drops; *link != NULL && count < DROPS_MAX;) {
        struct dist_call *call = *link;
        if (call->worker != worker) {
            link = &call->next;
            continue;
        }
        ids[count++] = call->id;
        *link = call->next;
        call->next = NULL;
        call_forget(call);
    }
    const struct rpc_message message = {.context = context->id,
                                        .tensor_count = 1,
                                        .tensors = {{.dtype = WIRE_U64, .rank = 1, .dims = {count}}},
                                        .data = {ids}};
    struct future *future;
    if (rpc_call_async(context->dist->config.rpc, worker, METHOD_DROP, &message, MONOTIME_NEVER, &future,
                       NULL) == STATUS_OK)
        future_release(future);
}

void drops_send(struct dist_context *context)
{
    while (context->drops != NULL)
        drops_send_some(context);
}
