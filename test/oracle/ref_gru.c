/* The oracle's GRU layer: PyTorch's equations, step by step, and back through time in full.
 *
 *     r, z = sigmoid(W_i x_t + b_i + W_h h_{t-1} + b_h)   m = W_hn h_{t-1} + b_hn, rows r, z, n
 *     n = tanh(W_in x_t + b_in + r m)   h_t = (1 - z) n + z h_{t-1}
 *
 * Kept for the backward: saved[0], the gates (steps, batch, 3 hidden), and saved[1], m (steps, batch,
 * hidden). */
#include "test/oracle/ref_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { X, H0, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH };
enum { Y, HN };
enum { GATES, CANDIDATES };

struct gru {
    size_t steps, batch, inputs, hidden;
    const double *x, *h0, *weight_ih, *weight_hh, *bias_ih, *bias_hh;
    double *y, *gates, *candidates;
};

static struct gru gru_of(const struct op_call *call)
{
    const uint32_t *x = call->in[X]->shape.size;
    return (struct gru){.steps = x[0],
                        .batch = x[1],
                        .inputs = x[2],
                        .hidden = call->in[WEIGHT_HH]->shape.size[1],
                        .x = call->in[X]->data,
                        .h0 = ref_doubles(call->in[H0]),
                        .weight_ih = call->in[WEIGHT_IH]->data,
                        .weight_hh = call->in[WEIGHT_HH]->data,
                        .bias_ih = ref_doubles(call->in[BIAS_IH]),
                        .bias_hh = ref_doubles(call->in[BIAS_HH]),
                        .y = call->out[Y]->data,
                        .gates = call->saved[GATES].data,
                        .candidates = call->saved[CANDIDATES].data};
}

/* h (batch, hidden) before a step. */
static const double *before(const struct gru *gru, size_t step)
{
    return step == 0 ? gru->h0 : gru->y + (step - 1) * gru->batch * gru->hidden;
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* Row r of weight (rows, count) times a, plus the bias. */
static double sum_of(const double *weight, const double *a, const double *bias, size_t count, size_t r)
{
    double sum = bias[r];
    for (size_t i = 0; i < count; i++)
        sum += weight[r * count + i] * a[i];
    return sum;
}

/* ---- forward ---- */

static void step_forward(const struct gru *gru, size_t step)
{
    const size_t hidden = gru->hidden;
    assert(gru->bias_ih != NULL && gru->bias_hh != NULL);
    for (size_t b = 0; b < gru->batch; b++) {
        const size_t row = step * gru->batch + b;
        const double *x = gru->x + row * gru->inputs, *h = before(gru, step) + b * hidden;
        for (size_t j = 0; j < hidden; j++) {
            double *gate = gru->gates + row * 3 * hidden + j, of_x[3], of_h[3];
            for (size_t g = 0; g < 3; g++) {
                of_x[g] = sum_of(gru->weight_ih, x, gru->bias_ih, gru->inputs, g * hidden + j);
                of_h[g] = sum_of(gru->weight_hh, h, gru->bias_hh, hidden, g * hidden + j);
            }
            gate[0] = sigmoid(of_x[0] + of_h[0]);
            gate[hidden] = sigmoid(of_x[1] + of_h[1]);
            gate[2 * hidden] = tanh(of_x[2] + gate[0] * of_h[2]);
            gru->candidates[row * hidden + j] = of_h[2];
            gru->y[row * hidden + j] = (1 - gate[hidden]) * gate[2 * hidden] + gate[hidden] * h[j];
        }
    }
}

static enum status make_outputs(struct op_call *call, struct error *error)
{
    const struct shape candidates = call->out[Y]->shape;
    struct shape gates = candidates;
    gates.size[2] = call->in[WEIGHT_HH]->shape.size[0];
    enum status status = STATUS_OK;
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = ref_make(call, call->out[i], error);
    if (status == STATUS_OK)
        status = tensor_new(&call->saved[GATES], call->arena, gates, DTYPE_F64, NULL, error);
    if (status == STATUS_OK)
        status = tensor_new(&call->saved[CANDIDATES], call->arena, candidates, DTYPE_F64, NULL, error);
    return status;
}

enum status ref_gru_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = make_outputs(call, error);
    if (status != STATUS_OK)
        return status;
    const struct gru gru = gru_of(call);
    for (size_t step = 0; step < gru.steps; step++)
        step_forward(&gru, step);
    memcpy(call->out[HN]->data, before(&gru, gru.steps), gru.batch * gru.hidden * sizeof(double));
    for (int i = 0; i < 2 && !call->keep; i++) {
        arena_release(call->arena, call->saved[i].data);
        call->saved[i] = (struct tensor){0};
    }
    return STATUS_OK;
}

