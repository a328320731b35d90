/* The oracle's softmaxes over rows, and what is drawn and picked from them. */
#include "kernels/op_check.h"
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

enum status ref_softmax_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = ref_log_softmax_forward(backend, call, error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t i = 0; i < ref_count(call->out[0]); i++)
        y[i] = exp(y[i]);
    return STATUS_OK;
}

/* dx = y (dy - sum y dy) */
enum status ref_softmax_backward(struct backend *backend, struct op_call *call, struct error *error)
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
            total += y[row + j] * dy[row + j];
        for (size_t j = 0; j < width; j++)
            dx[row + j] = y[row + j] * (dy[row + j] - total);
    }
    return STATUS_OK;
}

/* The smallest class with u < P(0) + … + P(class), else the last. */
static int32_t pick(const double *probabilities, size_t classes, double u)
{
    double cumulated = 0;
    for (size_t j = 0; j + 1 < classes; j++) {
        cumulated += probabilities[j];
        if (u < cumulated)
            return (int32_t)j;
    }
    return (int32_t)(classes - 1);
}

enum status ref_sample_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t rows = call->in[0]->shape.size[0], classes = call->in[0]->shape.size[1];
    const double *probabilities = call->in[0]->data;
    const int32_t *words = call->in[1]->data;
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    int32_t *action = call->out[0]->data;
    for (size_t r = 0; r < rows; r++) {
        const struct rng_key key = {call->attributes.draw.seed, (uint32_t)words[3 * r],
                                    (uint32_t)words[3 * r + 1], (uint32_t)words[3 * r + 2]};
        uint32_t drawn[4];
        rng_block(&key, RNG_ACTION, 0, drawn);
        action[r] = pick(probabilities + r * classes, classes, (double)rng_uniform_float(drawn[0]));
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
