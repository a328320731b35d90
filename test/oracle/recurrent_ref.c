/* LSTM, GRU and the linear layer by their equations. */
#include "test/oracle/recurrent_ref.h"

#include <math.h>
#include <string.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Row n of weight and bias, times v. */
static double affine(const double *weight, const double *bias, const double *v, uint32_t columns, uint32_t n)
{
    double sum = bias[n];
    for (uint32_t k = 0; k < columns; k++)
        sum += weight[(size_t)n * columns + k] * v[k];
    return sum;
}

/* One cell: from x and its state (h, then c) to the next one. */
static void cell(const struct recurrent_shape *shape, const double *parameters,
                 const struct recurrent_parameter of[4], const double *x, uint32_t inputs, double *state)
{
    const uint32_t hidden = shape->hidden, gates = shape->cell == RECURRENT_LSTM ? 4 : 3;
    double from_x[4 * RECURRENT_HIDDEN_MAX], from_h[4 * RECURRENT_HIDDEN_MAX];
    for (uint32_t n = 0; n < gates * hidden; n++) {
        from_x[n] = affine(parameters + of[0].offset, parameters + of[2].offset, x, inputs, n);
        from_h[n] = affine(parameters + of[1].offset, parameters + of[3].offset, state, hidden, n);
    }
    for (uint32_t j = 0; j < hidden; j++) {
        const double first = sigmoid(from_x[j] + from_h[j]);
        const double second = sigmoid(from_x[hidden + j] + from_h[hidden + j]);
        const double xn = from_x[2 * hidden + j], hn = from_h[2 * hidden + j];
        if (shape->cell == RECURRENT_GRU) {
            const double n = tanh(xn + first * hn);
            state[j] = (1 - second) * n + second * state[j];
            continue;
        }
        double *c = &state[hidden + j];
        *c = second * *c + first * tanh(xn + hn);
        state[j] = sigmoid(from_x[3 * hidden + j] + from_h[3 * hidden + j]) * tanh(*c);
    }
}

static void linear(const struct recurrent_shape *shape, const double *parameters,
                   const struct recurrent_parameter of[2], const double *x, double *y)
{
    for (uint32_t n = 0; n < shape->hidden; n++)
        y[n] = affine(parameters + of[0].offset, parameters + of[1].offset, x, shape->inputs, n);
}

void recurrent_ref_forward(const struct recurrent_shape *shape, const double *parameters,
                           const struct recurrent_rows *rows, const double *x, double *state, double *y)
{
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    const size_t all = recurrent_state_floats(shape), own = all / shape->layers;
    recurrent_parameters(shape, list);
    for (uint32_t row = 0; row < rows->first[rows->steps]; row++) {
        double *at = state + rows->slot[row] * all;
        const double *read = x + (size_t)row * shape->inputs;
        if (shape->cell == RECURRENT_LINEAR) {
            linear(shape, parameters, list, read, y + (size_t)row * shape->hidden);
            continue;
        }
        if (rows->starts != NULL && rows->starts[row] != 0)
            memset(at, 0, all * sizeof *at);
        for (uint32_t l = 0; l < shape->layers; l++, at += own) {
            cell(shape, parameters, list + 4 * l, read, l == 0 ? shape->inputs : shape->hidden, at);
            read = at;
        }
        memcpy(y + (size_t)row * shape->hidden, read, shape->hidden * sizeof *y);
    }
}
