/* ReLU, add, reshape and dropout. The first two work on whatever layout comes: padding holds zeros, and both
 * make zeros of it again. */
#include "kernels/onednn/onednn.h"

#include <math.h>
#include <string.h>

static float *floats(const struct tensor *tensor)
{
    return tensor->data;
}

/* ---- relu ---- */

void onednn_relu(struct backend *backend, struct tensor *to, const struct tensor *from)
{
    const struct element_lanes *element = onednn_of(backend)->element;
    const float *x = floats(from);
    float *y = floats(to);
    const size_t count = loop_elements(from), pieces = loop_pieces(count);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        element->relu(y + i * LOOP_PIECE, x + i * LOOP_PIECE, loop_piece(count, i));
}

static enum status relu_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    onednn_relu(backend, call->out[0], call->in[0]);
    return STATUS_OK;
}

enum status onednn_relu_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_FORWARD, call->in[0]->layout, NULL, relu_body, error);
}

/* dx = dy where y > 0. */
static void mask_all(const struct onednn *onednn, float *dx, const float *y, const float *dy, size_t count)
{
    const size_t pieces = loop_pieces(count);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        onednn->element->mask(dx + i * LOOP_PIECE, y + i * LOOP_PIECE, dy + i * LOOP_PIECE,
                              loop_piece(count, i));
}

static enum status relu_backward_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    mask_all(onednn_of(backend), floats(call->din[0]), floats(call->out[0]), floats(call->dout[0]),
             loop_elements(call->out[0]));
    return STATUS_OK;
}

enum status onednn_relu_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, call->out[0]->layout, NULL, relu_backward_body, error);
}

/* ---- add ---- */

static enum status add_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    void (*add)(float *, const float *, const float *, size_t) =
        call->attributes.relu ? element->add_relu : element->add;
    const float *a = floats(call->in[0]), *b = floats(call->in[1]);
    float *y = floats(call->out[0]);
    const size_t count = loop_elements(call->in[0]), pieces = loop_pieces(count);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        add(y + i * LOOP_PIECE, a + i * LOOP_PIECE, b + i * LOOP_PIECE, loop_piece(count, i));
    return STATUS_OK;
}

enum status onednn_add_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    const void *layout = call->in[0]->layout != NULL ? call->in[0]->layout : call->in[1]->layout;
    return loop_run(backend, call, PASS_FORWARD, layout, NULL, add_body, error);
}

static enum status add_relu_backward_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    for (int i = 0; i < 2; i++)
        if (call->din[i] != NULL)
            mask_all(onednn_of(backend), floats(call->din[i]), floats(call->out[0]), floats(call->dout[0]),
                     loop_elements(call->out[0]));
    return STATUS_OK;
}

/* Both inputs have one gradient: where neither has memory of its own they share it. */
static enum status add_relu_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct tensor *second = call->din[1];
    const bool shared =
        call->din[0] != NULL && second != NULL && call->din[0]->data == NULL && second->data == NULL;
    if (shared)
        call->din[1] = NULL;
    enum status status =
        loop_run(backend, call, PASS_BACKWARD, call->out[0]->layout, NULL, add_relu_backward_body, error);
    call->din[1] = second;
    if (shared && status == STATUS_OK) {
        second->data = call->din[0]->data;
        second->layout = call->din[0]->layout;
        second->bytes = call->din[0]->bytes;
    }
    return status;
}

/* An input's gradient that is the output's: the same memory where the call allows it, else a copy. */
static enum status pass_on(struct backend *backend, struct tensor *to, const struct tensor *from,
                           struct error *error)
{
    if (to->data != NULL)
        return onednn_reorder(backend, to, from, error);
    to->data = from->data;
    to->layout = from->layout;
    to->bytes = from->bytes;
    return STATUS_OK;
}

enum status onednn_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    if (call->attributes.relu)
        return add_relu_backward(backend, call, error);
    enum status status = STATUS_OK;
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        if (call->din[i] != NULL)
            status = pass_on(backend, call->din[i], call->dout[0], error);
    return status;
}

/* ---- reshape ---- */

