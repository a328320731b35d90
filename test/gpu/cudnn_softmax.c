/* The stand-in's softmax. */
#include "test/gpu/cudnn_stand_in.h"
#include "test/oracle/ref_internal.h"

#include <math.h>
#include <stdlib.h>

struct softmax_work {
    struct cudnn_work work;
    struct cudnn_tensor x;
    cudnnSoftmaxAlgorithm_t algorithm;
    cudnnSoftmaxMode_t mode;
    float alpha, beta;
    const float *from, *dy;
    float *to;
};

/* The values of one softmax: `count` of them, `stride` apart, from `first` on. */
struct softmax_group {
    size_t first, count, stride;
};

/* Group `index` of the tensor, in CUDNN_SOFTMAX_MODE_CHANNEL one of each pixel. false: no such group. */
static bool softmax_group_of(const struct softmax_work *work, size_t index, struct softmax_group *out)
{
    const int *size = work->x.size;
    const size_t images = (size_t)size[0], channels = (size_t)size[1];
    const size_t plane = (size_t)size[2] * (size_t)size[3];
    if (work->mode == CUDNN_SOFTMAX_MODE_INSTANCE) {
        *out = (struct softmax_group){index * channels * plane, channels * plane, 1};
        return index < images;
    }
    *out = (struct softmax_group){index / plane * channels * plane + index % plane, channels, plane};
    return index < images * plane;
}

static cudnnStatus_t softmax_begin(struct softmax_work *work, const char *function, cudnnHandle_t handle,
                                   void (*run)(void *), cudnnSoftmaxAlgorithm_t algorithm,
                                   cudnnSoftmaxMode_t mode, const void *alpha, const void *beta,
                                   cudnnTensorDescriptor_t from, cudnnTensorDescriptor_t to)
{
    struct cudnn_tensor to_tensor;
    TRY(cudnn_begin(&work->work, function, handle, run));
    if ((int)algorithm < 0 || algorithm > CUDNN_SOFTMAX_LOG)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "algorithm %d does not exist", (int)algorithm);
    if ((int)mode < 0 || mode > CUDNN_SOFTMAX_MODE_CHANNEL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "mode %d does not exist", (int)mode);
    TRY(cudnn_factor(function, "alpha", alpha, &work->alpha));
    TRY(cudnn_factor(function, "beta", beta, &work->beta));
    TRY(cudnn_images_of(function, "the input's descriptor", from, &work->x));
    TRY(cudnn_images_of(function, "the output's descriptor", to, &to_tensor));
    work->algorithm = algorithm;
    work->mode = mode;
    return cudnn_same_sizes(function, "the input", &work->x, "the output", &to_tensor);
}

static void run_softmax(void *args)
{
    const struct softmax_work *work = args;
    const size_t elements = cudnn_elements(&work->x);
    double *x = cudnn_doubles(work->from, elements);
    struct softmax_group group;
    for (size_t index = 0; softmax_group_of(work, index, &group); index++) {
        const double total = ref_log_sum_exp(x + group.first, group.count, group.stride);
        for (size_t i = 0; i < group.count; i++) {
            double *value = &x[group.first + i * group.stride];
            *value = work->algorithm == CUDNN_SOFTMAX_LOG ? *value - total : exp(*value - total);
        }
    }
    cudnn_round(work->to, x, elements, work->alpha, work->beta);
    free(x);
}

/* x and y may be the same memory. */
cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algo, cudnnSoftmaxMode_t mode,
                                  const void *alpha, cudnnTensorDescriptor_t xDesc, const void *x,
                                  const void *beta, cudnnTensorDescriptor_t yDesc, void *y)
{
    ENTER();
    struct softmax_work work = {0};
    TRY(softmax_begin(&work, __func__, handle, run_softmax, algo, mode, alpha, beta, xDesc, yDesc));
    work.work.in_place = "x";
    TRY(cudnn_reads(&work.work, "x", work.from = x, cudnn_elements(&work.x)));
    TRY(cudnn_writes(&work.work, "y", work.to = y, cudnn_elements(&work.x)));
    return cudnn_queue(&work.work, sizeof work);
}

/* Log: dx = dy - exp(y) sum dy. Otherwise: dx = y (dy - sum y dy). */
static void run_softmax_backward(void *args)
{
    const struct softmax_work *work = args;
    const size_t elements = cudnn_elements(&work->x);
    const bool log = work->algorithm == CUDNN_SOFTMAX_LOG;
    double *y = cudnn_doubles(work->from, elements), *dy = cudnn_doubles(work->dy, elements);
    struct softmax_group group;
    for (size_t index = 0; softmax_group_of(work, index, &group); index++) {
        double sum = 0;
        for (size_t i = 0; i < group.count; i++) {
            const size_t at = group.first + i * group.stride;
            sum += log ? dy[at] : y[at] * dy[at];
        }
        for (size_t i = 0; i < group.count; i++) {
            const size_t at = group.first + i * group.stride;
            dy[at] = log ? dy[at] - exp(y[at]) * sum : y[at] * (dy[at] - sum);
        }
    }
    cudnn_round(work->to, dy, elements, work->alpha, work->beta);
    free(dy);
    free(y);
}

/* dy and dx may be the same memory. */
cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algo,
                                   cudnnSoftmaxMode_t mode, const void *alpha, cudnnTensorDescriptor_t yDesc,
                                   const void *y, cudnnTensorDescriptor_t dyDesc, const void *dy,
                                   const void *beta, cudnnTensorDescriptor_t dxDesc, void *dx)
{
    ENTER();
    struct softmax_work work = {0};
    struct cudnn_tensor gradient;
    TRY(softmax_begin(&work, __func__, handle, run_softmax_backward, algo, mode, alpha, beta, yDesc, dxDesc));
    TRY(cudnn_images_of(__func__, "dyDesc", dyDesc, &gradient));
    TRY(cudnn_same_sizes(__func__, "y", &work.x, "dy", &gradient));
    work.work.in_place = "dy";
    TRY(cudnn_reads(&work.work, "y", work.from = y, cudnn_elements(&work.x)));
    TRY(cudnn_reads(&work.work, "dy", work.dy = dy, cudnn_elements(&work.x)));
    TRY(cudnn_writes(&work.work, "dx", work.to = dx, cudnn_elements(&work.x)));
    return cudnn_queue(&work.work, sizeof work);
}
