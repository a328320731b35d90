/* One layer of an LSTM: the library computes the products, and loops of our own the gates.
 *
 * Forward: one large product for the inputs of all steps; then, step by step, the product of the previous
 * output and the fused gates. Backward: the gates' gradients step by step, then one product each for the
 * gradients of weights and inputs. (The library's own LSTM adds to weight gradients instead of writing them,
 * and has one bias.)
 *
 * Saved: the gates (steps, batch, 4 hidden) and the cells (steps, batch, hidden). */
#include "kernels/onednn/onednn.h"

#include <string.h>

enum { SAVED_GATES, SAVED_CELLS };

struct lstm {
    struct onednn *onednn;
    const struct op_call *call;
    size_t steps, batch, inputs, hidden;
    const float *x, *h0, *c0, *weight_ih, *weight_hh, *y;
    float *gates, *cells; // (steps, batch, 4 hidden), (steps, batch, hidden)
};

static const float *data_or_null(const struct tensor *tensor)
{
    return tensor == NULL ? NULL : tensor->data;
}

static struct lstm lstm_of(struct backend *backend, const struct op_call *call)
{
    const struct shape *x = &call->in[0]->shape;
    return (struct lstm){
        .onednn = onednn_of(backend),
        .call = call,
        .steps = x->size[0],
        .batch = x->size[1],
        .inputs = x->size[2],
        .hidden = call->in[4]->shape.size[1],
        .x = call->in[0]->data,
        .h0 = call->in[1]->data,
        .c0 = call->in[2]->data,
        .weight_ih = call->in[3]->data,
        .weight_hh = call->in[4]->data,
        .y = call->out[0]->data,
        .gates = call->saved[SAVED_GATES].data,
        .cells = call->saved[SAVED_CELLS].data,
    };
}

/* The cells before step t. */
static const float *cells_before(const struct lstm *lstm, size_t t)
{
    return t == 0 ? lstm->c0 : lstm->cells + (t - 1) * lstm->batch * lstm->hidden;
}

/* ---- forward ---- */

static void gates_forward(const struct lstm *lstm, size_t t, float *y)
{
    const size_t batch = lstm->batch, hidden = lstm->hidden;
    const float *bias_ih = lstm->call->in[5]->data, *bias_hh = lstm->call->in[6]->data;
    const float *before = cells_before(lstm, t);
#pragma omp parallel for schedule(static) if (batch * hidden > 1024)
    for (size_t b = 0; b < batch; b++) {
        const size_t row = t * batch + b;
        const struct row_lstm one = {.hidden = hidden,
                                     .gates = lstm->gates + row * 4 * hidden,
                                     .bias = {bias_ih, bias_hh},
                                     .c_prev = before + b * hidden,
                                     .c = lstm->cells + row * hidden,
                                     .h = y + row * hidden};
        lstm->onednn->row->lstm_forward(&one);
    }
}

/* Small products run a quarter faster with weight_hh transposed, which pays from a few steps on. */
enum { TURN_STEPS = 4, TURN_HIDDEN = 32 };

static enum status turn_weight(struct backend *backend, const struct lstm *lstm, float *turned,
                               struct error *error)
{
    const struct tensor *weight = lstm->call->in[4];
    const dnnl_dim_t rows = (dnnl_dim_t)lstm->hidden * 4, columns = (dnnl_dim_t)lstm->hidden;
    struct tensor to = *weight;
    dnnl_memory_desc_t desc;
    enum status status =
        onednn_check(dnnl_memory_desc_init_by_strides(&desc, 2, (const dnnl_dims_t){rows, columns}, dnnl_f32,
                                                      (const dnnl_dims_t){1, rows}),
                     "dnnl_memory_desc_init_by_strides", "lstm", &weight->shape, error);
    if (status == STATUS_OK)
        status = layout_intern(lstm->onednn, &desc, &to.layout, error);
    to.data = turned;
    return status == STATUS_OK ? onednn_reorder(backend, &to, weight, error) : status;
}