/* Canonical order stays as it is; a copy is made only of what lies otherwise, or into the caller's memory. */
static enum status reshape_values(struct backend *backend, struct arena *arena, struct tensor *to,
                                  const struct tensor *from, struct error *error)
{
    if (to->data == NULL && from->layout == NULL) {
        to->data = from->data;
        to->layout = NULL;
        to->bytes = from->bytes;
        return STATUS_OK;
    }
    /* `to` under the shape of `from`, in canonical order; where `to` lies otherwise, so is `from` first. */
    struct tensor plain = *from, target = *to;
    const size_t bytes = shape_elements(&from->shape) * sizeof(float);
    const bool taken = to->data == NULL;
    if (taken) {
        target.data = arena_take(arena, bytes);
        target.layout = NULL;
        target.bytes = bytes;
        if (target.data == NULL)
            return error_set(error, STATUS_NO_MEMORY, "reshape: no memory for %zu bytes", bytes);
    }
    plain.layout = NULL;
    enum status status = STATUS_OK;
    if (target.layout == NULL) {
        plain.data = target.data;
        status = onednn_reorder(backend, &plain, from, error);
    } else {
        status = scratch_reserve(&onednn_of(backend)->copies, bytes, error);
        if (status == STATUS_OK) {
            plain.data = onednn_of(backend)->copies.data;
            status = onednn_reorder(backend, &plain, from, error);
        }
        plain.shape = target.shape;
        if (status == STATUS_OK)
            status = onednn_reorder(backend, &target, &plain, error);
    }
    if (status == STATUS_OK)
        *to = target;
    else if (taken)
        arena_release(arena, target.data);
    return status;
}

enum status onednn_reshape_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return reshape_values(backend, call->arena, call->out[0], call->in[0], error);
}

enum status onednn_reshape_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return reshape_values(backend, call->arena, call->din[0], call->dout[0], error);
}

/* ---- dropout ---- */

enum { SAVED_KEPT = 0 };

/* How x falls into rows of their own draw, each cut into groups of 128 units. */
struct dropout {
    const struct row_lanes *row;
    const struct draw *draw;
    const int32_t (*words)[3]; // (rows) or NULL
    size_t rows, width, groups;
    uint32_t bound; // kept: 16 bits >= this
    float scale;
};

static struct dropout dropout_of(const struct backend *backend, const struct op_call *call)
{
    const size_t elements = shape_elements(&call->in[0]->shape);
    struct dropout dropout = {.row = onednn_of(backend)->row,
                              .draw = &call->attributes.draw,
                              .rows = call->in[1] == NULL ? 1 : call->in[1]->shape.size[0],
                              .bound = (uint32_t)lrint(65536 * call->attributes.dropout),
                              .scale = (float)(1 / (1 - call->attributes.dropout))};
    dropout.width = elements / dropout.rows;
    dropout.groups = (dropout.width + ROW_DRAW_UNITS - 1) / ROW_DRAW_UNITS;
    return dropout;
}

static enum status dropout_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    struct dropout dropout = dropout_of(backend, call);
    if (call->in[1] != NULL)
        dropout.words = call->in[1]->data;
    const float *x = floats(call->in[0]);
    float *y = floats(call->out[0]);
    uint64_t *kept = call->keep ? call->saved[SAVED_KEPT].data : NULL;
    const size_t groups = dropout.rows * dropout.groups;
#pragma omp parallel for schedule(static) if (groups > 64)
    for (size_t i = 0; i < groups; i++) {
        const size_t row = i / dropout.groups, group = i % dropout.groups;
        const size_t first = row * dropout.width + group * ROW_DRAW_UNITS;
        const size_t left = dropout.width - group * ROW_DRAW_UNITS;
        const uint32_t *own = dropout.draw->word;
        struct rng_key key = {dropout.draw->seed, own[0], own[1], own[2]};
        if (dropout.words != NULL) {
            const int32_t *word = dropout.words[row];
            key = (struct rng_key){key.seed, (uint32_t)word[0], (uint32_t)word[1], (uint32_t)word[2]};
        }
        uint64_t bits[2];
        dropout.row->draw(&key, (uint32_t)group, dropout.bound, bits);
        dropout.row->keep(y + first, x + first, bits, dropout.scale,
                          left < ROW_DRAW_UNITS ? left : ROW_DRAW_UNITS);
        if (kept != NULL)
            memcpy(kept + 2 * i, bits, sizeof bits);
    }
    return STATUS_OK;
}

enum status onednn_dropout_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct dropout dropout = dropout_of(backend, call);
    const size_t saved[2] = {dropout.rows * dropout.groups * 2 * sizeof(uint64_t)};
    return loop_run(backend, call, PASS_FORWARD, NULL, saved, dropout_body, error);
}

static enum status dropout_backward_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct dropout dropout = dropout_of(backend, call);
    const float *dy = floats(call->dout[0]);
    float *dx = floats(call->din[0]);
    const uint64_t *kept = call->saved[SAVED_KEPT].data;
    const size_t groups = dropout.rows * dropout.groups;
#pragma omp parallel for schedule(static) if (groups > 64)
    for (size_t i = 0; i < groups; i++) {
        const size_t group = i % dropout.groups;
        const size_t first = i / dropout.groups * dropout.width + group * ROW_DRAW_UNITS;
        const size_t left = dropout.width - group * ROW_DRAW_UNITS;
        dropout.row->keep(dx + first, dy + first, kept + 2 * i, dropout.scale,
                          left < ROW_DRAW_UNITS ? left : ROW_DRAW_UNITS);
    }
    return STATUS_OK;
}

enum status onednn_dropout_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, NULL, NULL, dropout_backward_body, error);
}
