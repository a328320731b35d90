/* The callee's side of a context. FORWARD makes a piece, which computes on a tape of its own and then waits
 * for BACKWARD or the context's end. Large outputs are lent to the caller, not copied, so their memory is
 * kept until the context ends. */
#include "worker/autograd/dist_piece.h"
#include "kernels/base/profile.h"
#include "kernels/params/gradients.h"
#include "worker/autograd/dist_call.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum piece_state {
    PIECE_FORWARD, /* its request is open */
    PIECE_FAILED,  /* its request was answered with a failure */
    PIECE_KEPT,    /* answered; may be walked */
    PIECE_WALKING, /* the backward's request is open */
    PIECE_OVER,    /* only its answer is still there */
};

struct dist_piece {
    struct dist_piece *next; /* of the callee, newest first */
    struct dist_callee *callee;
    struct dist_frame frame;
    uint16_t caller;
    uint64_t call;
    struct dist_use *use;
    struct dist_room *room; /* NULL: given back */
    enum piece_state state;
    struct rpc_request *request; /* open; NULL: none */
    struct forward_flags flags;
    uint64_t numbers[DIST_NUMBERS_MAX];
    struct variable *in[DIST_INPUTS_MAX];
    struct variable *out[DIST_OUTPUTS_MAX];
    uint32_t out_count;
    bool lends; /* the caller reads an answer of this piece where it lies */
    bool reads; /* counted as a reader of the use */
};

static struct dist_piece *piece_find(const struct dist_callee *callee, uint16_t caller, uint64_t call)
{
    struct dist_piece *piece = callee->pieces;
    while (piece != NULL && (piece->caller != caller || piece->call != call))
        piece = piece->next;
    return piece;
}

/* ---- versions ---- */

/* Before and after the class's code and the tape's walk: places the version of the params that it reads. */
static void piece_enter(struct dist_piece *piece)
{
    if (piece->reads)
        use_place(piece->use);
}

static void piece_leave(struct dist_piece *piece)
{
    use_place_newest(piece->use);
}

/* ---- ending ---- */

/* Gives the room back, and the piece's outputs with it. */
static void piece_leave_room(struct dist_piece *piece, enum status status)
{
    if (piece->room == NULL)
        return;
    tape_fail(piece->frame.tape, status, "a call by an object that has answered its own call");
    frame_close(&piece->frame, status);
    room_release(piece->use, piece->room);
    piece->room = NULL;
}

static void piece_stop_reading(struct dist_piece *piece)
{
    if (piece->reads)
        use_stop_reading(piece->use);
    piece->reads = false;
}

/* Fails its open request and its calls, and frees it. */
static void piece_end(struct dist_piece *piece, enum status status, const char *text)
{
    struct dist_callee *callee = piece->callee;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    if (piece->state == PIECE_FORWARD)
        piece->state = PIECE_FAILED;
    if (request != NULL)
        rpc_fail(request, status, "worker %u: %s", rpc_worker(callee->rpc), text);
    piece_leave_room(piece, status);
    piece_stop_reading(piece);
    struct dist_piece **link = &callee->pieces;
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    --*callee->piece_count;
    free(piece);
}

/* No BACKWARD will come, or it is answered: nothing but lent memory is still needed. */
static void piece_finish(struct dist_piece *piece)
{
    piece->state = PIECE_OVER;
    if (!piece->lends)
        piece_leave_room(piece, STATUS_INVALID);
    piece_stop_reading(piece);
}

/* After the class's code has recorded the forward: keeps the tensors that a backward will read. The piece may
 * be gone afterwards. */
static void piece_finish_forward(struct dist_piece *piece)
{
    if (piece->state == PIECE_OVER)
        piece_finish(piece);
    if (piece->state == PIECE_FAILED)
        piece_end(piece, STATUS_INVALID, "the call has failed");
}

/* ---- walking ---- */

static enum status piece_answer_gradients(struct dist_piece *piece, struct error *error)
{
    struct rpc_message answer = {.context = caller_context(piece->callee->caller)};
    enum status status = tape_status(piece->frame.tape, error);
    for (uint32_t i = 0; i < DIST_INPUTS_MAX && status == STATUS_OK; i++) {
        const struct tensor *gradient = piece->flags.wanted >> i & 1 ? variable_gradient(piece->in[i]) : NULL;
        void *block;
        if (gradient == NULL)
            continue;
        answer.args[GRADIENT_INPUTS] |= (uint64_t)1 << i;
        status = message_put_tensor(piece->frame.tape, piece->frame.staging, gradient, true, &answer, &block,
                                    error);
    }
    if (status != STATUS_OK)
        return status;
    struct rpc_request *request = piece->request;
    piece->request = NULL;
    piece->lends = piece->lends || message_is_large(&answer);
    rpc_reply(request, &answer);
    return STATUS_OK;
}

