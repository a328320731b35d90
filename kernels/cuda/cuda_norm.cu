/* Batch norm: one launch forward and one backward. A block computes a channel, first its sums and then its
 * values; its lanes take every lanes-th of the values. */
#include "kernels/cuda/cuda_internal.h"

enum { BLOCK_THREADS_MIN = 32, LANE_VALUES = 8, SAVED_NORMS = 0 };

/* Images (n, channels, plane); a channel has `values` = n plane. */
struct channels {
    uint32_t channels, plane, values;
};

/* How a channel is normalized: (x - mean) inverse weight + bias. */
struct norm {
    float mean, inverse; /* of the standard deviation, epsilon included */
};

/* A power of two that the shape alone determines, and with it the order of the sums. */
static unsigned norm_threads(const struct channels *shape)
{
    unsigned threads = BLOCK_THREADS_MIN;
    while (threads < BLOCK_THREADS_MAX && threads * LANE_VALUES < shape->values)
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

/* A channel's mean and unbiased variance, and how they normalize it: from the sums of x - shift and of its
 * square. The shift is the channel's first value, so one pass is exact enough: cancellation loses at most
 * log2(values + 1) bits of a double. */
static __device__ struct norm batch_statistics(const struct channels *shape, const float *x, double epsilon,
                                               float *variance)
{
    const double n = (double)shape->values, shift = (double)x[(size_t)blockIdx.x * shape->plane];
    struct sums sums = {0, 0};
    for (struct walk w = walk_begin(shape); w.i < shape->values; walk_on(shape, &w)) {
        const double value = (double)x[w.at] - shift;
        sums.first += value;
        sums.second += value * value;
    }
    sums = join_block<plus_both, BLOCK_THREADS_MAX>(sums);
    const double difference = sums.second - sums.first / n * sums.first;
    const double squares = difference < 0 ? 0 : difference;
    *variance = (float)(squares / (n - 1));
    return {(float)(shift + sums.first / n), (float)(1 / sqrt(squares / n + epsilon))};
}

enum status cuda_batch_norm(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *about = call->in[0];
    const struct channels shape = channels_of(about);
    const bool relu = call->attributes.relu, training = call->attributes.training;
    const double epsilon = call->attributes.epsilon;
    const float *x = cuda_floats(about), *weight = cuda_floats(call->in[1]), *bias = cuda_floats(call->in[2]);
    const float *running_mean = cuda_floats(call->in[3]), *running_variance = cuda_floats(call->in[4]);
    float *y = cuda_floats(call->out[0]), *mean = cuda_floats(call->out[1]);
    float *variance = cuda_floats(call->out[2]);
    if (training && call->keep)
        TRY(cuda_saved(call, SAVED_NORMS, shape.channels * sizeof(struct norm), error));
    struct norm *norms = (struct norm *)call->saved[SAVED_NORMS].data; // for the backward; NULL: none comes
    return cuda_blocks(
        cuda_of(backend), shape.channels, norm_threads(&shape), "launch of batch norm", about, error,
        [=] __device__() {
            const unsigned channel = blockIdx.x;
            float unbiased;
            struct norm by;
            if (training)
                by = batch_statistics(&shape, x, epsilon, &unbiased);
            else
                by = {running_mean[channel], (float)(1 / sqrt((double)running_variance[channel] + epsilon))};
            if (training && threadIdx.x == 0) {
                mean[channel] = by.mean;
                variance[channel] = unbiased;
                if (norms != NULL)
                    norms[channel] = by;
            }
            const float factor = by.inverse * weight[channel], offset = bias[channel];
            for (struct walk w = walk_begin(&shape); w.i < shape.values; walk_on(&shape, &w)) {
                const float value = (x[w.at] - by.mean) * factor + offset;
                y[w.at] = relu ? device_relu(value) : value;
            }
        });
}

/* ---- backward ---- */

/* The gradient before the ReLU, from the output; y NULL: there is no ReLU. */
static __device__ float before_relu(const float *y, const float *dy, size_t at)
{
    return y != NULL ? device_relu_backward(y[at], dy[at]) : dy[at];
}

/* By the sums of dz, the gradient before the ReLU, which is the bias's, and of dz (x - mean):
 * dx = weight inverse (dz - sum dz / n - (x - mean) inverse^2 sum dz (x - mean) / n) */
enum status cuda_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *about = call->in[0];
    const struct channels shape = channels_of(about);
    const struct norm *norms = (const struct norm *)call->saved[SAVED_NORMS].data;
    const float *x = cuda_floats(about), *weight = cuda_floats(call->in[1]);
    const float *y = call->attributes.relu ? cuda_floats(call->out[0]) : NULL,
                *dy = cuda_floats(call->dout[0]);
    float *dx = cuda_floats(call->din[0]), *dweight = cuda_floats(call->din[1]);
    float *dbias = cuda_floats(call->din[2]);
    return cuda_blocks(cuda_of(backend), shape.channels, norm_threads(&shape),
                       "launch of batch norm backward", about, error, [=] __device__() {
                           const unsigned channel = blockIdx.x;
                           const struct norm by = norms[channel];
                           const double n = (double)shape.values, inverse = (double)by.inverse;
                           struct sums sums = {0, 0};
                           for (struct walk w = walk_begin(&shape); w.i < shape.values; walk_on(&shape, &w)) {
                               const double dz = (double)before_relu(y, dy, w.at);
                               sums.first += dz;
                               sums.second += dz * (double)(x[w.at] - by.mean);
                           }
                           sums = join_block<plus_both, BLOCK_THREADS_MAX>(sums);
                           if (threadIdx.x == 0 && dweight != NULL)
                               dweight[channel] = (float)(sums.second * inverse);
                           if (threadIdx.x == 0 && dbias != NULL)
                               dbias[channel] = (float)sums.first;
                           if (dx == NULL)
                               return;
                           const float factor = by.inverse * weight[channel],
                                       offset = (float)(sums.first / n);
                           const float slope = (float)(inverse * inverse * sums.second / n);
                           for (struct walk w = walk_begin(&shape); w.i < shape.values; walk_on(&shape, &w))
                               dx[w.at] =
                                   factor * (before_relu(y, dy, w.at) - offset - (x[w.at] - by.mean) * slope);
                       });
}
