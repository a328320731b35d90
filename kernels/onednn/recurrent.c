/* One layer of an LSTM or a GRU: the library computes the products, and loops of our own the gates.
 *
 * Forward: one large product for the inputs of all steps; then, step by step, the product of the previous
 * output and the fused gates. Backward: the gates' gradients step by step, then one product each for the
 * gradients of weights and inputs. The library's own LSTM does not serve: it adds to weight gradients, and
 * has one bias. In a GRU, r scales n's sum of h alone. So the sums of x and those of h have different
 * gradients.
 *
 * Saved: the gates (steps, batch, gates hidden), and as (steps, batch, hidden) what a backward reads beside
 * them: an LSTM's cells, or a GRU's sums of h for n. */
#include "kernels/onednn/onednn.h"

#include <string.h>

enum { X, H0, C0 }; /* inputs; then four of weights and biases. A GRU has no C0 */
enum { Y, HN, CN }; /* outputs. A GRU has no CN */
enum { WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, WEIGHTS };
enum { SAVED_GATES, SAVED_BESIDE };

struct layer {
    struct onednn *onednn;
    const struct op_call *call;
    bool is_lstm;
    uint32_t first_weight; // the number of the input weight_ih, which the others follow
    size_t steps, batch, inputs, hidden;
    size_t width; // of a row of gates: gates hidden
    const float *x, *h0, *weight[WEIGHTS];
    float *y;              // (steps, batch, hidden)
    float *gates, *beside; // (steps, batch, width), (steps, batch, hidden)
};

static struct layer layer_of(struct backend *backend, const struct op_call *call)
{
    const struct shape *x = &call->in[X]->shape;
    struct layer layer = {
        .onednn = onednn_of(backend),
        .call = call,
        .is_lstm = call->op == OP_LSTM_LAYER,
        .first_weight = call->op == OP_LSTM_LAYER ? C0 + 1 : C0,
        .steps = x->size[0],
        .batch = x->size[1],
        .inputs = x->size[2],
        .hidden = call->in[H0]->shape.size[1],
        .x = call->in[X]->data,
        .h0 = call->in[H0]->data,
        .y = call->out[Y]->data,
        .gates = call->saved[SAVED_GATES].data,
        .beside = call->saved[SAVED_BESIDE].data,
    };
    layer.width = (layer.is_lstm ? 4 : 3) * layer.hidden;
    for (uint32_t i = 0; i < WEIGHTS; i++)
        layer.weight[i] = call->in[layer.first_weight + i]->data;
    return layer;
}

static const float *data_or_null(const struct tensor *tensor)
{
    return tensor == NULL ? NULL : tensor->data;
}

/* The state before row number `row` of (steps, batch); `states` are (steps, batch, hidden). */
static const float *before(const struct layer *layer, const float *initial, const float *states, size_t row)
{
    return row < layer->batch ? initial + row * layer->hidden : states + (row - layer->batch) * layer->hidden;
}

static const float *output_before(const struct layer *layer, size_t row)
{
    return before(layer, layer->h0, layer->y, row);
}

static const float *cells_before(const struct layer *layer, size_t row)
{
    return before(layer, layer->call->in[C0]->data, layer->beside, row);
}

/* ---- forward ---- */

static void lstm_row_forward(const struct layer *layer, size_t row)
{
    const size_t hidden = layer->hidden;
    layer->onednn->row->lstm_forward(
        &(struct row_lstm){.hidden = hidden,
                           .gates = layer->gates + row * layer->width,
                           .bias = {layer->weight[BIAS_IH], layer->weight[BIAS_HH]},
                           .c_prev = cells_before(layer, row),
                           .c = layer->beside + row * hidden,
                           .h = layer->y + row * hidden});
}

/* `of_h` (3, hidden): the row's sums of h. */
static void gru_row_forward(const struct layer *layer, size_t row, const float *of_h)
{
    const size_t hidden = layer->hidden;
    const struct row_gru one = {.hidden = hidden,
                                .gates = layer->gates + row * layer->width,
                                .candidate = layer->beside + row * hidden,
                                .bias = {layer->weight[BIAS_IH], layer->weight[BIAS_HH]},
                                .h_prev = output_before(layer, row),
                                .h = layer->y + row * hidden};
    for (size_t i = 0; i < 2 * hidden; i++)
        one.gates[i] += of_h[i];
    memcpy(one.candidate, of_h + 2 * hidden, hidden * sizeof *of_h);
    layer->onednn->row->gru_forward(&one);
}

