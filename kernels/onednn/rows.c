/* Operations that work row by row: log-softmax, log-probabilities, embeddings. */
#include "kernels/onednn/onednn.h"

#include <assert.h>
#include <string.h>

static size_t last_size(const struct tensor *tensor)
{
    return tensor->shape.size[tensor->shape.rank - 1];
}

/* ---- log-softmax ---- */

enum status log_softmax_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct row_lanes *lanes = onednn_of(backend)->row;
    const size_t width = last_size(call->in[0]), rows = shape_elements(&call->in[0]->shape) / width;
    const float *x = call->in[0]->data;
    float *y = call->out[0]->data;
#pragma omp parallel for schedule(static) if (rows * width > LOOP_PIECE)
    for (size_t row = 0; row < rows; row++)
        lanes->log_softmax(y + row * width, x + row * width, width);
    return STATUS_OK;
}

enum status log_softmax_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct row_lanes *lanes = onednn_of(backend)->row;
    const size_t width = last_size(call->out[0]), rows = shape_elements(&call->out[0]->shape) / width;
    const float *y = call->out[0]->data, *dy = call->dout[0]->data;
    float *dx = call->din[0]->data;
#pragma omp parallel for schedule(static) if (rows * width > LOOP_PIECE)
    for (size_t row = 0; row < rows; row++)
        lanes->log_softmax_backward(dx + row * width, y + row * width, dy + row * width, width);
    return STATUS_OK;
}

/* ---- log-probability of what was picked ---- */

enum status log_probability_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t width = last_size(call->in[0]), rows = call->in[0]->shape.size[0];
    enum status status = op_check_indices(call, 1, (uint32_t)width, error);
    const int32_t *action = call->in[1]->data;
    const float *x = call->in[0]->data;
    float *y = call->out[0]->data;
    for (size_t row = 0; row < rows && status == STATUS_OK; row++)
        y[row] = x[row * width + (size_t)action[row]];
    return status;
}

enum status log_probability_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    (void)error;
    const size_t width = last_size(call->in[0]), rows = call->in[0]->shape.size[0];
    const int32_t *action = call->in[1]->data;
    const float *dy = call->dout[0]->data;
    float *dx = call->din[0]->data;
    memset(dx, 0, rows * width * sizeof *dx);
    for (size_t row = 0; row < rows; row++)
        dx[row * width + (size_t)action[row]] = dy[row];
    return STATUS_OK;
}

/* ---- embedding ---- */

enum status embedding_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t width = call->in[1]->shape.size[1], count = shape_elements(&call->in[0]->shape);
    enum status status = op_check_indices(call, 0, call->in[1]->shape.size[0], error);
    if (status != STATUS_OK)
        return status;
    const int32_t *index = call->in[0]->data;
    const float *weight = call->in[1]->data;
    float *y = call->out[0]->data;
#pragma omp parallel for schedule(static) if (count * width > LOOP_PIECE)
    for (size_t i = 0; i < count; i++)
        memcpy(y + i * width, weight + (size_t)index[i] * width, width * sizeof *y);
    return STATUS_OK;
}

/* Each thread sums the tokens of its own range of the vocabulary, in their order. */
enum status embedding_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const size_t vocabulary = call->in[1]->shape.size[0], width = call->in[1]->shape.size[1];
    const size_t count = shape_elements(&call->in[0]->shape);
    const size_t parts = (size_t)onednn_of(backend)->threads;
    const int32_t *index = call->in[0]->data;
    const float *dy = call->dout[0]->data;
    float *dweight = call->din[1]->data;
#pragma omp parallel for schedule(static) if (vocabulary * width > LOOP_PIECE)
    for (size_t part = 0; part < parts; part++) {
        const size_t first = vocabulary * part / parts, end = vocabulary * (part + 1) / parts;
        memset(dweight + first * width, 0, (end - first) * width * sizeof *dweight);
        for (size_t i = 0; i < count; i++)
            if ((size_t)index[i] >= first && (size_t)index[i] < end)
                element->accumulate(
                    &(struct elements){.to = dweight + (size_t)index[i] * width, .a = dy + i * width}, 0,
                    width);
    }
    return STATUS_OK;
}
