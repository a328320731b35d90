/* Losses and sums: operations whose result is one number. They sum in double, in one fixed order. */
#include "kernels/onednn/onednn.h"

#include <math.h>
#include <string.h>

/* ---- mean squared error ---- */

enum status mse_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const size_t count = shape_elements(&call->in[0]->shape);
    float *loss = call->out[0]->data;
    *loss = (float)(loop_sum(onednn_of(backend)->element->square_distance, call->in[0]->data,
                             call->in[1]->data, count) /
                    (double)count);
    return STATUS_OK;
}

enum status mse_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const size_t count = shape_elements(&call->in[0]->shape);
    const float *dloss = call->dout[0]->data;
    const struct elements arrays = {.to = call->din[0]->data,
                                    .a = call->in[0]->data,
                                    .b = call->in[1]->data,
                                    .factor = (float)(2.0 / (double)count * (double)*dloss)};
    loop_pass(backend, onednn_of(backend)->element->difference, &arrays, count);
    return STATUS_OK;
}

/* ---- sum ---- */

enum status sum_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const struct tensor *coefficient = call->in[1];
    const double sum =
        loop_sum(coefficient == NULL ? element->sum : element->dot, call->in[0]->data,
                 coefficient == NULL ? NULL : coefficient->data, shape_elements(&call->in[0]->shape));
    float *y = call->out[0]->data;
    *y = (float)(call->attributes.scale * sum);
    return STATUS_OK;
}

enum status sum_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const struct tensor *coefficient = call->in[1];
    const float *dy = call->dout[0]->data;
    const struct elements arrays = {.to = call->din[0]->data,
                                    .a = coefficient == NULL ? NULL : coefficient->data,
                                    .factor = (float)(call->attributes.scale * (double)*dy)};
    loop_pass(backend, coefficient == NULL ? element->fill : element->multiply, &arrays,
              shape_elements(&call->in[0]->shape));
    return STATUS_OK;
}

/* ---- cross entropy ---- */

/* logits (n, classes, m), m 1 where there is no third dimension. A term is one of the n m softmaxes, its
 * classes m elements apart. Saved for the backward: each term's greatest logit and the factor that makes
 * probabilities of exp(logit - greatest). */
enum { SAVED_TERMS = 0 };

struct cross_entropy {
    size_t n, classes, m;
};

static struct cross_entropy cross_entropy_of(const struct op_call *call)
{
    const struct shape *logits = &call->in[0]->shape;
    return (struct cross_entropy){logits->size[0], logits->size[1], logits->rank == 3 ? logits->size[2] : 1};
}

/* One term where the classes do not lie side by side. */
static double apart_exp_sum(const float *x, const struct cross_entropy *size, float *greatest)
{
    double sum = 0;
    *greatest = -INFINITY;
    for (size_t c = 0; c < size->classes; c++)
        *greatest = x[c * size->m] > *greatest ? x[c * size->m] : *greatest;
    for (size_t c = 0; c < size->classes; c++)
        sum += exp((double)x[c * size->m] - (double)*greatest);
    return sum;
}

enum status cross_entropy_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct cross_entropy size = cross_entropy_of(call);
    const struct row_lanes *lanes = onednn_of(backend)->row;
    enum status status = op_check_indices(call, 1, (uint32_t)size.classes, error);
    if (status == STATUS_OK)
        status = scratch_reserve(&onednn_of(backend)->terms, size.n * size.m * sizeof(double), error);
    if (status == STATUS_OK && call->keep)
        status =
            onednn_take(call, &call->saved[SAVED_TERMS], NULL, size.n * size.m * 2 * sizeof(float), error);
    if (status != STATUS_OK)
        return status;
    const float *logits = call->in[0]->data;
    const int32_t *target = call->in[1]->data;
    float(*saved)[2] = call->saved[SAVED_TERMS].data;
    float *mean = call->out[0]->data;
    double *loss = onednn_of(backend)->terms.data, total = 0;
    const size_t terms = size.n * size.m;
#pragma omp parallel for schedule(static) if (terms * size.classes > LOOP_PIECE)
    for (size_t i = 0; i < terms; i++) {
        const float *x = logits + i / size.m * size.classes * size.m + i % size.m;
        float greatest;
        const double sum =
            size.m == 1 ? lanes->exp_sum(x, size.classes, &greatest) : apart_exp_sum(x, &size, &greatest);
        loss[i] = log(sum) - ((double)x[(size_t)target[i] * size.m] - (double)greatest);
        if (saved != NULL) {
            saved[i][0] = greatest;
            saved[i][1] = (float)(1 / sum);
        }
    }
    for (size_t i = 0; i < terms; i++)
        total += loss[i];
    *mean = (float)(total / (double)terms);
    return STATUS_OK;
}

enum status cross_entropy_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct cross_entropy size = cross_entropy_of(call);
    const struct row_lanes *lanes = onednn_of(backend)->row;
    const size_t terms = size.n * size.m;
    const float *dmean = call->dout[0]->data;
    const double share = (double)*dmean / (double)terms;
    const float *logits = call->in[0]->data;
    const int32_t *target = call->in[1]->data;
    const float(*saved)[2] = call->saved[SAVED_TERMS].data;
    float *dlogits = call->din[0]->data;
#pragma omp parallel for schedule(static) if (terms * size.classes > LOOP_PIECE)
    for (size_t i = 0; i < terms; i++) {
        const size_t first = i / size.m * size.classes * size.m + i % size.m;
        const float *x = logits + first, greatest = saved[i][0];
        float *dx = dlogits + first;
        const float factor = (float)(share * (double)saved[i][1]);
        if (size.m == 1)
            lanes->exp_scaled(dx, x, size.classes, greatest, factor);
        else
            for (size_t c = 0; c < size.classes; c++)
                dx[c * size.m] = (float)(exp((double)x[c * size.m] - (double)greatest) * (double)factor);
        dx[(size_t)target[i] * size.m] -= (float)share;
    }
    return STATUS_OK;
}