/* Step by step: what the previous output adds to the sums, then the gates. */
static enum status walk_forward(const struct lstm *lstm, const float *turned, float *y, struct error *error)
{
    const size_t hidden = lstm->hidden, state = lstm->batch * hidden;
    enum status status = STATUS_OK;
    for (size_t t = 0; t < lstm->steps && status == STATUS_OK; t++) {
        status =
            onednn_product(lstm->call, 'N', turned != NULL ? 'N' : 'T', lstm->batch, 4 * hidden, hidden,
                           t == 0 ? lstm->h0 : y + (t - 1) * state, turned != NULL ? turned : lstm->weight_hh,
                           1, lstm->gates + t * 4 * state, error);
        if (status == STATUS_OK)
            gates_forward(lstm, t, y);
    }
    return status;
}

enum status lstm_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct tensor gates = {0}, cells = {0};
    struct lstm lstm = lstm_of(backend, call);
    const size_t rows = lstm.steps * lstm.batch, hidden = lstm.hidden, state = lstm.batch * hidden;
    const bool turns = lstm.steps >= TURN_STEPS && hidden >= TURN_HIDDEN;
    float *y = call->out[0]->data;
    enum status status = scratch_reserve(&lstm.onednn->terms, 4 * hidden * hidden * sizeof(float), error);
    if (status == STATUS_OK)
        status = onednn_take(call, &gates, NULL, rows * 4 * hidden * sizeof(float), error);
    if (status == STATUS_OK)
        status = onednn_take(call, &cells, NULL, rows * hidden * sizeof(float), error);
    if (status != STATUS_OK)
        return status;
    float *turned = turns ? lstm.onednn->terms.data : NULL;
    lstm.gates = gates.data;
    lstm.cells = cells.data;
    if (turns)
        status = turn_weight(backend, &lstm, turned, error);
    if (status == STATUS_OK)
        status = onednn_product(lstm.call, 'N', 'T', rows, 4 * hidden, lstm.inputs, lstm.x, lstm.weight_ih, 0,
                                lstm.gates, error);
    if (status == STATUS_OK)
        status = walk_forward(&lstm, turned, y, error);
    if (status != STATUS_OK)
        return status;
    memcpy(call->out[1]->data, y + (lstm.steps - 1) * state, state * sizeof *y);
    memcpy(call->out[2]->data, lstm.cells + (lstm.steps - 1) * state, state * sizeof *y);
    if (call->keep) {
        call->saved[SAVED_GATES] = gates;
        call->saved[SAVED_CELLS] = cells;
        return STATUS_OK;
    }
    arena_release(call->arena, cells.data);
    arena_release(call->arena, gates.data);
    return STATUS_OK;
}

/* ---- backward ---- */

/* Scratch of one backward. */
struct lstm_back {
    float *dsums; // (steps, batch, 4 hidden): of the sums under the gates
    float *dh;    // (batch, hidden): of the output before the step, through the products
    float *dc;    // (batch, hidden): of the cells before the step
    double *bias; // (4 hidden)
};

static enum status back_reserve(const struct lstm *lstm, struct lstm_back *back, struct error *error)
{
    const size_t state = lstm->batch * lstm->hidden, sums = lstm->steps * 4 * state;
    const size_t doubles = 4 * lstm->hidden;
    enum status status = scratch_reserve(
        &lstm->onednn->terms, doubles * sizeof(double) + (sums + 2 * state) * sizeof(float), error);
    if (status != STATUS_OK)
        return status;
    back->bias = lstm->onednn->terms.data;
    void *behind = back->bias + doubles;
    back->dsums = behind;
    back->dh = back->dsums + sums;
    back->dc = back->dh + state;
    return STATUS_OK;
}

static void gates_backward(const struct lstm *lstm, size_t t, const struct lstm_back *back, bool last)
{
    const size_t batch = lstm->batch, hidden = lstm->hidden;
    const float *dy = data_or_null(lstm->call->dout[0]), *dhn = data_or_null(lstm->call->dout[1]);
    const float *dh = last ? dhn : back->dh, *before = cells_before(lstm, t);
#pragma omp parallel for schedule(static) if (batch * hidden > 1024)
    for (size_t b = 0; b < batch; b++) {
        const size_t row = t * batch + b;
        const struct row_lstm one = {.hidden = hidden,
                                     .gates = lstm->gates + row * 4 * hidden,
                                     .c_prev = before + b * hidden,
                                     .c = lstm->cells + row * hidden,
                                     .dy = dy == NULL ? NULL : dy + row * hidden,
                                     .dh = dh == NULL ? NULL : dh + b * hidden,
                                     .dc = back->dc + b * hidden,
                                     .dsums = back->dsums + row * 4 * hidden};
        lstm->onednn->row->lstm_backward(&one);
    }
}

