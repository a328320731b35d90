/* The oracle's linear layer and embedding. */
#include "test/oracle/ref_internal.h"

#include <string.h>

/* y (rows, outputs) = x (rows, inputs) weight (outputs, inputs)^T + bias (outputs) */
enum status ref_linear_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t rows = call->in[0]->shape.size[0], inputs = call->in[0]->shape.size[1];
    const size_t outputs = call->in[1]->shape.size[0];
    const double *x = call->in[0]->data, *weight = call->in[1]->data, *bias = ref_doubles(call->in[2]);
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < outputs; o++) {
            double sum = bias != NULL ? bias[o] : 0;
            for (size_t i = 0; i < inputs; i++)
                sum += x[r * inputs + i] * weight[o * inputs + i];
            y[r * outputs + o] = sum;
        }
    return STATUS_OK;
}

void ref_add_product(double *to, const double *left, bool transposed, const double *right, size_t a, size_t b,
                     size_t c)
{
    for (size_t i = 0; i < a; i++)
        for (size_t k = 0; k < b; k++) {
            const double factor = transposed ? left[k * a + i] : left[i * b + k];
            for (size_t j = 0; j < c; j++)
                to[i * c + j] += factor * right[k * c + j];
        }
}

void ref_column_sums(double *to, const double *from, size_t rows, size_t columns)
{
    ref_zero(to, columns);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < columns; i++)
            to[i] += from[r * columns + i];
}

enum status ref_linear_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t rows = call->in[0]->shape.size[0], inputs = call->in[0]->shape.size[1];
    const size_t outputs = call->in[1]->shape.size[0];
    double *dz;
    void *scratch;
    enum status status = ref_begin_backward(call, &dz, &scratch, error);
    if (status != STATUS_OK)
        return status;
    double *dx = ref_doubles(call->din[0]), *dweight = ref_doubles(call->din[1]);
    if (dx != NULL) {
        ref_zero(dx, rows * inputs);
        ref_add_product(dx, dz, false, call->in[1]->data, rows, outputs, inputs);
    }
    if (dweight != NULL) {
        ref_zero(dweight, outputs * inputs);
        ref_add_product(dweight, dz, true, call->in[0]->data, outputs, rows, inputs);
    }
    if (call->din[2] != NULL)
        ref_column_sums(call->din[2]->data, dz, rows, outputs);
    arena_release(call->arena, scratch);
    return STATUS_OK;
}

/* y (…, width) = weight (vocabulary, width) at indices (…) */
enum status ref_embedding_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]), width = call->in[1]->shape.size[1];
    const int32_t *index = call->in[0]->data;
    const double *weight = call->in[1]->data;
    enum status status = op_check_indices(call, 0, call->in[1]->shape.size[0], error);
    if (status == STATUS_OK)
        status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t i = 0; i < count; i++)
        memcpy(y + i * width, weight + (size_t)index[i] * width, width * sizeof *y);
    return STATUS_OK;
}

enum status ref_embedding_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]), width = call->in[1]->shape.size[1];
    const int32_t *index = call->in[0]->data;
    const double *dy = call->dout[0]->data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[1] == NULL)
        return status;
    double *dweight = call->din[1]->data;
    ref_zero(dweight, ref_count(call->din[1]));
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < width; j++)
            dweight[(size_t)index[i] * width + j] += dy[i * width + j];
    return STATUS_OK;
}