/* `sums` (batch, width): of h; an LSTM's are in the gates already. */
static void step_forward(const struct layer *layer, size_t t, const float *sums)
{
    const size_t batch = layer->batch;
#pragma omp parallel for schedule(static) if (batch * layer->hidden > 1024)
    for (size_t b = 0; b < batch; b++)
        if (layer->is_lstm)
            lstm_row_forward(layer, t * batch + b);
        else
            gru_row_forward(layer, t * batch + b, sums + b * layer->width);
}

/* Small products of an LSTM run a quarter faster with weight_hh transposed, which pays from a few steps on.
 */
enum { TURN_STEPS = 4, TURN_HIDDEN = 32 };

static enum status turn_weight(struct backend *backend, const struct layer *layer, float *turned,
                               struct error *error)
{
    const struct tensor *weight = layer->call->in[layer->first_weight + WEIGHT_HH];
    const dnnl_dim_t rows = (dnnl_dim_t)layer->width, columns = (dnnl_dim_t)layer->hidden;
    struct tensor to = *weight;
    dnnl_memory_desc_t desc;
    enum status status =
        onednn_check(dnnl_memory_desc_init_by_strides(&desc, 2, (const dnnl_dims_t){rows, columns}, dnnl_f32,
                                                      (const dnnl_dims_t){1, rows}),
                     "dnnl_memory_desc_init_by_strides", "lstm", &weight->shape, error);
    if (status == STATUS_OK)
        status = layout_intern(layer->onednn, &desc, &to.layout, error);
    to.data = turned;
    return status == STATUS_OK ? onednn_reorder(backend, &to, weight, error) : status;
}

/* Step by step: the sums of the previous output, then the gates. `turned`: weight_hh, or NULL. */
static enum status walk_forward(const struct layer *layer, const float *turned, struct error *error)
{
    const size_t batch = layer->batch, width = layer->width;
    enum status status = STATUS_OK;
    for (size_t t = 0; t < layer->steps && status == STATUS_OK; t++) {
        float *sums = layer->is_lstm ? layer->gates + t * batch * width : layer->onednn->terms.data;
        status = onednn_product(layer->call, 'N', turned != NULL ? 'N' : 'T', batch, width, layer->hidden,
                                output_before(layer, t * batch),
                                turned != NULL ? turned : layer->weight[WEIGHT_HH], layer->is_lstm ? 1 : 0,
                                sums, error);
        if (status == STATUS_OK)
            step_forward(layer, t, sums);
    }
    return status;
}

enum status recurrent_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct tensor gates = {0}, beside = {0};
    struct layer layer = layer_of(backend, call);
    const size_t rows = layer.steps * layer.batch, state_bytes = layer.batch * layer.hidden * sizeof(float);
    const bool turns = layer.is_lstm && layer.steps >= TURN_STEPS && layer.hidden >= TURN_HIDDEN;
    struct scratch *scratch = &layer.onednn->terms;
    enum status status =
        scratch_reserve(scratch, (turns ? layer.hidden : layer.batch) * layer.width * sizeof(float), error);
    if (status == STATUS_OK)
        status = onednn_take(call, &gates, NULL, rows * layer.width * sizeof(float), error);
    if (status == STATUS_OK)
        status = onednn_take(call, &beside, NULL, rows * layer.hidden * sizeof(float), error);
    if (status != STATUS_OK)
        return status;
    layer.gates = gates.data;
    layer.beside = beside.data;
    if (turns)
        status = turn_weight(backend, &layer, scratch->data, error);
    if (status == STATUS_OK)
        status = onednn_product(call, 'N', 'T', rows, layer.width, layer.inputs, layer.x,
                                layer.weight[WEIGHT_IH], 0, layer.gates, error);
    if (status == STATUS_OK)
        status = walk_forward(&layer, turns ? scratch->data : NULL, error);
    if (status != STATUS_OK)
        return status;
    memcpy(call->out[HN]->data, output_before(&layer, rows), state_bytes);
    if (layer.is_lstm)
        memcpy(call->out[CN]->data, cells_before(&layer, rows), state_bytes);
    if (call->keep) {
        call->saved[SAVED_GATES] = gates;
        call->saved[SAVED_BESIDE] = beside;
        return STATUS_OK;
    }
    arena_release(call->arena, beside.data);
    arena_release(call->arena, gates.data);
    return STATUS_OK;
}

