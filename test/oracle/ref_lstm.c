/* The oracle's LSTM layer: PyTorch's equations, step by step, and back through time in full.
 *
 *     i, f, o = sigmoid(z)   g = tanh(z)   z = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh, rows i, f, g, o
 *     c_t = f c_{t-1} + i g   h_t = o tanh(c_t)
 *
 * Kept for the backward: saved[0], the gates (steps, batch, 4 hidden), and saved[1], the cells (steps, batch,
 * hidden). */
#include "test/oracle/ref_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { X, H0, C0, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH };
enum { Y, HN, CN };
enum { GATES, CELLS };

struct lstm {
    size_t steps, batch, inputs, hidden;
    const double *x, *h0, *c0, *weight_ih, *weight_hh, *bias_ih, *bias_hh;
    double *y, *gates, *cells;
};

static struct lstm lstm_of(const struct op_call *call)
{
    const uint32_t *x = call->in[X]->shape.size;
    return (struct lstm){.steps = x[0],
                         .batch = x[1],
                         .inputs = x[2],
                         .hidden = call->in[WEIGHT_HH]->shape.size[1],
                         .x = call->in[X]->data,
                         .h0 = ref_doubles(call->in[H0]),
                         .c0 = ref_doubles(call->in[C0]),
                         .weight_ih = call->in[WEIGHT_IH]->data,
                         .weight_hh = call->in[WEIGHT_HH]->data,
                         .bias_ih = ref_doubles(call->in[BIAS_IH]),
                         .bias_hh = ref_doubles(call->in[BIAS_HH]),
                         .y = call->out[Y]->data,
                         .gates = call->saved[GATES].data,
                         .cells = call->saved[CELLS].data};
}

