/* Losses and sums: everything that ends in one number. Sums are doubles, in one order. */
#include "kernels/onednn/onednn.h"

#include "kernels/op_check.h"

#include <math.h>
#include <string.h>

static float *floats(const struct tensor *tensor)
{
    return tensor->data;
}

/* ---- mean squared error ---- */

static enum status mse_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const size_t count = shape_elements(&call->in[0]->shape);
    *floats(call->out[0]) = (float)(loop_sum(onednn_of(backend)->element->square_distance,
                                             floats(call->in[0]), floats(call->in[1]), count) /
                                    (double)count);
    return STATUS_OK;
}

static enum status mse_backward_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const size_t count = shape_elements(&call->in[0]->shape), pieces = loop_pieces(count);
    const float factor = (float)(2.0 / (double)count * (double)*floats(call->dout[0]));
    const float *x = floats(call->in[0]), *target = floats(call->in[1]);
    float *dx = floats(call->din[0]);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        element->difference(dx + i * LOOP_PIECE, x + i * LOOP_PIECE, target + i * LOOP_PIECE, factor,
                            loop_piece(count, i));
    return STATUS_OK;
}

enum status onednn_mse_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_FORWARD, NULL, NULL, mse_body, error);
}

enum status onednn_mse_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, NULL, NULL, mse_backward_body, error);
}

/* ---- sum ---- */

static enum status sum_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const struct tensor *coefficient = call->in[1];
    const double sum =
        loop_sum(coefficient == NULL ? element->sum : element->dot, floats(call->in[0]),
                 coefficient == NULL ? NULL : floats(coefficient), shape_elements(&call->in[0]->shape));
    *floats(call->out[0]) = (float)(call->attributes.scale * sum);
    return STATUS_OK;
}

static enum status sum_backward_body(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)error;
    const struct element_lanes *element = onednn_of(backend)->element;
    const size_t count = shape_elements(&call->in[0]->shape), pieces = loop_pieces(count);
    const float factor = (float)(call->attributes.scale * (double)*floats(call->dout[0]));
    const float *coefficient = call->in[1] == NULL ? NULL : floats(call->in[1]);
    float *dx = floats(call->din[0]);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        if (coefficient != NULL)
            element->multiply(dx + i * LOOP_PIECE, coefficient + i * LOOP_PIECE, factor,
                              loop_piece(count, i));
        else
            element->fill(dx + i * LOOP_PIECE, factor, loop_piece(count, i));
    return STATUS_OK;
}

enum status onednn_sum_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_FORWARD, NULL, NULL, sum_body, error);
}

enum status onednn_sum_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, NULL, NULL, sum_backward_body, error);
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

static enum status cross_entropy_body(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct cross_entropy size = cross_entropy_of(call);
    const struct row_lanes *lanes = onednn_of(backend)->row;
    enum status status = op_check_indices(call, 1, (uint32_t)size.classes, error);
    if (status == STATUS_OK)
        status = scratch_reserve(&onednn_of(backend)->terms, size.n * size.m * sizeof(double), error);
    if (status != STATUS_OK)
        return status;
    const float *logits = floats(call->in[0]);
    const int32_t *target = call->in[1]->data;
    float(*saved)[2] = call->keep ? call->saved[SAVED_TERMS].data : NULL;
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
    *floats(call->out[0]) = (float)(total / (double)terms);
    return STATUS_OK;
}

static enum status cross_entropy_backward_body(struct backend *backend, struct op_call *call,
                                               struct error *error)
{
    (void)error;
    const struct cross_entropy size = cross_entropy_of(call);
    const struct row_lanes *lanes = onednn_of(backend)->row;
    const size_t terms = size.n * size.m;
    const double share = (double)*floats(call->dout[0]) / (double)terms;
    const float *logits = floats(call->in[0]);
    const int32_t *target = call->in[1]->data;
    const float(*saved)[2] = call->saved[SAVED_TERMS].data;
    float *dlogits = floats(call->din[0]);
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

enum status onednn_cross_entropy_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct cross_entropy size = cross_entropy_of(call);
    const size_t saved[2] = {size.n * size.m * 2 * sizeof(float)};
    return loop_run(backend, call, PASS_FORWARD, NULL, saved, cross_entropy_body, error);
}

enum status onednn_cross_entropy_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, NULL, NULL, cross_entropy_backward_body, error);
}
