/* The oracle's losses and sums: scalars, each with the gradient of its first input. */
#include "test/oracle/ref_internal.h"

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

/* Logits (n, classes, m), m = 1 where they have two dimensions; target (n, m). */
struct classes {
    size_t n, classes, m;
};

static struct classes classes_of(const struct tensor *logits)
{
    const uint32_t *size = logits->shape.size;
    return (struct classes){size[0], size[1], logits->shape.rank == 3 ? size[2] : 1};
}

/* Where the classes of position (i, j) begin; they lie m apart. */
static size_t position(const struct classes *dims, size_t i, size_t j)
{
    return i * dims->classes * dims->m + j;
}

enum status ref_cross_entropy_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct classes dims = classes_of(call->in[0]);
    const double *logits = call->in[0]->data;
    const int32_t *target = call->in[1]->data;
    enum status status = op_check_indices(call, 1, (uint32_t)dims.classes, error);
    if (status == STATUS_OK)
        status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double sum = 0;
    for (size_t i = 0; i < dims.n; i++)
        for (size_t j = 0; j < dims.m; j++) {
            const double *row = logits + position(&dims, i, j);
            sum += ref_log_sum_exp(row, dims.classes, dims.m) - row[(size_t)target[i * dims.m + j] * dims.m];
        }
    *(double *)call->out[0]->data = sum / (double)(dims.n * dims.m);
    return STATUS_OK;
}

/* dlogits = (softmax - [target]) dloss / (n m) */
enum status ref_cross_entropy_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct classes dims = classes_of(call->in[0]);
    const double *logits = call->in[0]->data;
    const int32_t *target = call->in[1]->data;
    const double pull = *(const double *)call->dout[0]->data / (double)(dims.n * dims.m);
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dlogits = call->din[0]->data;
    for (size_t i = 0; i < dims.n; i++)
        for (size_t j = 0; j < dims.m; j++) {
            const size_t first = position(&dims, i, j);
            const double norm = ref_log_sum_exp(logits + first, dims.classes, dims.m);
            for (size_t c = 0; c < dims.classes; c++) {
                const size_t at = first + c * dims.m;
                const double hit = c == (size_t)target[i * dims.m + j] ? 1 : 0;
                dlogits[at] = (exp(logits[at] - norm) - hit) * pull;
            }
        }
    return STATUS_OK;
}
