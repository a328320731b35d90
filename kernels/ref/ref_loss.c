/* The oracle's losses and sums: scalars, each with the gradient of its first input. */
#include "kernels/op_check.h"
#include "kernels/ref/ref_internal.h"

#include <math.h>

enum status ref_mse_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]);
    const double *x = call->in[0]->data, *target = call->in[1]->data;
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (x[i] - target[i]) * (x[i] - target[i]);
    *(double *)call->out[0]->data = sum / (double)count;
    return STATUS_OK;
}

enum status ref_mse_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]);
    const double *x = call->in[0]->data, *target = call->in[1]->data;
    const double dloss = *(const double *)call->dout[0]->data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dx = call->din[0]->data;
    for (size_t i = 0; i < count; i++)
        dx[i] = 2 * (x[i] - target[i]) / (double)count * dloss;
    return STATUS_OK;
}

/* y = scale sum_i coefficient_i x_i */
enum status ref_sum_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]);
    const double *x = call->in[0]->data, *coefficient = ref_doubles(call->in[1]);
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += coefficient != NULL ? coefficient[i] * x[i] : x[i];
    *(double *)call->out[0]->data = call->attributes.scale * sum;
    return STATUS_OK;
}

enum status ref_sum_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]);
    const double *coefficient = ref_doubles(call->in[1]);
    const double pull = call->attributes.scale * *(const double *)call->dout[0]->data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dx = call->din[0]->data;
    for (size_t i = 0; i < count; i++)
        dx[i] = coefficient != NULL ? pull * coefficient[i] : pull;
    return STATUS_OK;
}