/* Answers BACKWARD. */
static void piece_finish_walk(struct dist_piece *piece, enum status status, struct error *error)
{
    if (status == STATUS_OK)
        status = piece_answer_gradients(piece, error);
    if (status != STATUS_OK) {
        struct rpc_request *request = piece->request;
        piece->request = NULL;
        rpc_fail(request, status, "worker %u: %s: %s", rpc_worker(piece->callee->rpc), use_class(piece->use),
                 error->text);
    }
    piece_finish(piece);
}

static void piece_advance_walk(struct dist_piece *piece, enum status (*walk)(struct tape *tape))
{
    struct error error = {0};
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    piece_enter(piece);
    enum status status = walk(piece->frame.tape);
    piece_leave(piece);
    profile_leave(before);
    if (status == STATUS_AGAIN)
        return;
    if (status != STATUS_OK)
        tape_status(piece->frame.tape, &error);
    piece_finish_walk(piece, status, &error);
}

static void piece_resume(struct dist_piece *piece)
{
    piece_advance_walk(piece, tape_resume);
}

/* ---- beginning ---- */

/* Takes a room, and begins its step. */
static enum status piece_begin(struct dist_piece *piece, struct error *error)
{
    struct gradients *gradients = NULL;
    enum status status = STATUS_OK;
    if (piece->flags.trains)
        status = use_gradients(piece->use, &gradients, error);
    if (status == STATUS_OK)
        status = room_take(piece->use, &piece->room, error);
    if (status != STATUS_OK)
        return status;
    struct tape *tape = piece->room->tape;
    piece->frame = (struct dist_frame){.caller = piece->callee->caller,
                                       .piece = piece,
                                       .tape = tape,
                                       .staging = piece->room->staging,
                                       .depth = piece->flags.depth + 1,
                                       .resume = piece_resume};
    if (piece->flags.trains)
        tape_begin_adding(tape, gradients);
    else
        tape_begin(tape, TAPE_INFER, NULL);
    use_start_reading(piece->use);
    piece->reads = true;
    return STATUS_OK;
}

/* A new piece, with everything but its inputs. */
static enum status piece_new(struct dist_callee *callee, uint16_t caller, const struct rpc_message *message,
                             const struct forward_flags *flags, struct dist_piece **out, struct error *error)
{
    const uint64_t call = message->args[FORWARD_CALL];
    if (piece_find(callee, caller, call) != NULL)
        return error_set(error, STATUS_INVALID, "call %" PRIu64 " of worker %u was made before", call,
                         caller);
    if (*callee->piece_count >= callee->pieces_max)
        return error_set(error, STATUS_BUSY, "worker %u holds %u calls of its objects, at most %u",
                         rpc_worker(callee->rpc), *callee->piece_count, callee->pieces_max);
    struct dist_use *use;
    enum status status =
        use_take(callee->objects, &callee->uses, caller, message->args[FORWARD_OBJECT], &use, error);
    if (status != STATUS_OK)
        return status;
    struct dist_piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a call");
    piece->callee = callee;
    piece->caller = caller;
    piece->call = call;
    piece->use = use;
    piece->flags = *flags;
    piece->next = callee->pieces;
    callee->pieces = piece;
    ++*callee->piece_count;
    status = piece_begin(piece, error);
    if (status != STATUS_OK)
        piece_end(piece, status, error->text);
    *out = piece;
    return status;
}

/* ---- what the class's code calls ----
 * The code may still look at its tape after it has answered, so the piece is tidied only when the code has
 * returned (piece_finish_forward). */

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

