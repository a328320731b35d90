/* The caller's side of a context: a call is sent, becomes a node of the caller's tape when it is answered,
 * and is walked back. At the context's end the workers that were called are told. dist_context.c argues why
 * the order of the requests makes sums equal.
 *
 * Calls of one frame are recorded in the order in which they were made, whichever is answered first, so that
 * the tape and its walk depend on the code alone. */
#include "worker/autograd/dist_caller.h"
#include "worker/autograd/dist_message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct dist_call {
    struct dist_call *next;
    struct dist_frame *frame; /* NULL: it has ended */
    uint16_t worker;
    uint64_t id;
    bool is_recorded; /* its node refers to it */
    bool is_watched;  /* a function of its future does */
    bool is_kept;
    uint32_t wanted;
    uint32_t in_count, out_count;
    struct variable *in[DIST_INPUTS_MAX];
    void *input_block[DIST_INPUTS_MAX];   /* staged inputs */
    void *output_block[DIST_OUTPUTS_MAX]; /* staged gradients */
    struct future *future;                /* of FORWARD, until it is recorded; of BACKWARD */
    struct dist_follow follow;            /* then == NULL: the root's, which waits */
};

/* ---- the workers that were called ---- */

enum status lost_check(const struct error *lost, struct error *error)
{
    if (lost->status != STATUS_OK)
        *error = *lost;
    return lost->status;
}

void caller_send_ends(const struct dist_caller *caller)
{
    const struct rpc_message message = {.context = caller->context};
    for (uint32_t worker = 0; worker < rpc_workers(caller->rpc); worker++)
        if (caller->called[worker])
            rpc_notify(caller->rpc, (uint16_t)worker, METHOD_END_CONTEXT, &message);
}

/* ---- calls and frames ---- */

void call_end(struct dist_call *call)
{
    struct dist_frame *frame = call->frame;
    for (uint32_t i = 0; i < DIST_INPUTS_MAX; i++)
        arena_release(frame->staging, call->input_block[i]);
    for (uint32_t i = 0; i < DIST_OUTPUTS_MAX; i++)
        arena_release(frame->staging, call->output_block[i]);
    struct dist_call **link = &frame->calls;
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    if (call->future != NULL)
        future_release(call->future);
    call->frame = NULL;
    if (!call->is_watched)
        free(call);
}

struct dist_piece *call_answered(struct dist_call *call)
{
    call->is_watched = false;
    if (call->frame != NULL)
        return call->frame->piece;
    free(call);
    return NULL;
}

/* The tape has released the node. */
static void call_release(void *arg)
{
    call_end(arg);
}

struct dist_call *frame_next_answered(const struct dist_frame *frame)
{
    struct dist_call *oldest = NULL;
    for (struct dist_call *call = frame->calls; call != NULL && !call->is_recorded; call = call->next)
        oldest = call;
    return oldest != NULL && !oldest->is_watched ? oldest : NULL;
}

struct dist_follow call_follow(const struct dist_call *call)
{
    return call->follow;
}

void frame_close(struct dist_frame *frame, enum status status)
{
    while (frame->calls != NULL && !frame->calls->is_recorded) {
        const struct dist_follow follow = frame->calls->follow;
        call_end(frame->calls);
        if (follow.then != NULL)
            follow.then(follow.arg, frame->piece, status, NULL, 0);
    }
}

/* ---- requests ---- */

/* Sends a request of the call's. `done` (NULL: none) runs when it is answered, and begins with call_answered.
 * A worker without a session had one when the reference was made. */
static enum status call_send(struct dist_call *call, enum wire_method method,
                             const struct rpc_message *message, future_then_function *done,
                             struct error *error)
{
    struct dist_caller *caller = call->frame->caller;
    enum status status = rpc_call_then(caller->rpc, call->worker, method, message, MONOTIME_NEVER, done, call,
                                       &call->future, error);
    if (status == STATUS_NOT_FOUND)
        return error_set(error, STATUS_PEER_DIED, "worker %u is gone", call->worker);
    if (status != STATUS_OK)
        return status;
    caller->called[call->worker] = true;
    call->is_watched = done != NULL;
    return STATUS_OK;
}

/* Why the call's future has failed. */
static enum status call_failure(const struct dist_call *call, struct error *error)
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

