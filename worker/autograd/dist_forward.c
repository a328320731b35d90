/* The callee's forward, as the class's code sees it: what it is given, and what it completes the piece with.
 *
 * The code may still look at its tape after it has answered, so what an answer leaves over is put in order
 * only when the code has returned (piece_settle). */
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

/* ---- around the code ---- */

void piece_enter(struct dist_piece *piece)
{
    if (piece->has_version)
        dist_versions_place(piece->part->object->versions, piece->version);
}

void piece_leave(struct dist_piece *piece)
{
    if (piece->has_version)
        dist_versions_place_newest(piece->part->object->versions);
}

/* ---- completing ---- */

static void fail(struct dist_piece *piece, enum status status, const char *text)
{
    struct rpc_request *request = piece->request;
    if (piece->state != PIECE_FORWARD)
        return;
    piece->state = PIECE_FAILED;
    piece->request = NULL;
    if (request != NULL)
        rpc_fail(request, status, "worker %u: %s: %s", rpc_worker(piece->frame.dist->config.rpc),
                 piece->part->object->class->name, text);
}

void dist_fail(struct dist_piece *piece, enum status status, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fail(piece, status, text);
}

/* An output is answered with as it lies when the memory is the tape's own: it can then be kept until the
 * context ends. What is somebody else's (an input passed on, a parameter) may change before. */
static enum status put_output(struct dist_piece *piece, struct variable *out, struct rpc_message *answer,
                              struct error *error)
{
    struct dist_frame *frame = &piece->frame;
    const struct tensor *tensor = variable_tensor(out);
    const uint32_t index = answer->tensor_count;
    void *block;
    if (tensor->data == NULL)
        return error_set(error, STATUS_INVALID, "output %u was given back already", index);
    enum status status = travel_put(frame, tensor, tape_keep(out), answer, &block, error);
    if (status != STATUS_OK)
        return status;
    if (tensor->shape.rank == 0)
        answer->args[ANSWER_SCALARS] |= (uint64_t)1 << index;
    if (piece->flags.trains && variable_needs_gradient(out))
        answer->args[ANSWER_FLAGS] |= ANSWER_KEPT;
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
        status = out[i] != NULL ? put_output(piece, out[i], &answer, &error)
                                : error_set(&error, STATUS_INVALID, "output %u is not there", i);
    if (status != STATUS_OK) {
        fail(piece, status, error.text);
        return;
    }
    if (piece->frame.has_called)
        answer.args[ANSWER_FLAGS] |= ANSWER_CALLED;
    piece->out_count = out_count;
    piece->lends = travel_is_large(&answer);
    piece->state = answer.args[ANSWER_FLAGS] & ANSWER_KEPT ? PIECE_KEPT : PIECE_OVER;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    if (request != NULL)
        rpc_reply(request, &answer);
}
