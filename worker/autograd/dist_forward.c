/* The callee's forward as the class's code sees it: its inputs, its calls, and how it completes the piece.
 *
 * The code may still look at its tape after it has answered, so the piece is tidied only when the code has
 * returned (piece_finish_forward). */
#include "worker/autograd/dist_internal.h"

#include <stdarg.h>
#include <stdio.h>

struct tape *dist_piece_tape(struct dist_piece *piece)
{
    return piece->frame.tape;
}

uint32_t dist_piece_function(const struct dist_piece *piece)
{
    return piece->flags.function;
}

const uint64_t *dist_piece_numbers(const struct dist_piece *piece, uint32_t *count)
{
    *count = piece->flags.numbers;
    return piece->numbers;
}

struct variable *dist_piece_input(struct dist_piece *piece, uint32_t index)
{
    return index < DIST_INPUTS_MAX ? piece->in[index] : NULL;
}

uint32_t dist_piece_inputs(const struct dist_piece *piece)
{
    return piece->flags.inputs;
}

/* ---- completing ---- */

static void piece_fail(struct dist_piece *piece, enum status status, const char *text)
{
    struct rpc_request *request = piece->request;
    if (piece->state != PIECE_FORWARD)
        return;
    piece->state = PIECE_FAILED;
    piece->request = NULL;
    rpc_fail(request, status, "worker %u: %s: %s", rpc_worker(piece->frame.context->dist->config.rpc),
             piece->use->object->class->name, text);
}

void dist_fail(struct dist_piece *piece, enum status status, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    piece_fail(piece, status, text);
}

/* An output in the tape's own memory is sent as it lies, and kept until the context ends. Other memory (an
 * input passed on, a parameter) may change before, so it is copied. */
static enum status piece_put_output(struct dist_piece *piece, struct variable *out,
                                    struct rpc_message *answer, struct error *error)
{
    struct dist_frame *frame = &piece->frame;
    const struct tensor *tensor = variable_tensor(out);
    const uint32_t index = answer->tensor_count;
    void *block;
    if (tensor->data == NULL)
        return error_set(error, STATUS_INVALID, "output %u was given back already", index);
    enum status status = message_put_tensor(frame, tensor, tape_keep(out), answer, &block, error);
    if (status != STATUS_OK)
        return status;
    if (tensor->shape.rank == 0)
        answer->args[ANSWER_SCALARS] |= (uint64_t)1 << index;
    if (piece->flags.trains && variable_needs_gradient(out))
        answer->args[ANSWER_KEPT] = 1;
    piece->out[index] = out;
    return STATUS_OK;
}

void dist_return(struct dist_piece *piece, struct variable *const out[], uint32_t out_count)
{
    struct rpc_message answer = {.context = piece->frame.context->id};
    struct error error = {0};
    enum status status = tape_status(piece->frame.tape, &error);
    if (piece->state != PIECE_FORWARD)
        return;
    if (status == STATUS_OK && out_count > DIST_OUTPUTS_MAX)
        status =
            error_set(&error, STATUS_INVALID, "%u outputs, expected at most %d", out_count, DIST_OUTPUTS_MAX);
    for (uint32_t i = 0; i < out_count && status == STATUS_OK; i++)
        status = out[i] != NULL ? piece_put_output(piece, out[i], &answer, &error)
                                : error_set(&error, STATUS_INVALID, "output %u is not there", i);
    if (status != STATUS_OK) {
        piece_fail(piece, status, error.text);
        return;
    }
    piece->out_count = out_count;
    piece->lends = message_is_large(&answer);
    piece->state = answer.args[ANSWER_KEPT] ? PIECE_KEPT : PIECE_OVER;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    rpc_reply(request, &answer);
}

/* ---- calls of the piece ---- */

/* Records an answered call, or ends it when the piece has been completed, and continues the piece's code. */
static void piece_continue(struct dist_piece *piece, struct dist_call *call)
{
    struct variable *out[DIST_OUTPUTS_MAX];
    struct error error = {0};
    dist_then *then = call->then;
    void *arg = call->arg;
    uint32_t count = 0;
    enum status status = STATUS_INVALID;
    if (piece->state == PIECE_FORWARD) {
        status = call_record(call, out, &count, &error);
        if (status != STATUS_OK)
            tape_fail(piece->frame.tape, status, "%s", error.text);
    } else {
        call_end(call);
    }
    piece_enter(piece);
    then(arg, piece, status, status == STATUS_OK ? out : NULL, status == STATUS_OK ? count : 0);
    piece_leave(piece);
}

/* An answer waits for those of earlier calls, so that calls are recorded in the order in which they were
 * made. */
static void piece_call_answered(struct future *future, void *arg)
{
    struct dist_call *call = arg;
    (void)future;
    if (!call_answered(call))
        return;
    struct dist_piece *piece = call->frame->piece;
    const bool was_open = piece->state == PIECE_FORWARD;
    while ((call = frame_oldest_unrecorded(&piece->frame)) != NULL && !call->is_watched)
        piece_continue(piece, call);
    if (was_open)
        piece_finish_forward(piece);
}

void dist_call_async(struct dist_piece *piece, struct rref *object, uint32_t function,
                     const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                     uint32_t in_count, dist_then *then, void *arg)
{
    struct error error = {0};
    const struct dist_asked asked = {object, function, numbers, number_count, in, in_count};
    struct dist_call *call;
    enum status status = call_start(&piece->frame, &asked, then, arg, piece_call_answered, &call, &error);
    if (status == STATUS_OK)
        return;
    tape_fail(piece->frame.tape, status, "%s", error.text);
    then(arg, piece, status, NULL, 0);
}