static enum status call_check(struct dist_frame *frame, const struct dist_asked *asked, struct error *error)
{
    assert(asked->in_count <= DIST_INPUTS_MAX && asked->number_count <= DIST_NUMBERS_MAX);
    enum status status = tape_status(frame->tape, error);
    if (status == STATUS_OK)
        status = lost_check(frame->caller->lost, error);
    if (status != STATUS_OK)
        return status;
    if (asked->object == NULL)
        return error_set(error, STATUS_INVALID, "a call of no object");
    return rref_check_ready(asked->object, error);
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
        status = message_put_tensor(call->frame->tape, call->frame->staging, tensor, true, message,
                                    &call->input_block[i], error);
        flags->present |= 1u << i;
        if (tensor->shape.rank == 0)
            flags->scalars |= 1u << i;
        if (trains && variable_needs_gradient(in) && tensor->dtype != DTYPE_I32)
            flags->wanted |= 1u << i;
    }
    return status;
}

/* The request. `numbers` go first. */
static enum status call_build(struct dist_call *call, const struct dist_asked *asked,
                              struct rpc_message *message, struct error *error)
{
    struct dist_caller *caller = call->frame->caller;
    const bool trains = tape_records(call->frame->tape);
    struct forward_flags flags = {.depth = call->frame->depth,
                                  .trains = trains,
                                  .inputs = asked->in_count,
                                  .numbers = asked->number_count};
    *message = (struct rpc_message){.context = caller->context};
    if (asked->number_count > 0)
        message_add(message, WIRE_U64, asked->numbers, asked->number_count);
    enum status status = call_put_inputs(call, trains, &flags, message, error);
    call->wanted = flags.wanted;
    call->id = ++caller->calls;
    message->args[FORWARD_OBJECT] = rref_object(asked->object);
    message->args[FORWARD_FUNCTION] = asked->function;
    message->args[FORWARD_CALL] = call->id;
    message->args[FORWARD_FLAGS] = flags_pack(&flags);
    return status;
}

enum status call_start(struct dist_frame *frame, const struct dist_asked *asked,
                       const struct dist_follow *follow, future_then_function *done, struct dist_call **out,
                       struct error *error)
{
    enum status status = call_check(frame, asked, error);
    if (status != STATUS_OK)
        return status;
    struct dist_call *call = calloc(1, sizeof *call);
    if (call == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a call");
    call->frame = frame;
    call->next = frame->calls;
    frame->calls = call;
    call->worker = rref_owner(asked->object);
    if (follow != NULL)
        call->follow = *follow;
    call->in_count = asked->in_count;
    if (asked->in_count > 0)
        memcpy(call->in, asked->in, asked->in_count * sizeof call->in[0]);
    struct rpc_message message;
    status = call_build(call, asked, &message, error);
    if (status == STATUS_OK)
        status = call_send(call, METHOD_FORWARD, &message, done, error);
    if (status != STATUS_OK) {
        call_end(call);
        return status;
    }
    *out = call;
    return STATUS_OK;
}

/* ---- BACKWARD ---- */

/* The gradients have come for which a piece's walk has paused. */
static void call_on_gradients(struct future *future, void *arg)
{
    struct dist_call *call = arg;
    (void)future;
    if (call_answered(call) != NULL)
        call->frame->resume(call->frame->piece);
}

static enum status call_send_backward(struct dist_call *call, const struct tensor *const dout[],
                                      struct error *error)
{
    struct dist_frame *frame = call->frame;
    struct rpc_message message = {.context = frame->caller->context, .args = {[BACKWARD_CALL] = call->id}};
    enum status status = lost_check(frame->caller->lost, error);
    for (uint32_t i = 0; i < call->out_count && status == STATUS_OK; i++) {
        if (dout[i] == NULL)
            continue;
        message.args[BACKWARD_OUTPUTS] |= (uint64_t)1 << i;
        status = message_put_tensor(frame->tape, frame->staging, dout[i], true, &message,
                                    &call->output_block[i], error);
    }
    if (status != STATUS_OK)
        return status;
    return call_send(call, METHOD_BACKWARD, &message, frame->piece != NULL ? call_on_gradients : NULL, error);
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
        return error_set(error, STATUS_INVALID,
                         "worker %u has answered with gradients that were not asked for", call->worker);
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
            status = message_copy_tensor(frame->tape, frame->staging, answer, index, din[i], error);
    }
    return status;
}

