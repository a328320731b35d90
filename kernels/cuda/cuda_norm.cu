/* Batch norm. */
#include "kernels/cuda/cuda_internal.h"

/* ---- batch norm ---- */

/* One launch forward and one backward: a block computes a channel, first its sums and then its values. */
enum { NORM_THREADS_MIN = 32, NORM_THREADS_MAX = 1024, NORM_LANE_VALUES = 8, SAVED_NORMS = 0 };

struct norm_arguments {
    struct element_channels shape;
    bool relu, training;
    double epsilon;
    const float *x, *weight, *bias, *running_mean, *running_variance;
    float *y, *mean, *variance;
    struct element_norm *norms; /* (channels) for the backward; NULL: none comes */
};

struct norm_gradients {
    struct element_channels shape;
    const struct element_norm *norms;
    const float *x, *y, *dy, *weight; /* y NULL: no ReLU */
    float *dx, *dweight, *dbias;      /* NULL: not wanted */
};

/* A power of two that the shape alone determines, and with it the order of the sums. */
static unsigned norm_threads(const struct element_channels *shape)
{
    unsigned threads = NORM_THREADS_MIN;
    while (threads < NORM_THREADS_MAX && threads * NORM_LANE_VALUES < shape->values)
        threads *= 2;
    return threads;
}

static struct element_channels channels_of(const struct tensor *x)
{
    const uint32_t *size = x->shape.size;
    return {size[1], size[2] * size[3], size[0] * size[2] * size[3]};
}

/* Adds the sums of the block's threads in a tree. */
static __device__ struct element_sums add_block(struct element_sums sums)
{
    __shared__ struct element_sums tree[NORM_THREADS_MAX];
    tree[threadIdx.x] = sums;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            element_sums_add(&tree[threadIdx.x], &tree[threadIdx.x + half]);
    }
    __syncthreads();
    return tree[0];
}

/* Each thread computes the channel's numbers; the first one writes them. */
static __device__ struct element_norm batch_statistics(const struct norm_arguments *norm, unsigned channel)
{
    float mean, variance;
    const struct element_sums sums =
        add_block(element_norm_lane(&norm->shape, norm->x, channel, threadIdx.x, blockDim.x));
    const struct element_norm found =
        element_norm_of(&norm->shape, norm->x, channel, &sums, norm->epsilon, &mean, &variance);
    if (threadIdx.x > 0)
        return found;
    norm->mean[channel] = mean;
    norm->variance[channel] = variance;
    if (norm->norms != NULL)
        norm->norms[channel] = found;
    return found;
}

static __global__ void __launch_bounds__(NORM_THREADS_MAX) batch_norm_kernel(struct norm_arguments norm)
{
    const unsigned channel = blockIdx.x;
    const struct element_norm by =
        norm.training
            ? batch_statistics(&norm, channel)
            : element_norm_running(norm.running_mean[channel], norm.running_variance[channel], norm.epsilon);
    element_normalize_lane(&norm.shape, &by, norm.x, norm.weight[channel], norm.bias[channel], norm.relu,
                           channel, threadIdx.x, blockDim.x, norm.y);
}

enum status cuda_batch_norm(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const bool training = call->attributes.training;
    for (int i = 0; i < (training ? 3 : 1); i++)
        TRY(cuda_output(call, call->out[i], error));
    if (training && call->keep)
        TRY(cuda_saved(call, SAVED_NORMS, x->shape.size[1] * sizeof(struct element_norm), error));
    const struct norm_arguments norm = {
        channels_of(x),
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
        (struct element_norm *)(call->keep ? call->saved[SAVED_NORMS].data : NULL)};
    CUDA_LAUNCH(batch_norm_kernel, norm.shape.channels, norm_threads(&norm.shape), cuda_of(backend)->stream,
                norm);
    LAUNCH_TRY(x, "batch norm");
    return STATUS_OK;
}

static __global__ void __launch_bounds__(NORM_THREADS_MAX)
    batch_norm_backward_kernel(struct norm_gradients of)
{
    const unsigned channel = blockIdx.x, lane = threadIdx.x, lanes = blockDim.x;
    const struct element_norm by = of.norms[channel];
    const struct element_sums sums =
        add_block(element_norm_gradient_lane(&of.shape, &by, of.x, of.y, of.dy, channel, lane, lanes));
    if (lane == 0 && of.dweight != NULL)
        of.dweight[channel] = (float)(sums.second * (double)by.inverse);
    if (lane == 0 && of.dbias != NULL)
        of.dbias[channel] = (float)sums.first;
    if (of.dx != NULL)
        element_norm_backward_lane(&of.shape, &by, &sums, of.x, of.y, of.dy, of.weight[channel], channel,
                                   lane, lanes, of.dx);
}

enum status cuda_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    for (int i = 0; i < 3; i++)
        if (call->din[i] != NULL)
            TRY(cuda_output(call, call->din[i], error));
    const struct norm_gradients of = {channels_of(x),
                                      (const struct element_norm *)call->saved[SAVED_NORMS].data,
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
