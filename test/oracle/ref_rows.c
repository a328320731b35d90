/* The oracle's log-softmax over rows, and the log-probabilities picked from it. */
#include "test/oracle/ref_internal.h"

#include <math.h>

/* log sum_j exp x_j, from the largest on down, of `count` elements that lie `stride` apart. */
double ref_log_sum_exp(const double *x, size_t count, size_t stride)
{
    double highest = x[0];
    for (size_t j = 1; j < count; j++)
        highest = fmax(highest, x[j * stride]);
    double total = exp(x[0] - highest);
    for (size_t j = 1; j < count; j++)
        total += exp(x[j * stride] - highest);
    return highest + log(total);
}

/* The last dimension. */
static size_t width_of(const struct tensor *tensor)
{
    return tensor->shape.size[tensor->shape.rank - 1];
}

enum status ref_log_softmax_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t width = width_of(call->in[0]), count = ref_count(call->in[0]);
    const double *x = call->in[0]->data;
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t row = 0; row < count; row += width) {
        const double norm = ref_log_sum_exp(x + row, width, 1);
        for (size_t j = 0; j < width; j++)
            y[row + j] = x[row + j] - norm;
    }
    return STATUS_OK;
}

/* dx = dy - exp(y) sum dy */
enum status ref_log_softmax_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t width = width_of(call->out[0]), count = ref_count(call->out[0]);
    const double *y = call->out[0]->data, *dy = call->dout[0]->data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dx = call->din[0]->data;
    for (size_t row = 0; row < count; row += width) {
        double total = 0;
        for (size_t j = 0; j < width; j++)
            total += dy[row + j];
        for (size_t j = 0; j < width; j++)
            dx[row + j] = dy[row + j] - exp(y[row + j]) * total;
    }
    return STATUS_OK;
}

/* y (rows) = the picked of x (rows, classes) */
enum status ref_log_probability_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t rows = call->in[0]->shape.size[0], classes = call->in[0]->shape.size[1];
    const double *x = call->in[0]->data;
    const int32_t *action = call->in[1]->data;
    enum status status = op_check_indices(call, 1, (uint32_t)classes, error);
    if (status == STATUS_OK)
        status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t r = 0; r < rows; r++)
        y[r] = x[r * classes + (size_t)action[r]];
    return STATUS_OK;
}

enum status ref_log_probability_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t rows = call->in[0]->shape.size[0], classes = call->in[0]->shape.size[1];
    const double *dy = call->dout[0]->data;
    const int32_t *action = call->in[1]->data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dx = call->din[0]->data;
    ref_zero(dx, rows * classes);
    for (size_t r = 0; r < rows; r++)
        dx[r * classes + (size_t)action[r]] = dy[r];
    return STATUS_OK;
}