/* ---- backward ---- */

/* By dh (batch, hidden) after the step: the gradients of x's sums and of h's sums (batch, 3 hidden), and in
 * dh what goes to the state before the step by z. */
static void step_backward(const struct gru *gru, size_t step, double *dh, double *of_x, double *of_h)
{
    const size_t hidden = gru->hidden;
    for (size_t b = 0; b < gru->batch; b++)
        for (size_t j = 0; j < hidden; j++) {
            const size_t row = step * gru->batch + b, at = b * hidden + j, to = b * 3 * hidden + j;
            const double *gate = gru->gates + row * 3 * hidden + j;
            const double r = gate[0], z = gate[hidden], n = gate[2 * hidden];
            const double dn = dh[at] * (1 - z) * (1 - n * n);
            of_x[to] = of_h[to] = dn * gru->candidates[row * hidden + j] * r * (1 - r);
            of_x[to + hidden] = of_h[to + hidden] = dh[at] * (before(gru, step)[at] - n) * z * (1 - z);
            of_x[to + 2 * hidden] = dn;
            of_h[to + 2 * hidden] = dn * r;
            dh[at] *= z;
        }
}

/* Fills the sums' gradients (steps, batch, 3 hidden), and leaves in dh (batch, hidden) the gradient of h0. */
static void through_time(const struct op_call *call, const struct gru *gru, double *dh, double *of_x,
                         double *of_h)
{
    const size_t state = gru->batch * gru->hidden;
    const double *dy = ref_doubles(call->dout[Y]);
    ref_zero(dh, state);
    if (call->dout[HN] != NULL)
        memcpy(dh, call->dout[HN]->data, state * sizeof *dh);
    for (size_t step = gru->steps; step-- > 0;) {
        for (size_t i = 0; dy != NULL && i < state; i++)
            dh[i] += dy[step * state + i];
        step_backward(gru, step, dh, of_x + step * 3 * state, of_h + step * 3 * state);
        ref_add_product(dh, of_h + step * 3 * state, false, gru->weight_hh, gru->batch, 3 * gru->hidden,
                        gru->hidden);
    }
}

/* The gradients of x, weights and biases. */
static void input_gradients(const struct op_call *call, const struct gru *gru, const double *of_x,
                            const double *of_h)
{
    const size_t rows = gru->steps * gru->batch, gates = 3 * gru->hidden;
    double *dx = ref_doubles(call->din[X]), *dweight_ih = ref_doubles(call->din[WEIGHT_IH]);
    double *dweight_hh = ref_doubles(call->din[WEIGHT_HH]);
    if (dx != NULL) {
        ref_zero(dx, rows * gru->inputs);
        ref_add_product(dx, of_x, false, gru->weight_ih, rows, gates, gru->inputs);
    }
    if (dweight_ih != NULL) {
        ref_zero(dweight_ih, gates * gru->inputs);
        ref_add_product(dweight_ih, of_x, true, gru->x, gates, rows, gru->inputs);
    }
    if (dweight_hh != NULL)
        ref_zero(dweight_hh, gates * gru->hidden);
    for (size_t step = 0; dweight_hh != NULL && step < gru->steps; step++)
        ref_add_product(dweight_hh, of_h + step * gru->batch * gates, true, before(gru, step), gates,
                        gru->batch, gru->hidden);
    if (call->din[BIAS_IH] != NULL)
        ref_column_sums(call->din[BIAS_IH]->data, of_x, rows, gates);
    if (call->din[BIAS_HH] != NULL)
        ref_column_sums(call->din[BIAS_HH]->data, of_h, rows, gates);
}

enum status ref_gru_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct gru gru = gru_of(call);
    const size_t state = gru.batch * gru.hidden, sums = gru.steps * 3 * state;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK)
        return status;
    double *of_x = ref_scratch(call, 2 * sums + state, error);
    if (of_x == NULL)
        return STATUS_NO_MEMORY;
    double *of_h = of_x + sums, *dh = of_h + sums;
    through_time(call, &gru, dh, of_x, of_h);
    input_gradients(call, &gru, of_x, of_h);
    if (call->din[H0] != NULL)
        memcpy(call->din[H0]->data, dh, state * sizeof *dh);
    arena_release(call->arena, of_x);
    return STATUS_OK;
}
