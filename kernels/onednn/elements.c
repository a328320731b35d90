/* ReLU, tanh, add, reshape and dropout. */
#include "kernels/onednn/onednn.h"

#include <math.h>
#include <string.h>

/* ---- relu, tanh ---- */

enum status relu_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    loop_pass(backend, onednn_of(backend)->element->relu,
              &(struct elements){.to = call->out[0]->data, .a = call->in[0]->data},
              loop_elements(call->in[0]));
    return STATUS_OK;
}

/* The gradient by the output and the output's gradient. */
static enum status pass_backward(const struct backend *backend, const struct op_call *call,
                                 element_pass *pass)
{
    const struct elements arrays = {
        .to = call->din[0]->data, .a = call->out[0]->data, .b = call->dout[0]->data};
    loop_pass(backend, pass, &arrays, loop_elements(call->out[0]));
    return STATUS_OK;
}

/* dx = dy where y > 0. */
enum status relu_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    return pass_backward(backend, call, onednn_of(backend)->element->mask);
}

enum status tanh_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    loop_pass(backend, onednn_of(backend)->element->tanh,
              &(struct elements){.to = call->out[0]->data, .a = call->in[0]->data},
              loop_elements(call->in[0]));
    return STATUS_OK;
}

enum status tanh_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    return pass_backward(backend, call, onednn_of(backend)->element->tanh_slope);
}

/* ---- add ---- */

enum status add_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const struct elements arrays = {.to = call->out[0]->data, .a = call->in[0]->data, .b = call->in[1]->data};
    loop_pass(backend, call->attributes.relu ? element->add_relu : element->add, &arrays,
              loop_elements(call->in[0]));
    return STATUS_OK;
}

/* Another name for the memory of `from`. */
static void share_memory(struct op_call *call, struct tensor *to, const struct tensor *from)
{
    arena_share(call->arena, from->data);
    to->data = from->data;
    to->layout = from->layout;
    to->bytes = from->bytes;
}

/* With a ReLU: the gradient of the first input that wants one. */
enum status add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct op_call relu = *call;
    relu.din[0] = call->din[0] != NULL ? call->din[0] : call->din[1];
    return relu_backward(backend, &relu, error);
}

/* Both inputs have one gradient and share its memory; without a ReLU it is the output's. */
enum status onednn_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct tensor *first = call->din[0], *second = call->din[1];
    struct op_call one = *call;
    enum status status = STATUS_OK;
    if (!call->attributes.relu) {
        for (int i = 0; i < 2; i++)
            if (call->din[i] != NULL)
                share_memory(call, call->din[i], call->dout[0]);
        return STATUS_OK;
    }
    if (first != NULL)
        one.din[1] = NULL;
    status = loop_run_backward(backend, &one, error);
    if (status == STATUS_OK && first != NULL && second != NULL)
        share_memory(call, second, first);
    return status;
}

/* ---- reshape ---- */

/* Canonical order stays as it is; a copy is made only of what lies otherwise. */
static enum status reshape_values(struct backend *backend, struct op_call *call, struct tensor *to,
                                  const struct tensor *from, struct error *error)
{
    if (from->layout == NULL) {
        share_memory(call, to, from);
        return STATUS_OK;
    }
    struct tensor plain = *from;
    enum status status = onednn_take(call, &plain, NULL, shape_elements(&from->shape) * sizeof(float), error);
    if (status == STATUS_OK)
        status = onednn_reorder(backend, &plain, from, error);
    to->data = plain.data;
    to->bytes = plain.bytes;
    return status;
}

enum status onednn_reshape_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return reshape_values(backend, call, call->out[0], call->in[0], error);
}

enum status onednn_reshape_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return reshape_values(backend, call, call->din[0], call->dout[0], error);
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

enum status dropout_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct dropout dropout = dropout_of(backend, call);
    if (call->in[1] != NULL)
        dropout.words = call->in[1]->data;
    const float *x = call->in[0]->data;
    float *y = call->out[0]->data;
    const size_t groups = dropout.rows * dropout.groups;
    struct tensor *saved = &call->saved[SAVED_KEPT];
    if (call->keep && onednn_take(call, saved, NULL, groups * 2 * sizeof(uint64_t), error) != STATUS_OK)
        return STATUS_NO_MEMORY;
    uint64_t *kept = saved->data;
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

enum status dropout_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct dropout dropout = dropout_of(backend, call);
    const float *dy = call->dout[0]->data;
    float *dx = call->din[0]->data;
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