static void piece_fail(struct dist_piece *piece, enum status status, const char *text)
{
    struct rpc_request *request = piece->request;
    if (piece->state != PIECE_FORWARD)
        return;
    piece->state = PIECE_FAILED;
    piece->request = NULL;
    rpc_fail(request, status, "worker %u: %s: %s", rpc_worker(piece->callee->rpc), use_class(piece->use),
             text);
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
    const struct tensor *tensor = variable_tensor(out);
    const uint32_t index = answer->tensor_count;
    void *block;
    if (tensor->data == NULL)
        return error_set(error, STATUS_INVALID, "output %u was given back already", index);
    enum status status = message_put_tensor(piece->frame.tape, piece->frame.staging, tensor, tape_keep(out),
                                            answer, &block, error);
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
    struct rpc_message answer = {.context = caller_context(piece->callee->caller)};
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

/* Records an answered call, or ends it when the piece has been completed, and continues the piece's code. */
static void piece_continue(struct dist_piece *piece, struct dist_call *call)
{
    struct variable *out[DIST_OUTPUTS_MAX];
    struct error error = {0};
    const struct dist_follow follow = call_follow(call);
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
    follow.then(follow.arg, piece, status, status == STATUS_OK ? out : NULL, status == STATUS_OK ? count : 0);
    piece_leave(piece);
}

/* An answer waits for those of earlier calls, so that calls are recorded in the order in which they were
 * made. */
static void piece_call_answered(struct future *future, void *arg)
{
    struct dist_call *call = arg;
    struct dist_piece *piece = call_answered(call);
    (void)future;
    if (piece == NULL)
        return;
    const bool was_open = piece->state == PIECE_FORWARD;
    while ((call = frame_next_answered(&piece->frame)) != NULL)
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
    const struct dist_follow follow = {then, arg};
    struct dist_call *call;
    enum status status = call_start(&piece->frame, &asked, &follow, piece_call_answered, &call, &error);
    if (status == STATUS_OK)
        return;
    tape_fail(piece->frame.tape, status, "%s", error.text);
    then(arg, piece, status, NULL, 0);
}

/* ---- FORWARD and BACKWARD, received ---- */

static void callee_refuse(const struct dist_callee *callee, struct rpc_request *request,
                          const struct error *error)
{
    rpc_fail(request, error->status, "worker %u: %s", rpc_worker(callee->rpc), error->text);
}

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
        enum status status = message_take_tensor(piece->frame.tape, piece->frame.staging, message, at++,
                                                 flags->scalars >> i & 1, &tensor, error);
        if (status != STATUS_OK)
            return status;
        tensor.name = "input";
        piece->in[i] = tape_constant(piece->frame.tape, &tensor);
        if (flags->wanted >> i & 1)
            tape_want_gradient(piece->in[i]);
    }
    return tape_status(piece->frame.tape, error);
}

void callee_forward(struct dist_callee *callee, struct rpc_request *request,
                    const struct rpc_message *message, const struct forward_flags *flags)
{
    struct error error = {0};
    struct dist_piece *piece = NULL;
    enum status status = piece_new(callee, rpc_request_source(request), message, flags, &piece, &error);
    if (status != STATUS_OK) {
        callee_refuse(callee, request, &error);
        return;
    }
    piece->request = request;
    status = piece_take_inputs(piece, message, &error);
    const enum profile_kind before = profile_enter(flags->trains ? PROFILE_LEARNING : PROFILE_INFERENCE);
    piece_enter(piece);
    if (status == STATUS_OK)
        use_forward(piece->use, piece);
    else
        dist_fail(piece, status, "%s", error.text);
    piece_leave(piece);
    profile_leave(before);
    piece_finish_forward(piece);
}

static enum status piece_find_kept(const struct dist_callee *callee, const struct rpc_message *message,
                                   uint16_t caller, struct dist_piece **out, struct error *error)
{
    const uint64_t call = message->args[BACKWARD_CALL];
    struct dist_piece *piece = piece_find(callee, caller, call);
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
        status = message_take_tensor(piece->frame.tape, piece->frame.staging, message, at++, is_scalar,
                                     &gradient, error);
        if (status == STATUS_OK && tape_seed(tape, piece->out[i], &gradient) != STATUS_OK)
            status = tape_status(tape, error);
    }
    return status;
}

void callee_backward(struct dist_callee *callee, struct rpc_request *request,
                     const struct rpc_message *message)
{
    struct error error = {0};
    struct dist_piece *piece = NULL;
    enum status status = piece_find_kept(callee, message, rpc_request_source(request), &piece, &error);
    if (status != STATUS_OK || piece == NULL) {
        callee_refuse(callee, request, &error);
        return;
    }
    piece->request = request;
    piece->state = PIECE_WALKING;
    status = piece_seed(piece, message, &error);
    if (status == STATUS_OK)
        piece_advance_walk(piece, tape_walk);
    else
        piece_finish_walk(piece, status, &error);
}

/* ---- all pieces ---- */

void callee_end(struct dist_callee *callee, enum status status, const char *text)
{
    while (callee->pieces != NULL)
        piece_end(callee->pieces, status, text); // it unlinks; NOLINT(clang-analyzer-unix.Malloc)
    uses_release(callee->objects, &callee->uses);
}

bool callee_serves(const struct dist_callee *callee, uint16_t caller)
{
    const struct dist_piece *piece = callee->pieces;
    while (piece != NULL && piece->caller != caller)
        piece = piece->next;
    return piece != NULL || callee->pieces == NULL;
}
