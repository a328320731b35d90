/* One layer of a GRU: the library computes the products, and loops of our own the gates.
 *
 * Forward: one large product for the inputs of all steps; then, step by step, the product of the previous
 * output and the fused gates. Backward: the gates' gradients step by step, then one product each for the
 * gradients of weights and inputs. The sums of x and those of h have gradients of their own, because r stands
 * before n's sum of h alone.
 *
 * Saved: the gates (steps, batch, 3 hidden) and n's sums of h (steps, batch, hidden). */
#include "kernels/onednn/onednn.h"

#include <string.h>

enum { X, H0, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH };
enum { SAVED_GATES, SAVED_CANDIDATES };

struct gru {
    struct onednn *onednn;
    const struct op_call *call;
    size_t steps, batch, inputs, hidden;
    const float *x, *h0, *weight_ih, *weight_hh;
    float *y;                  // (steps, batch, hidden)
    float *gates, *candidates; // (steps, batch, 3 hidden), (steps, batch, hidden)
};

static struct gru gru_of(struct backend *backend, const struct op_call *call)
{
    const struct shape *x = &call->in[X]->shape;
    return (struct gru){
        .onednn = onednn_of(backend),
        .call = call,
        .steps = x->size[0],
        .batch = x->size[1],
        .inputs = x->size[2],
        .hidden = call->in[WEIGHT_HH]->shape.size[1],
        .x = call->in[X]->data,
        .h0 = call->in[H0]->data,
        .weight_ih = call->in[WEIGHT_IH]->data,
        .weight_hh = call->in[WEIGHT_HH]->data,
        .y = call->out[0]->data,
        .gates = call->saved[SAVED_GATES].data,
        .candidates = call->saved[SAVED_CANDIDATES].data,
    };
}

/* The output before step t. */
static const float *output_before(const struct gru *gru, size_t t)
{
    return t == 0 ? gru->h0 : gru->y + (t - 1) * gru->batch * gru->hidden;
}

/* ---- forward ---- */

/* `sums` (batch, 3 hidden): those of h. */
static void gates_forward(const struct gru *gru, size_t t, const float *sums)
{
    const size_t batch = gru->batch, hidden = gru->hidden;
    const float *bias_ih = gru->call->in[BIAS_IH]->data, *bias_hh = gru->call->in[BIAS_HH]->data;
    const float *before = output_before(gru, t);
#pragma omp parallel for schedule(static) if (batch * hidden > 1024)
    for (size_t b = 0; b < batch; b++) {
        const size_t row = t * batch + b;
        const struct row_gru one = {.hidden = hidden,
                                    .gates = gru->gates + row * 3 * hidden,
                                    .candidate = gru->candidates + row * hidden,
                                    .bias = {bias_ih, bias_hh},
                                    .h_prev = before + b * hidden,
                                    .h = gru->y + row * hidden};
        const float *of_h = sums + b * 3 * hidden;
        for (size_t i = 0; i < 2 * hidden; i++)
            one.gates[i] += of_h[i];
        memcpy(one.candidate, of_h + 2 * hidden, hidden * sizeof *of_h);
        gru->onednn->row->gru_forward(&one);
    }
}

static enum status walk_forward(const struct gru *gru, struct error *error)
{
    const size_t hidden = gru->hidden;
    enum status status = scratch_reserve(&gru->onednn->terms, gru->batch * 3 * hidden * sizeof(float), error);
    for (size_t t = 0; t < gru->steps && status == STATUS_OK; t++) {
        float *sums = gru->onednn->terms.data;
        status = onednn_product(gru->call, 'N', 'T', gru->batch, 3 * hidden, hidden, output_before(gru, t),
                                gru->weight_hh, 0, sums, error);
        if (status == STATUS_OK)
            gates_forward(gru, t, sums);
    }
    return status;
}

enum status gru_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct tensor gates = {0}, candidates = {0};
    struct gru gru = gru_of(backend, call);
    const size_t rows = gru.steps * gru.batch, hidden = gru.hidden;
    enum status status = onednn_take(call, &gates, NULL, rows * 3 * hidden * sizeof(float), error);
    if (status == STATUS_OK)
        status = onednn_take(call, &candidates, NULL, rows * hidden * sizeof(float), error);
    if (status != STATUS_OK)
        return status;
    gru.gates = gates.data;
    gru.candidates = candidates.data;
    status = onednn_product(gru.call, 'N', 'T', rows, 3 * hidden, gru.inputs, gru.x, gru.weight_ih, 0,
                            gru.gates, error);
    if (status == STATUS_OK)
        status = walk_forward(&gru, error);
    if (status != STATUS_OK)
        return status;
    memcpy(call->out[1]->data, output_before(&gru, gru.steps), gru.batch * hidden * sizeof(float));
    if (call->keep) {
        call->saved[SAVED_GATES] = gates;
        call->saved[SAVED_CANDIDATES] = candidates;
        return STATUS_OK;
    }
    arena_release(call->arena, candidates.data);
    arena_release(call->arena, gates.data);
    return STATUS_OK;
}

/* ---- backward ---- */

/* Scratch of one backward. */
struct gru_back {
    float *of_x, *of_h; // (steps, batch, 3 hidden): of the sums of x and of h
    float *dh;          // (batch, hidden): of the output before the step
    float *zeros;       // (hidden)
    double *bias;       // (3 hidden)
};