static enum status call_backward(void *arg, struct tape *tape, bool first, const struct tensor *const dout[],
                                 struct tensor *const din[], struct error *error)
{
    struct dist_call *call = arg;
    (void)tape;
    if (!call->is_kept)
        return STATUS_OK; // its outputs have no gradient
    if (first) {
        const enum status status = call_send_backward(call, dout, error);
        return status == STATUS_OK ? STATUS_AGAIN : status;
    }
    return future_done(call->future) ? call_take_gradients(call, din, error) : STATUS_AGAIN;
}

/* ---- FORWARD, answered ---- */

static enum status call_check_answer(const struct dist_call *call, const struct rpc_message *answer,
                                     struct error *error)
{
    bool sound = answer->tensor_count <= DIST_OUTPUTS_MAX && answer->args[ANSWER_KEPT] <= 1 &&
                 answer->args[ANSWER_SCALARS] >> answer->tensor_count == 0;
    for (uint32_t i = 0; i < answer->tensor_count && sound; i++)
        sound = wire_tensor_is_sound(&answer->tensors[i], answer->args[ANSWER_SCALARS] >> i & 1);
    return sound ? STATUS_OK
                 : error_set(error, STATUS_INVALID,
                             "worker %u has answered a call in another form than agreed", call->worker);
}

enum status call_record(struct dist_call *call, struct variable *out[DIST_OUTPUTS_MAX], uint32_t *out_count,
                        struct error *error)
{
    struct dist_frame *frame = call->frame;
    const struct rpc_message *answer = future_value(call->future);
    struct tape_node node = {.name = "call",
                             .context = call,
                             .backward = call_backward,
                             .release = call_release,
                             .inputs = call->in_count};
    enum status status = call_failure(call, error);
    if (status == STATUS_OK)
        status = call_check_answer(call, answer, error);
    for (uint32_t i = 0; status == STATUS_OK && i < answer->tensor_count; i++)
        status = message_take_tensor(frame->tape, frame->staging, answer, i,
                                     answer->args[ANSWER_SCALARS] >> i & 1, &node.out[i], error);
    if (status != STATUS_OK) {
        call_end(call);
        return status;
    }
    call->is_recorded = true;
    call->is_kept = answer->args[ANSWER_KEPT];
    *out_count = node.outputs = call->out_count = answer->tensor_count;
    memcpy(node.in, call->in, sizeof call->in);
    node.reaches_beyond = call->is_kept;
    future_release(call->future); // tensors that are not lent have been copied
    call->future = NULL;
    if (tape_node(frame->tape, &node, out) != STATUS_OK)
        return tape_status(frame->tape, error);
    return STATUS_OK;
}

/* ---- calls that wait ---- */

enum status frame_call(struct dist_frame *frame, const struct dist_asked *asked, struct variable *out[],
                       uint32_t out_count, struct error *error)
{
    struct variable *answered[DIST_OUTPUTS_MAX];
    struct dist_call *call;
    uint32_t count = 0;
    enum status status = call_start(frame, asked, NULL, NULL, &call, error);
    if (status != STATUS_OK)
        return status;
    struct error failure;
    const uint16_t worker = call->worker; // the handle may be released while the call waits
    status = rpc_wait(frame->caller->rpc, call->future, &failure);
    if (!future_done(call->future)) { // the rpc itself has failed
        *error = failure;
        call_end(call);
        return status;
    }
    status = call_record(call, answered, &count, error);
    if (status == STATUS_OK && count != out_count)
        status =
            error_set(error, STATUS_INVALID, "worker %u has answered a call with %u outputs, expected %u",
                      worker, count, out_count);
    if (status == STATUS_OK && count > 0)
        memcpy(out, answered, count * sizeof out[0]);
    return status;
}

enum status frame_wait(struct dist_frame *frame, struct error *error)
{
    const struct dist_call *call = frame->calls;
    struct error failure = {0};
    while (call->future == NULL)
        call = call->next;
    const enum status status = rpc_wait(frame->caller->rpc, call->future, &failure);
    return future_done(call->future) ? STATUS_OK : error_set(error, status, "%s", failure.text);
}