/* The state (batch, hidden) before a step, in `all` (steps, batch, hidden) or before the first. */
static const double *before(const struct lstm *lstm, const double *all, const double *first, size_t step)
{
    return step == 0 ? first : all + (step - 1) * lstm->batch * lstm->hidden;
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

static double dot(const double *a, const double *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* z (4 hidden) of one row of the batch at one step. */
static void preactivations(const struct lstm *lstm, const double *x, const double *h, double *z)
{
    assert(lstm->bias_ih != NULL && lstm->bias_hh != NULL);
    for (size_t r = 0; r < 4 * lstm->hidden; r++) {
        double sum = lstm->bias_ih[r] + lstm->bias_hh[r];
        sum += dot(lstm->weight_ih + r * lstm->inputs, x, lstm->inputs);
        sum += dot(lstm->weight_hh + r * lstm->hidden, h, lstm->hidden);
        z[r] = sum;
    }
}

static void step_forward(const struct lstm *lstm, size_t step)
{
    const size_t hidden = lstm->hidden;
    const double *h = before(lstm, lstm->y, lstm->h0, step);
    const double *c = before(lstm, lstm->cells, lstm->c0, step);
    for (size_t b = 0; b < lstm->batch; b++) {
        const size_t row = step * lstm->batch + b;
        double *i = lstm->gates + row * 4 * hidden, *f = i + hidden, *g = f + hidden, *o = g + hidden;
        preactivations(lstm, lstm->x + row * lstm->inputs, h + b * hidden, i);
        for (size_t j = 0; j < hidden; j++) {
            i[j] = sigmoid(i[j]);
            f[j] = sigmoid(f[j]);
            g[j] = tanh(g[j]);
            o[j] = sigmoid(o[j]);
            const double cell = i[j] * g[j] + f[j] * c[b * hidden + j];
            lstm->cells[row * hidden + j] = cell;
            lstm->y[row * hidden + j] = o[j] * tanh(cell);
        }
    }
}

static enum status make_outputs(struct op_call *call, struct error *error)
{
    struct shape cells = call->out[Y]->shape, gates = cells;
    gates.size[2] = call->in[WEIGHT_HH]->shape.size[0];
    enum status status = STATUS_OK;
    for (int i = 0; i < 3 && status == STATUS_OK; i++)
        status = ref_make(call, call->out[i], error);
    if (status == STATUS_OK)
        status = tensor_new(&call->saved[GATES], call->arena, gates, DTYPE_F64, NULL, error);
    if (status == STATUS_OK)
        status = tensor_new(&call->saved[CELLS], call->arena, cells, DTYPE_F64, NULL, error);
    return status;
}

enum status ref_lstm_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = make_outputs(call, error);
    if (status != STATUS_OK)
        return status;
    const struct lstm lstm = lstm_of(call);
    for (size_t step = 0; step < lstm.steps; step++)
        step_forward(&lstm, step);
    const size_t state = lstm.batch * lstm.hidden;
    memcpy(call->out[HN]->data, before(&lstm, lstm.y, NULL, lstm.steps), state * sizeof(double));
    memcpy(call->out[CN]->data, before(&lstm, lstm.cells, NULL, lstm.steps), state * sizeof(double));
    for (int i = 0; i < 2 && !call->keep; i++) {
        arena_release(call->arena, call->saved[i].data);
        call->saved[i] = (struct tensor){0};
    }
    return STATUS_OK;
}

/* From dh and dc (batch, hidden) after the step: dz (batch, 4 hidden), and in dc what it is before the step.
 */
static void cell_backward(const struct lstm *lstm, size_t step, const double *dh, double *dc, double *dz)
{
    const size_t hidden = lstm->hidden;
    const double *c = before(lstm, lstm->cells, lstm->c0, step);
    for (size_t b = 0; b < lstm->batch; b++)
        for (size_t j = 0; j < hidden; j++) {
            const size_t row = step * lstm->batch + b, at = b * hidden + j;
            const double *gate = lstm->gates + row * 4 * hidden + j;
            const double i = gate[0], f = gate[hidden], g = gate[2 * hidden], o = gate[3 * hidden];
            const double tanh_c = tanh(lstm->cells[row * hidden + j]);
            double *to = dz + b * 4 * hidden + j;
            dc[at] += dh[at] * o * (1 - tanh_c * tanh_c);
            to[0] = dc[at] * g * i * (1 - i);
            to[hidden] = dc[at] * c[at] * f * (1 - f);
            to[2 * hidden] = dc[at] * i * (1 - g * g);
            to[3 * hidden] = dh[at] * tanh_c * o * (1 - o);
            dc[at] *= f;
        }
}

/* The gradient of the last state, or zero. */
static void begin_state(const struct tensor *gradient, double *state, size_t count)
{
    if (gradient != NULL)
        memcpy(state, gradient->data, count * sizeof *state);
    else
        ref_zero(state, count);
}

/* Fills dz (steps, batch, 4 hidden), and leaves in dh and dc (batch, hidden) the gradients of h0 and c0. */
static void through_time(const struct op_call *call, const struct lstm *lstm, double *dz, double *dh,
                         double *dc)
{
    const size_t state = lstm->batch * lstm->hidden;
    const double *dy = ref_doubles(call->dout[Y]);
    begin_state(call->dout[HN], dh, state);
    begin_state(call->dout[CN], dc, state);
    for (size_t step = lstm->steps; step-- > 0;) {
        for (size_t i = 0; dy != NULL && i < state; i++)
            dh[i] += dy[step * state + i];
        cell_backward(lstm, step, dh, dc, dz + step * 4 * state);
        ref_zero(dh, state);
        ref_add_product(dh, dz + step * 4 * state, false, lstm->weight_hh, lstm->batch, 4 * lstm->hidden,
                        lstm->hidden);
    }
}

/* The gradients of x, weights and biases, from dz. */
static void input_gradients(const struct op_call *call, const struct lstm *lstm, const double *dz)
{
    const size_t rows = lstm->steps * lstm->batch, gates = 4 * lstm->hidden;
    double *dx = ref_doubles(call->din[X]), *dweight_ih = ref_doubles(call->din[WEIGHT_IH]);
    double *dweight_hh = ref_doubles(call->din[WEIGHT_HH]);
    if (dx != NULL) {
        ref_zero(dx, rows * lstm->inputs);
        ref_add_product(dx, dz, false, lstm->weight_ih, rows, gates, lstm->inputs);
    }
    if (dweight_ih != NULL) {
        ref_zero(dweight_ih, gates * lstm->inputs);
        ref_add_product(dweight_ih, dz, true, lstm->x, gates, rows, lstm->inputs);
    }
    if (dweight_hh != NULL)
        ref_zero(dweight_hh, gates * lstm->hidden);
    for (size_t step = 0; dweight_hh != NULL && step < lstm->steps; step++) {
        const double *h = before(lstm, lstm->y, lstm->h0, step);
        ref_add_product(dweight_hh, dz + step * lstm->batch * gates, true, h, gates, lstm->batch,
                        lstm->hidden);
    }
    for (int i = BIAS_IH; i <= BIAS_HH; i++)
        if (call->din[i] != NULL)
            ref_column_sums(call->din[i]->data, dz, rows, gates);
}

enum status ref_lstm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct lstm lstm = lstm_of(call);
    const size_t state = lstm.batch * lstm.hidden;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK)
        return status;
    double *dz = ref_scratch(call, lstm.steps * 4 * state, error);
    double *dh = dz != NULL ? ref_scratch(call, 2 * state, error) : NULL;
    if (dh == NULL)
        return STATUS_NO_MEMORY;
    double *dc = dh + state;
    through_time(call, &lstm, dz, dh, dc);
    input_gradients(call, &lstm, dz);
    if (call->din[H0] != NULL)
        memcpy(call->din[H0]->data, dh, state * sizeof *dh);
    if (call->din[C0] != NULL)
        memcpy(call->din[C0]->data, dc, state * sizeof *dc);
    arena_release(call->arena, dh);
    arena_release(call->arena, dz);
    return STATUS_OK;
}
