/* Batch norm: one launch forward and one backward. A block computes a channel, first its sums and then its
 * values; its lanes take every lanes-th of the values. */
#include "kernels/cuda/cuda_internal.h"

enum { THREADS_MIN = 32, THREADS_MAX = 1024, LANE_VALUES = 8, SAVED_NORMS = 0 };

/* Images (n, channels, plane); a channel has `values` = n plane. */
struct channels {
    uint32_t channels, plane, values;
};

/* How a channel is normalized: (x - mean) inverse weight + bias. */
struct norm {
    float mean, inverse; /* of the standard deviation, epsilon included */
};

struct norm_arguments {
    struct channels shape;
    bool relu, training;
    double epsilon;
    const float *x, *weight, *bias, *running_mean, *running_variance;
    float *y, *mean, *variance;
    struct norm *norms; /* (channels) for the backward; NULL: none comes */
};

struct norm_gradients {
    struct channels shape;
    const struct norm *norms;
    const float *x, *y, *dy, *weight; /* y NULL: no ReLU */
    float *dx, *dweight, *dbias;      /* NULL: not wanted */
};

/* A power of two that the shape alone determines, and with it the order of the sums. */
static unsigned norm_threads(const struct channels *shape)
{
    unsigned threads = THREADS_MIN;
    while (threads < THREADS_MAX && threads * LANE_VALUES < shape->values)
        threads *= 2;
    return threads;
}

static struct channels channels_of(const struct tensor *x)
{
    const uint32_t *size = x->shape.size;
    return {size[1], size[2] * size[3], size[0] * size[2] * size[3]};
}

/* Where a lane stands: value i of the block's channel, in column `column` of a plane, at `at` in the tensor.
 */
struct walk {
    uint32_t i, column;
    size_t at;
};

static __device__ struct walk walk_begin(const struct channels *s)
{
    const uint32_t lane = threadIdx.x, column = lane % s->plane;
    return {lane, column, ((size_t)(lane / s->plane) * s->channels + blockIdx.x) * s->plane + column};
}

/* Without a division of its own: a compiler takes those by `lanes` out of the loop. */
static __device__ void walk_on(const struct channels *s, struct walk *walk)
{
    const uint32_t lanes = blockDim.x;
    walk->i += lanes;
    walk->column += lanes % s->plane;
    walk->at += (size_t)(lanes / s->plane) * s->channels * s->plane + lanes % s->plane;
    if (walk->column >= s->plane) {
        walk->column -= s->plane;
        walk->at += (size_t)(s->channels - 1) * s->plane;
    }
}

struct sums {
    double first, second;
};

struct plus_both {
    static __device__ struct sums of(struct sums a, struct sums b)
    {
        return {a.first + b.first, a.second + b.second};
    }
};

/* ---- forward ---- */

/* Each thread computes the channel's numbers, from the sums of x - shift and of its square; the first one
 * writes them. The shift is the channel's first value, so one pass is exact enough: cancellation loses at
 * most log2(values + 1) bits of a double. */
static __device__ struct norm batch_statistics(const struct norm_arguments *of)
{
    const unsigned channel = blockIdx.x;
    const double n = (double)of->shape.values, shift = (double)of->x[(size_t)channel * of->shape.plane];
    struct sums sums = {0, 0};
    for (struct walk w = walk_begin(&of->shape); w.i < of->shape.values; walk_on(&of->shape, &w)) {
        const double value = (double)of->x[w.at] - shift;
        sums.first += value;
        sums.second += value * value;
    }
    sums = join_block<plus_both, THREADS_MAX>(sums);
    const double difference = sums.second - sums.first / n * sums.first;
    const double squares = difference < 0 ? 0 : difference;
    const struct norm found = {(float)(shift + sums.first / n), (float)(1 / sqrt(squares / n + of->epsilon))};
    if (threadIdx.x > 0)
        return found;
    of->mean[channel] = found.mean;
    of->variance[channel] = (float)(squares / (n - 1));
    if (of->norms != NULL)
        of->norms[channel] = found;
    return found;
}

static __device__ struct norm running_statistics(const struct norm_arguments *of)
{
    const double variance = (double)of->running_variance[blockIdx.x];
    return {of->running_mean[blockIdx.x], (float)(1 / sqrt(variance + of->epsilon))};
}

