/* Losses and sums: operations whose result is one number. The gradient of a scalar is read from device memory
 * and never copied to the host. */
#include "kernels/cuda/cuda_internal.h"

/* ---- sum ---- */

enum status cuda_sum_op(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    return cuda_sum(cuda_of(backend), SUM_PRODUCT, cuda_floats(x), cuda_floats(call->in[1]), cuda_elements(x),
                    call->attributes.scale, cuda_floats(call->out[0]), x, error);
}

enum status cuda_sum_op_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const float *c = cuda_floats(call->in[1]), *dy = cuda_floats(call->dout[0]);
    const float scale = (float)call->attributes.scale;
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(x), "launch of sum backward", x, error,
                     [=] __device__(size_t i) { dx[i] = *dy * scale * (c != NULL ? c[i] : 1.0f); });
}

/* ---- mean-squared error ---- */

enum status cuda_mse(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const size_t count = cuda_elements(x);
    return cuda_sum(cuda_of(backend), SUM_DIFFERENCE, cuda_floats(x), cuda_floats(call->in[1]), count,
                    1.0 / (double)count, cuda_floats(call->out[0]), x, error);
}

enum status cuda_mse_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const size_t count = cuda_elements(call->in[0]);
    const float *x = cuda_floats(call->in[0]), *target = cuda_floats(call->in[1]);
    const float *dy = cuda_floats(call->dout[0]), scale = (float)(2.0 / (double)count);
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), count, "launch of mse backward", call->in[0], error,
                     [=] __device__(size_t i) { dx[i] = *dy * scale * (x[i] - target[i]); });
}

/* ---- cross entropy ---- */

enum { TERM_THREADS = 128, SAVED_LOG_SUMS = 0 };

/* Logits (outer, classes, inner): a term for each (outer, inner), whose classes follow `inner` apart. */
struct classes {
    uint32_t classes, inner;
};

struct greatest {
    static __device__ float of(float a, float b)
    {
        return fmaxf(a, b);
    }
};

static struct classes classes_of(const struct tensor *logits)
{
    return {logits->shape.size[1], logits->shape.rank == 3 ? logits->shape.size[2] : 1};
}

/* Block t computes term t, and the logarithm of the sum of the exponentials of its logits. That is a double,
 * from which the backward computes the probabilities. */
static enum status compute_terms(struct cuda *cuda, const struct tensor *logits, const struct tensor *target,
                                 double *log_sums, float *terms, struct error *error)
{
    const struct classes shape = classes_of(logits);
    const size_t inner = shape.inner;
    const float *z = cuda_floats(logits);
    const int32_t *wanted = cuda_ints(target);
    return cuda_blocks(cuda, cuda_elements(target), TERM_THREADS, "launch of cross entropy", logits, error,
                       [=] __device__() {
                           const size_t term = blockIdx.x;
                           const float *x = z + term / inner * shape.classes * inner + term % inner;
                           float highest = -INFINITY;
                           double total = 0;
                           for (uint32_t c = threadIdx.x; c < shape.classes; c += TERM_THREADS)
                               highest = fmaxf(highest, x[c * inner]);
                           highest = join_block<greatest, TERM_THREADS>(highest);
                           for (uint32_t c = threadIdx.x; c < shape.classes; c += TERM_THREADS)
                               total += (double)expf(x[c * inner] - highest);
                           total = join_block<plus, TERM_THREADS>(total);
                           if (threadIdx.x > 0)
                               return;
                           log_sums[term] = (double)highest + log(total);
                           terms[term] =
                               (float)(log_sums[term] -
                                       (double)x[device_clamp(wanted[term], shape.classes) * inner]);
                       });
}

enum status cuda_cross_entropy(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *logits = call->in[0], *target = call->in[1];
    const size_t count = cuda_elements(target);
    void *log_sums, *terms;
    if (call->keep)
        TRY(cuda_saved(call, SAVED_LOG_SUMS, count * sizeof(double), error));
    log_sums = call->saved[SAVED_LOG_SUMS].data;
    if (!call->keep)
        TRY(cuda_scratch(call, count * sizeof(double), &log_sums, logits, error));
    TRY(cuda_scratch(call, count * sizeof(float), &terms, logits, error));
    TRY(compute_terms(cuda, logits, target, (double *)log_sums, (float *)terms, error));
    TRY(cuda_sum(cuda, SUM_PRODUCT, (const float *)terms, NULL, count, 1.0 / (double)count,
                 cuda_floats(call->out[0]), logits, error));
    arena_release(call->arena, terms);
    if (!call->keep)
        arena_release(call->arena, log_sums);
    return STATUS_OK;
}

enum status cuda_cross_entropy_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct classes shape = classes_of(call->in[0]);
    const float *logits = cuda_floats(call->in[0]), *dy = cuda_floats(call->dout[0]);
    const int32_t *target = cuda_ints(call->in[1]);
    const double *log_sums = (const double *)call->saved[SAVED_LOG_SUMS].data;
    const float scale = (float)(1.0 / (double)cuda_elements(call->in[1]));
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of cross entropy backward",
                     call->in[0], error, [=] __device__(size_t i) {
                         const size_t block = (size_t)shape.classes * shape.inner;
                         const size_t term = i / block * shape.inner + i % shape.inner;
                         const uint32_t c = (uint32_t)(i % block / shape.inner);
                         const float probability = expf((float)((double)logits[i] - log_sums[term]));
                         const float wanted = c == device_clamp(target[term], shape.classes) ? 1.0f : 0.0f;
                         dx[i] = *dy * scale * (probability - wanted);
                     });
}
