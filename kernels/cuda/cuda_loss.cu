/* Losses and sums: operations whose result is one number. The gradient of a scalar is
 * read from device memory and never copied to the host. */
#include "kernels/cuda/cuda_internal.h"

/* ---- sum ---- */

enum status cuda_sum_op(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    TRY(cuda_output(call, call->out[0], error));
    return cuda_sum(cuda_of(backend), ELEMENT_PRODUCT, cuda_floats(x), cuda_floats(call->in[1]),
                    cuda_elements(x), call->attributes.scale, cuda_floats(call->out[0]), x, error);
}

enum status cuda_sum_op_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const float *c = cuda_floats(call->in[1]), *dy = cuda_floats(call->dout[0]);
    const float scale = (float)call->attributes.scale;
    TRY(cuda_output(call, call->din[0], error));
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(x), "launch of sum backward", x, error,
                     [=] __device__(size_t i) { dx[i] = element_sum_backward(c, *dy, scale, i); });
}

/* ---- mean-squared error ---- */

enum status cuda_mse(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const size_t count = cuda_elements(x);
    TRY(cuda_output(call, call->out[0], error));
    return cuda_sum(cuda_of(backend), ELEMENT_DIFFERENCE, cuda_floats(x), cuda_floats(call->in[1]), count,
                    1.0 / (double)count, cuda_floats(call->out[0]), x, error);
}

enum status cuda_mse_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const size_t count = cuda_elements(call->in[0]);
    const float *x = cuda_floats(call->in[0]), *target = cuda_floats(call->in[1]);
    const float *dy = cuda_floats(call->dout[0]), scale = (float)(2.0 / (double)count);
    TRY(cuda_output(call, call->din[0], error));
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), count, "launch of mse backward", call->in[0], error,
                     [=] __device__(size_t i) { dx[i] = element_mse_backward(x, target, *dy, scale, i); });
}

/* ---- cross entropy ---- */

enum { TERM_THREADS = 128, SAVED_LOG_SUMS = 0 };

/* Block t computes term t, and the logarithm of the sum of the exponentials of its logits. That is a double,
 * from which the backward computes the probabilities. */
static __global__ void cross_entropy_kernel(struct element_classes shape, const float *logits,
                                            const int32_t *target, double *log_sums, float *terms)
{
    __shared__ float highest[TERM_THREADS];
    __shared__ double total[TERM_THREADS];
    const size_t term = blockIdx.x;
    const unsigned lane = threadIdx.x;
    const float *x = logits + element_term_begin(&shape, term);
    highest[lane] = element_max_lane(&shape, x, lane, TERM_THREADS);
    for (unsigned half = TERM_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            highest[lane] = fmaxf(highest[lane], highest[lane + half]);
    }
    __syncthreads();
    total[lane] = element_exp_lane(&shape, x, highest[0], lane, TERM_THREADS);
    for (unsigned half = TERM_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            total[lane] += total[lane + half];
    }
    if (lane > 0)
        return;
    log_sums[term] = (double)highest[0] + log(total[0]);
    terms[term] = (float)element_cross_entropy(&shape, logits, target, log_sums[term], term);
}

static struct element_classes classes_of(const struct tensor *logits)
{
    const struct element_classes shape = {logits->shape.size[1],
                                          logits->shape.rank == 3 ? logits->shape.size[2] : 1};
    return shape;
}

enum status cuda_cross_entropy(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *logits = call->in[0], *target = call->in[1];
    const size_t count = cuda_elements(target);
    void *log_sums, *terms;
    TRY(cuda_output(call, call->out[0], error));
    if (call->keep)
        TRY(cuda_saved(call, SAVED_LOG_SUMS, count * sizeof(double), error));
    log_sums = call->saved[SAVED_LOG_SUMS].data;
    if (!call->keep)
        TRY(cuda_scratch(call, count * sizeof(double), &log_sums, logits, error));
    TRY(cuda_scratch(call, count * sizeof(float), &terms, logits, error));
    CUDA_LAUNCH(cross_entropy_kernel, (unsigned)count, TERM_THREADS, cuda->stream, classes_of(logits),
                cuda_floats(logits), cuda_ints(target), (double *)log_sums, (float *)terms);
    LAUNCH_TRY(logits, "cross entropy");
    TRY(cuda_sum(cuda, ELEMENT_PRODUCT, (const float *)terms, NULL, count, 1.0 / (double)count,
                 cuda_floats(call->out[0]), logits, error));
    arena_release(call->arena, terms);
    if (!call->keep)
        arena_release(call->arena, log_sums);
    return STATUS_OK;
}

enum status cuda_cross_entropy_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct element_classes shape = classes_of(call->in[0]);
    const float *logits = cuda_floats(call->in[0]), *dy = cuda_floats(call->dout[0]);
    const int32_t *target = cuda_ints(call->in[1]);
    const double *log_sums = (const double *)call->saved[SAVED_LOG_SUMS].data;
    const float scale = (float)(1.0 / (double)cuda_elements(call->in[1]));
    TRY(cuda_output(call, call->din[0], error));
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of cross entropy backward",
                     call->in[0], error, [=] __device__(size_t i) {
                         dx[i] =
                             element_cross_entropy_backward(&shape, logits, target, log_sums, *dy * scale, i);
                     });
}