/* Through time, last step first: leaves all dsums, and dh and dc of the state before the first step. */
static enum status walk_back(const struct lstm *lstm, const struct lstm_back *back, struct error *error)
{
    const size_t state = lstm->batch * lstm->hidden;
    const float *dcn = data_or_null(lstm->call->dout[2]);
    enum status status = STATUS_OK;
    if (dcn == NULL)
        memset(back->dc, 0, state * sizeof(float));
    else
        memcpy(back->dc, dcn, state * sizeof(float));
    for (size_t t = lstm->steps; t-- > 0 && status == STATUS_OK;) {
        gates_backward(lstm, t, back, t + 1 == lstm->steps);
        if (t > 0 || lstm->call->din[1] != NULL)
            status = onednn_product(lstm->call, 'N', 'N', lstm->batch, lstm->hidden, 4 * lstm->hidden,
                                    back->dsums + t * 4 * state, lstm->weight_hh, 0, back->dh, error);
    }
    return status;
}

/* dweight_hh: the outputs before each step, which are y but for the first. */
static enum status back_weight_hh(const struct lstm *lstm, const struct lstm_back *back, float *dweight,
                                  struct error *error)
{
    const size_t hidden = lstm->hidden, state = lstm->batch * hidden;
    enum status status = STATUS_OK;
    if (lstm->steps > 1)
        status = onednn_product(lstm->call, 'T', 'N', 4 * hidden, hidden, (lstm->steps - 1) * lstm->batch,
                                back->dsums + 4 * state, lstm->y, 0, dweight, error);
    else
        memset(dweight, 0, 4 * hidden * hidden * sizeof *dweight);
    if (status == STATUS_OK)
        status = onednn_product(lstm->call, 'T', 'N', 4 * hidden, hidden, lstm->batch, back->dsums, lstm->h0,
                                1, dweight, error);
    return status;
}

static void back_biases(const struct lstm *lstm, const struct lstm_back *back)
{
    const size_t rows = lstm->steps * lstm->batch, columns = 4 * lstm->hidden;
    memset(back->bias, 0, columns * sizeof *back->bias);
    for (size_t row = 0; row < rows; row++)
        lstm->onednn->element->add_to_double(back->bias, back->dsums + row * columns, columns);
    for (int i = 5; i < 7; i++)
        if (lstm->call->din[i] != NULL)
            lstm->onednn->element->narrow(
                &(struct elements){.to = lstm->call->din[i]->data, .wide = back->bias}, 0, columns);
}

enum status lstm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct lstm lstm = lstm_of(backend, call);
    const size_t rows = lstm.steps * lstm.batch, hidden = lstm.hidden, state = lstm.batch * hidden;
    struct tensor *const *din = call->din;
    struct lstm_back back;
    enum status status = back_reserve(&lstm, &back, error);
    if (status == STATUS_OK)
        status = walk_back(&lstm, &back, error);
    if (status == STATUS_OK && din[0] != NULL)
        status = onednn_product(lstm.call, 'N', 'N', rows, lstm.inputs, 4 * hidden, back.dsums,
                                lstm.weight_ih, 0, din[0]->data, error);
    if (status == STATUS_OK && din[3] != NULL)
        status = onednn_product(lstm.call, 'T', 'N', 4 * hidden, lstm.inputs, rows, back.dsums, lstm.x, 0,
                                din[3]->data, error);
    if (status == STATUS_OK && din[4] != NULL)
        status = back_weight_hh(&lstm, &back, din[4]->data, error);
    if (status != STATUS_OK)
        return status;
    if (din[1] != NULL)
        memcpy(din[1]->data, back.dh, state * sizeof(float));
    if (din[2] != NULL)
        memcpy(din[2]->data, back.dc, state * sizeof(float));
    if (din[5] != NULL || din[6] != NULL)
        back_biases(&lstm, &back);
    return STATUS_OK;
}
