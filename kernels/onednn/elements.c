/* ReLU, tanh, add, reshape and dropout. */
#include "kernels/onednn/onednn.h"

#include <math.h>
#include <string.h>

/* ---- relu, tanh, add ---- */

enum status pass_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    struct elements arrays = {.to = call->out[0]->data, .a = call->in[0]->data};
    element_pass *pass = call->op == OP_RELU ? element->relu : element->tanh;
    if (call->op == OP_ADD) {
        pass = call->attributes.relu ? element->add_relu : element->add;
        arrays.b = call->in[1]->data;
    }
    loop_pass(backend, pass, &arrays, loop_elements(call->in[0]));
    return STATUS_OK;
}

/* Computes the input's gradient from the output and the output's gradient: where a ReLU let through, dx = dy.
 * An addition with a ReLU writes it for the first input that wants one. */
enum status pass_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const struct tensor *to = call->din[0] != NULL ? call->din[0] : call->din[1];
    const struct elements arrays = {.to = to->data, .a = call->out[0]->data, .b = call->dout[0]->data};
    loop_pass(backend, call->op == OP_TANH ? element->tanh_slope : element->mask, &arrays,
              loop_elements(call->out[0]));
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

static size_t dropout_rows(const struct op_call *call)
{
    return call->in[1] == NULL ? 1 : call->in[1]->shape.size[0];
}

static size_t dropout_groups(const struct op_call *call)
{
    const size_t rows = dropout_rows(call), width = shape_elements(&call->in[0]->shape) / rows;
    return rows * ((width + ROW_DRAW_UNITS - 1) / ROW_DRAW_UNITS);
}

/* `to` is scaled `from` where units are kept, and elsewhere 0. The tensor falls into rows of their own draw,
 * each cut into groups of 128 units. `kept` (groups of all rows, 2): the bits, which a forward draws and
 * keeps there unless it is NULL, and which a backward reads. */
static void drop(const struct backend *backend, const struct op_call *call, float *to, const float *from,
                 bool draws, uint64_t *kept)
{
    const struct row_lanes *lanes = onednn_of(backend)->row;
    const struct draw *draw = &call->attributes.draw;
    const int32_t(*words)[3] = draws && call->in[1] != NULL ? call->in[1]->data : NULL;
    const size_t groups = dropout_groups(call), rows = dropout_rows(call);
    const size_t width = shape_elements(&call->in[0]->shape) / rows, row_groups = groups / rows;
    const uint32_t bound = (uint32_t)lrint(65536 * call->attributes.dropout); // kept: 16 bits >= this
    const float scale = (float)(1 / (1 - call->attributes.dropout));
#pragma omp parallel for schedule(static) if (groups > 64)
    for (size_t i = 0; i < groups; i++) {
        const size_t row = i / row_groups, group = i % row_groups;
        const size_t first = row * width + group * ROW_DRAW_UNITS, left = width - group * ROW_DRAW_UNITS;
        struct rng_key key = {draw->seed, draw->word[0], draw->word[1], draw->word[2]};
        uint64_t bits[2];
        if (words != NULL)
            key = (struct rng_key){key.seed, (uint32_t)words[row][0], (uint32_t)words[row][1],
                                   (uint32_t)words[row][2]};
        if (draws)
            lanes->draw(&key, (uint32_t)group, bound, bits);
        else
            memcpy(bits, kept + 2 * i, sizeof bits);
        lanes->keep(to + first, from + first, bits, scale, left < ROW_DRAW_UNITS ? left : ROW_DRAW_UNITS);
        if (draws && kept != NULL)
            memcpy(kept + 2 * i, bits, sizeof bits);
    }
}

enum status dropout_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct tensor *saved = &call->saved[SAVED_KEPT];
    if (call->keep &&
        onednn_take(call, saved, NULL, dropout_groups(call) * 2 * sizeof(uint64_t), error) != STATUS_OK)
        return STATUS_NO_MEMORY;
    drop(backend, call, call->out[0]->data, call->in[0]->data, true, saved->data);
    return STATUS_OK;
}

enum status dropout_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    drop(backend, call, call->din[0]->data, call->dout[0]->data, false, call->saved[SAVED_KEPT].data);
    return STATUS_OK;
}