/* ---- backward ---- */

/* Scratch of one backward. */
struct back {
    float *of_x, *of_h; // (steps, batch, width): of the sums of x and of h; an LSTM's are one array
    float *dh, *dc;     // (batch, hidden): of the output and the cells before the step
    float *zeros;       // (hidden)
    double *bias;       // (width)
};

static enum status back_reserve(const struct layer *layer, struct back *back, struct error *error)
{
    const size_t state = layer->batch * layer->hidden, sums = layer->steps * layer->batch * layer->width;
    const size_t floats = (layer->is_lstm ? 1 : 2) * sums + 2 * state + layer->hidden;
    struct scratch *scratch = &layer->onednn->terms;
    enum status status =
        scratch_reserve(scratch, layer->width * sizeof(double) + floats * sizeof(float), error);
    if (status != STATUS_OK)
        return status;
    back->bias = scratch->data;
    void *behind = back->bias + layer->width;
    back->of_x = behind;
    back->of_h = layer->is_lstm ? back->of_x : back->of_x + sums;
    back->dh = back->of_h + sums;
    back->dc = back->dh + state;
    back->zeros = back->dc + state;
    memset(back->zeros, 0, layer->hidden * sizeof *back->zeros);
    return STATUS_OK;
}

/* `dy`: the row's, or NULL. `dh`: (hidden), or NULL in the last step. */
static void lstm_row_backward(const struct layer *layer, size_t row, const float *dy, const float *dh,
                              const struct back *back)
{
    const size_t hidden = layer->hidden;
    layer->onednn->row->lstm_backward(&(struct row_lstm){.hidden = hidden,
                                                         .gates = layer->gates + row * layer->width,
                                                         .c_prev = cells_before(layer, row),
                                                         .c = layer->beside + row * hidden,
                                                         .dy = dy,
                                                         .dh = dh,
                                                         .dc = back->dc + row % layer->batch * hidden,
                                                         .dsums = back->of_x + row * layer->width});
}

static void gru_row_backward(const struct layer *layer, size_t row, const float *dy, float *dh,
                             const struct back *back)
{
    const size_t hidden = layer->hidden;
    float *of_h = back->of_h + row * layer->width;
    const struct row_gru one = {.hidden = hidden,
                                .gates = layer->gates + row * layer->width,
                                .candidate = layer->beside + row * hidden,
                                .h_prev = output_before(layer, row),
                                .dy = dy == NULL ? back->zeros : dy,
                                .dh = dh,
                                .dsums = back->of_x + row * layer->width,
                                .dcandidate = of_h + 2 * hidden};
    layer->onednn->row->gru_backward(&one);
    memcpy(of_h, one.dsums, 2 * hidden * sizeof *of_h);
}

static void step_backward(const struct layer *layer, size_t t, const struct back *back)
{
    const size_t batch = layer->batch, hidden = layer->hidden;
    const float *dy = data_or_null(layer->call->dout[Y]);
    const bool nothing_behind = t + 1 == layer->steps && layer->call->dout[HN] == NULL;
#pragma omp parallel for schedule(static) if (batch * hidden > 1024)
    for (size_t b = 0; b < batch; b++) {
        const size_t row = t * batch + b;
        const float *own = dy == NULL ? NULL : dy + row * hidden;
        float *dh = back->dh + b * hidden;
        if (layer->is_lstm)
            lstm_row_backward(layer, row, own, nothing_behind ? NULL : dh, back);
        else
            gru_row_backward(layer, row, own, dh, back);
    }
}

/* The gradient of the last state, or zeros. */
static void back_begin(float *to, const struct tensor *gradient, size_t count)
{
    if (gradient == NULL)
        memset(to, 0, count * sizeof *to);
    else
        memcpy(to, gradient->data, count * sizeof *to);
}