static __global__ void __launch_bounds__(THREADS_MAX) batch_norm_kernel(struct norm_arguments of)
{
    const unsigned channel = blockIdx.x;
    const struct norm by = of.training ? batch_statistics(&of) : running_statistics(&of);
    const float factor = by.inverse * of.weight[channel], bias = of.bias[channel];
    for (struct walk w = walk_begin(&of.shape); w.i < of.shape.values; walk_on(&of.shape, &w)) {
        const float value = (of.x[w.at] - by.mean) * factor + bias;
        of.y[w.at] = of.relu ? device_relu(value) : value;
    }
}

enum status cuda_batch_norm(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const bool training = call->attributes.training;
    if (training && call->keep)
        TRY(cuda_saved(call, SAVED_NORMS, x->shape.size[1] * sizeof(struct norm), error));
    const struct norm_arguments of = {channels_of(x),
                                      call->attributes.relu,
                                      training,
                                      call->attributes.epsilon,
                                      cuda_floats(x),
                                      cuda_floats(call->in[1]),
                                      cuda_floats(call->in[2]),
                                      cuda_floats(call->in[3]),
                                      cuda_floats(call->in[4]),
                                      cuda_floats(call->out[0]),
                                      cuda_floats(call->out[1]),
                                      cuda_floats(call->out[2]),
                                      (struct norm *)(call->keep ? call->saved[SAVED_NORMS].data : NULL)};
    CUDA_LAUNCH(batch_norm_kernel, of.shape.channels, norm_threads(&of.shape), cuda_of(backend)->stream, of);
    LAUNCH_TRY(x, "batch norm");
    return STATUS_OK;
}

/* ---- backward ---- */

/* The gradient before the ReLU, from the output. */
static __device__ float before_relu(const struct norm_gradients *of, size_t at)
{
    return of->y != NULL ? device_relu_backward(of->y[at], of->dy[at]) : of->dy[at];
}

/* By the sums of dz, the gradient before the ReLU, which is the bias's, and of dz (x - mean):
 * dx = weight inverse (dz - sum dz / n - (x - mean) inverse^2 sum dz (x - mean) / n) */
static __global__ void __launch_bounds__(THREADS_MAX) batch_norm_backward_kernel(struct norm_gradients of)
{
    const unsigned channel = blockIdx.x;
    const struct norm by = of.norms[channel];
    const double n = (double)of.shape.values, inverse = (double)by.inverse;
    struct sums sums = {0, 0};
    for (struct walk w = walk_begin(&of.shape); w.i < of.shape.values; walk_on(&of.shape, &w)) {
        const double dz = (double)before_relu(&of, w.at);
        sums.first += dz;
        sums.second += dz * (double)(of.x[w.at] - by.mean);
    }
    sums = join_block<plus_both, THREADS_MAX>(sums);
    if (threadIdx.x == 0 && of.dweight != NULL)
        of.dweight[channel] = (float)(sums.second * inverse);
    if (threadIdx.x == 0 && of.dbias != NULL)
        of.dbias[channel] = (float)sums.first;
    if (of.dx == NULL)
        return;
    const float factor = by.inverse * of.weight[channel], offset = (float)(sums.first / n);
    const float slope = (float)(inverse * inverse * sums.second / n);
    for (struct walk w = walk_begin(&of.shape); w.i < of.shape.values; walk_on(&of.shape, &w))
        of.dx[w.at] = factor * (before_relu(&of, w.at) - offset - (of.x[w.at] - by.mean) * slope);
}

enum status cuda_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const struct norm_gradients of = {channels_of(x),
                                      (const struct norm *)call->saved[SAVED_NORMS].data,
                                      cuda_floats(x),
                                      call->attributes.relu ? cuda_floats(call->out[0]) : NULL,
                                      cuda_floats(call->dout[0]),
                                      cuda_floats(call->in[1]),
                                      cuda_floats(call->din[0]),
                                      cuda_floats(call->din[1]),
                                      cuda_floats(call->din[2])};
    CUDA_LAUNCH(batch_norm_backward_kernel, of.shape.channels, norm_threads(&of.shape),
                cuda_of(backend)->stream, of);
    LAUNCH_TRY(x, "batch norm backward");
    return STATUS_OK;
}
