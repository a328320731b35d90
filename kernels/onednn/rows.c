/* Operations that go by rows: log-softmax, log-probabilities, embeddings. */
#include "kernels/onednn/onednn.h"

#include "kernels/op_check.h"

#include <assert.h>
#include <string.h>

static float *floats(const struct tensor *tensor)
{
    return tensor->data;
}

static size_t last_size(const struct tensor *tensor)
{
    return tensor->shape.size[tensor->shape.rank - 1];
}

/* ---- log-softmax ---- */

static enum status log_softmax_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct row_lanes *lanes = onednn_of(backend)->row;
    const size_t width = last_size(call->in[0]), rows = shape_elements(&call->in[0]->shape) / width;
    const float *x = floats(call->in[0]);
    float *y = floats(call->out[0]);
#pragma omp parallel for schedule(static) if (rows * width > LOOP_PIECE)
    for (size_t row = 0; row < rows; row++)
        lanes->log_softmax(y + row * width, x + row * width, width);
    return STATUS_OK;
}

static enum status log_softmax_backward_body(struct backend *backend, struct op_call *call,
                                             struct error *error)
{
    (void)error;
    const struct row_lanes *lanes = onednn_of(backend)->row;
    const size_t width = last_size(call->out[0]), rows = shape_elements(&call->out[0]->shape) / width;
    const float *y = floats(call->out[0]), *dy = floats(call->dout[0]);
    float *dx = floats(call->din[0]);
#pragma omp parallel for schedule(static) if (rows * width > LOOP_PIECE)
    for (size_t row = 0; row < rows; row++)
        lanes->log_softmax_backward(dx + row * width, y + row * width, dy + row * width, width);
    return STATUS_OK;
}

enum status onednn_log_softmax_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_FORWARD, NULL, NULL, log_softmax_body, error);
}

enum status onednn_log_softmax_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, NULL, NULL, log_softmax_backward_body, error);
}

/* ---- log-probability of what was picked ---- */

static enum status log_probability_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t width = last_size(call->in[0]), rows = call->in[0]->shape.size[0];
    enum status status = op_check_indices(call, 1, (uint32_t)width, error);
    const int32_t *action = call->in[1]->data;
    const float *x = floats(call->in[0]);
    float *y = floats(call->out[0]);
    for (size_t row = 0; row < rows && status == STATUS_OK; row++)
        y[row] = x[row * width + (size_t)action[row]];
    return status;
}

static enum status log_probability_backward_body(struct backend *backend, struct op_call *call,
                                                 struct error *error)
{
    (void)backend;
    (void)error;
    const size_t width = last_size(call->in[0]), rows = call->in[0]->shape.size[0];
    const int32_t *action = call->in[1]->data;
    const float *dy = floats(call->dout[0]);
    float *dx = floats(call->din[0]);
    memset(dx, 0, rows * width * sizeof *dx);
    for (size_t row = 0; row < rows; row++)
        dx[row * width + (size_t)action[row]] = dy[row];
    return STATUS_OK;
}

enum status onednn_log_probability_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_FORWARD, NULL, NULL, log_probability_body, error);
}

enum status onednn_log_probability_backward(struct backend *backend, struct op_call *call,
                                            struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, NULL, NULL, log_probability_backward_body, error);
}

/* ---- embedding ---- */

static enum status embedding_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t width = call->in[1]->shape.size[1], count = shape_elements(&call->in[0]->shape);
    enum status status = op_check_indices(call, 0, call->in[1]->shape.size[0], error);
    if (status != STATUS_OK)
        return status;
    const int32_t *index = call->in[0]->data;
    const float *weight = floats(call->in[1]);
    float *y = floats(call->out[0]);
#pragma omp parallel for schedule(static) if (count * width > LOOP_PIECE)
    for (size_t i = 0; i < count; i++)
        memcpy(y + i * width, weight + (size_t)index[i] * width, width * sizeof *y);
    return STATUS_OK;
}

/* Each thread sums the tokens of its own range of the vocabulary, in their order. */
static enum status embedding_backward_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const size_t vocabulary = call->in[1]->shape.size[0], width = call->in[1]->shape.size[1];
    const size_t count = shape_elements(&call->in[0]->shape);
    const size_t parts = (size_t)onednn_of(backend)->threads;
    const int32_t *index = call->in[0]->data;
    const float *dy = floats(call->dout[0]);
    float *dweight = floats(call->din[1]);
#pragma omp parallel for schedule(static) if (vocabulary * width > LOOP_PIECE)
    for (size_t part = 0; part < parts; part++) {
        const size_t first = vocabulary * part / parts, end = vocabulary * (part + 1) / parts;
        memset(dweight + first * width, 0, (end - first) * width * sizeof *dweight);
        for (size_t i = 0; i < count; i++)
            if ((size_t)index[i] >= first && (size_t)index[i] < end)
                element->accumulate(dweight + (size_t)index[i] * width, dy + i * width, width);
    }
    return STATUS_OK;
}

enum status onednn_embedding_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_FORWARD, NULL, NULL, embedding_body, error);
}

enum status onednn_embedding_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, NULL, NULL, embedding_backward_body, error);
}