/* Through time, last step first: leaves the sums' gradients, and dh and dc of the state before the first
 * step. A GRU's gates leave in dh what goes by z. */
static enum status walk_back(const struct layer *layer, const struct back *back, struct error *error)
{
    const size_t batch = layer->batch, width = layer->width;
    enum status status = STATUS_OK;
    back_begin(back->dh, layer->call->dout[HN], batch * layer->hidden);
    if (layer->is_lstm)
        back_begin(back->dc, layer->call->dout[CN], batch * layer->hidden);
    for (size_t t = layer->steps; t-- > 0 && status == STATUS_OK;) {
        step_backward(layer, t, back);
        if (t > 0 || layer->call->din[H0] != NULL)
            status = onednn_product(layer->call, 'N', 'N', batch, layer->hidden, width,
                                    back->of_h + t * batch * width, layer->weight[WEIGHT_HH],
                                    layer->is_lstm ? 0 : 1, back->dh, error);
    }
    return status;
}

/* dweight_hh, in two parts, by the outputs before each step: h0, which a GRU adds first, and the others,
 * which lie in y and which an LSTM adds first. */
static enum status back_weight_hh(const struct layer *layer, const struct back *back, float *dweight,
                                  struct error *error)
{
    const size_t batch = layer->batch, width = layer->width;
    enum status status = STATUS_OK;
    for (int part = 0; part < 2 && status == STATUS_OK; part++) {
        const bool of_h0 = (part == 0) != layer->is_lstm;
        const size_t rows = of_h0 ? batch : (layer->steps - 1) * batch;
        if (rows > 0)
            status = onednn_product(layer->call, 'T', 'N', width, layer->hidden, rows,
                                    back->of_h + (of_h0 ? 0 : batch * width), of_h0 ? layer->h0 : layer->y,
                                    (float)part, dweight, error);
        else if (part == 0)
            memset(dweight, 0, width * layer->hidden * sizeof *dweight);
    }
    return status;
}

static void back_biases(const struct layer *layer, const struct back *back)
{
    const size_t rows = layer->steps * layer->batch, width = layer->width;
    const float *summed = NULL;
    for (uint32_t i = BIAS_IH; i <= BIAS_HH; i++) {
        const struct tensor *to = layer->call->din[layer->first_weight + i];
        const float *sums = i == BIAS_IH ? back->of_x : back->of_h;
        if (to == NULL)
            continue;
        if (sums != summed)
            memset(back->bias, 0, width * sizeof *back->bias);
        for (size_t row = 0; row < rows && sums != summed; row++)
            layer->onednn->element->add_to_double(back->bias, sums + row * width, width);
        summed = sums;
        layer->onednn->element->narrow(&(struct elements){.to = to->data, .wide = back->bias}, 0, width);
    }
}

enum status recurrent_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct layer layer = layer_of(backend, call);
    const size_t rows = layer.steps * layer.batch, state_bytes = layer.batch * layer.hidden * sizeof(float);
    struct tensor *const *din = call->din, *const *dweight = din + layer.first_weight;
    struct back back;
    enum status status = back_reserve(&layer, &back, error);
    if (status == STATUS_OK)
        status = walk_back(&layer, &back, error);
    if (status == STATUS_OK && din[X] != NULL)
        status = onednn_product(call, 'N', 'N', rows, layer.inputs, layer.width, back.of_x,
                                layer.weight[WEIGHT_IH], 0, din[X]->data, error);
    if (status == STATUS_OK && dweight[WEIGHT_IH] != NULL)
        status = onednn_product(call, 'T', 'N', layer.width, layer.inputs, rows, back.of_x, layer.x, 0,
                                dweight[WEIGHT_IH]->data, error);
    if (status == STATUS_OK && dweight[WEIGHT_HH] != NULL)
        status = back_weight_hh(&layer, &back, dweight[WEIGHT_HH]->data, error);
    if (status != STATUS_OK)
        return status;
    if (din[H0] != NULL)
        memcpy(din[H0]->data, back.dh, state_bytes);
    if (layer.is_lstm && din[C0] != NULL)
        memcpy(din[C0]->data, back.dc, state_bytes);
    back_biases(&layer, &back);
    return STATUS_OK;
}