static enum status back_reserve(const struct gru *gru, struct gru_back *back, struct error *error)
{
    const size_t state = gru->batch * gru->hidden, sums = gru->steps * 3 * state;
    const size_t doubles = 3 * gru->hidden, floats = 2 * sums + state + gru->hidden;
    enum status status =
        scratch_reserve(&gru->onednn->terms, doubles * sizeof(double) + floats * sizeof(float), error);
    if (status != STATUS_OK)
        return status;
    back->bias = gru->onednn->terms.data;
    void *behind = back->bias + doubles;
    back->of_x = behind;
    back->of_h = back->of_x + sums;
    back->dh = back->of_h + sums;
    back->zeros = back->dh + state;
    memset(back->zeros, 0, gru->hidden * sizeof *back->zeros);
    return STATUS_OK;
}

static void gates_backward(const struct gru *gru, size_t t, const struct gru_back *back)
{
    const size_t batch = gru->batch, hidden = gru->hidden;
    const float *dy = gru->call->dout[0] != NULL ? gru->call->dout[0]->data : NULL;
    const float *before = output_before(gru, t);
#pragma omp parallel for schedule(static) if (batch * hidden > 1024)
    for (size_t b = 0; b < batch; b++) {
        const size_t row = t * batch + b;
        float *of_h = back->of_h + row * 3 * hidden;
        const struct row_gru one = {.hidden = hidden,
                                    .gates = gru->gates + row * 3 * hidden,
                                    .candidate = gru->candidates + row * hidden,
                                    .h_prev = before + b * hidden,
                                    .dy = dy == NULL ? back->zeros : dy + row * hidden,
                                    .dh = back->dh + b * hidden,
                                    .dsums = back->of_x + row * 3 * hidden,
                                    .dcandidate = of_h + 2 * hidden};
        gru->onednn->row->gru_backward(&one);
        memcpy(of_h, one.dsums, 2 * hidden * sizeof *of_h);
    }
}

/* Through time, last step first: leaves the sums' gradients, and dh of the state before the first step. */
static enum status walk_back(const struct gru *gru, const struct gru_back *back, struct error *error)
{
    const size_t state = gru->batch * gru->hidden;
    const struct tensor *dhn = gru->call->dout[1];
    enum status status = STATUS_OK;
    if (dhn == NULL)
        memset(back->dh, 0, state * sizeof(float));
    else
        memcpy(back->dh, dhn->data, state * sizeof(float));
    for (size_t t = gru->steps; t-- > 0 && status == STATUS_OK;) {
        gates_backward(gru, t, back);
        if (t > 0 || gru->call->din[H0] != NULL)
            status = onednn_product(gru->call, 'N', 'N', gru->batch, gru->hidden, 3 * gru->hidden,
                                    back->of_h + t * 3 * state, gru->weight_hh, 1, back->dh, error);
    }
    return status;
}

/* dweight_hh: the outputs before each step, which are y but for the first. */
static enum status back_weight_hh(const struct gru *gru, const struct gru_back *back, float *dweight,
                                  struct error *error)
{
    const size_t hidden = gru->hidden, state = gru->batch * hidden;
    enum status status = onednn_product(gru->call, 'T', 'N', 3 * hidden, hidden, gru->batch, back->of_h,
                                        gru->h0, 0, dweight, error);
    if (status == STATUS_OK && gru->steps > 1)
        status = onednn_product(gru->call, 'T', 'N', 3 * hidden, hidden, (gru->steps - 1) * gru->batch,
                                back->of_h + 3 * state, gru->y, 1, dweight, error);
    return status;
}

static void back_bias(const struct gru *gru, const struct gru_back *back, const float *sums,
                      struct tensor *to)
{
    const size_t rows = gru->steps * gru->batch, columns = 3 * gru->hidden;
    if (to == NULL)
        return;
    memset(back->bias, 0, columns * sizeof *back->bias);
    for (size_t row = 0; row < rows; row++)
        gru->onednn->element->add_to_double(back->bias, sums + row * columns, columns);
    gru->onednn->element->narrow(&(struct elements){.to = to->data, .wide = back->bias}, 0, columns);
}

enum status gru_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct gru gru = gru_of(backend, call);
    const size_t rows = gru.steps * gru.batch, hidden = gru.hidden;
    struct tensor *const *din = call->din;
    struct gru_back back;
    enum status status = back_reserve(&gru, &back, error);
    if (status == STATUS_OK)
        status = walk_back(&gru, &back, error);
    if (status == STATUS_OK && din[X] != NULL)
        status = onednn_product(gru.call, 'N', 'N', rows, gru.inputs, 3 * hidden, back.of_x, gru.weight_ih, 0,
                                din[X]->data, error);
    if (status == STATUS_OK && din[WEIGHT_IH] != NULL)
        status = onednn_product(gru.call, 'T', 'N', 3 * hidden, gru.inputs, rows, back.of_x, gru.x, 0,
                                din[WEIGHT_IH]->data, error);
    if (status == STATUS_OK && din[WEIGHT_HH] != NULL)
        status = back_weight_hh(&gru, &back, din[WEIGHT_HH]->data, error);
    if (status != STATUS_OK)
        return status;
    if (din[H0] != NULL)
        memcpy(din[H0]->data, back.dh, gru.batch * hidden * sizeof(float));
    back_bias(&gru, &back, back.of_x, din[BIAS_IH]);
    back_bias(&gru, &back, back.of_h, din[BIAS_HH]);
    return STATUS_OK;
}
