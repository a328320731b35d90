/* The stand-in's pools, forward. */
#include "test/gpu/cudnn_stand_in.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct pool_work {
    struct cudnn_work work;
    struct cudnn_pooling pooling;
    struct cudnn_tensor x, y;
    float alpha, beta;
    const float *from; /* x */
    float *to;         /* y */
};

/* The part of one output's window that lies inside of the image: rows and columns first..end - 1. */
struct window {
    size_t plane; /* first element of the image's plane */
    int first[2], end[2];
};

static struct window window_of(const struct pool_work *work, size_t output)
{
    const struct cudnn_pooling *pooling = &work->pooling;
    const size_t width = (size_t)work->y.size[3], height = (size_t)work->y.size[2];
    const int position[2] = {(int)(output / width % height), (int)(output % width)};
    struct window window = {.plane =
                                output / width / height * (size_t)work->x.size[2] * (size_t)work->x.size[3]};
    for (int i = 0; i < 2; i++) {
        const int first = position[i] * pooling->stride[i] - pooling->padding[i];
        const int end = first + pooling->window[i];
        window.first[i] = first > 0 ? first : 0;
        window.end[i] = end < work->x.size[2 + i] ? end : work->x.size[2 + i];
    }
    return window;
}

static bool is_average(const struct pool_work *work)
{
    return work->pooling.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING ||
           work->pooling.mode == CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING;
}

/* What an average divides by. */
static double divisor(const struct pool_work *work, const struct window *window)
{
    if (work->pooling.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING)
        return (double)work->pooling.window[0] * work->pooling.window[1];
    return (double)(window->end[0] - window->first[0]) * (window->end[1] - window->first[1]);
}

static size_t element_of(const struct pool_work *work, const struct window *window, int row, int column)
{
    return window->plane + (size_t)row * (size_t)work->x.size[3] + (size_t)column;
}

static cudnnStatus_t pool_begin(struct pool_work *work, const char *function, cudnnHandle_t handle,
                                void (*run)(void *), cudnnPoolingDescriptor_t pooling, const void *alpha,
                                const void *beta, cudnnTensorDescriptor_t x_descriptor,
                                cudnnTensorDescriptor_t y_descriptor)
{
    TRY(cudnn_begin(&work->work, function, handle, run));
    TRY(cudnn_pooling_of(function, pooling, &work->pooling));
    TRY(cudnn_factor(function, "alpha", alpha, &work->alpha));
    TRY(cudnn_factor(function, "beta", beta, &work->beta));
    TRY(cudnn_images_of(function, "xDesc", x_descriptor, &work->x));
    TRY(cudnn_images_of(function, "yDesc", y_descriptor, &work->y));
    struct cudnn_tensor expected = {.rank = 4, .size = {work->x.size[0], work->x.size[1]}};
    for (int i = 0; i < 2; i++) {
        const int room = work->x.size[2 + i] + 2 * work->pooling.padding[i] - work->pooling.window[i];
        if (room < 0)
            return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "the window is larger than the image");
        expected.size[2 + i] = room / work->pooling.stride[i] + 1;
    }
    return cudnn_same_sizes(function, "y", &work->y, "the pool's output", &expected);
}

/* With CUDNN_PROPAGATE_NAN one NaN makes the maximum a NaN, otherwise it is passed over. */
static double maximum(const struct pool_work *work, const struct window *window)
{
    double best = -INFINITY;
    for (int row = window->first[0]; row < window->end[0]; row++)
        for (int column = window->first[1]; column < window->end[1]; column++) {
            const double x = (double)work->from[element_of(work, window, row, column)];
            if (isnan(x) && work->pooling.nan == CUDNN_PROPAGATE_NAN)
                return x;
            best = x > best ? x : best;
        }
    return best;
}

static double average(const struct pool_work *work, const struct window *window)
{
    double sum = 0;
    for (int row = window->first[0]; row < window->end[0]; row++)
        for (int column = window->first[1]; column < window->end[1]; column++)
            sum += (double)work->from[element_of(work, window, row, column)];
    return sum / divisor(work, window);
}

static void run_pool(void *args)
{
    const struct pool_work *work = args;
    const size_t outputs = cudnn_elements(&work->y);
    double *y = cudnn_doubles(NULL, outputs);
    for (size_t i = 0; i < outputs; i++) {
        const struct window window = window_of(work, i);
        y[i] = is_average(work) ? average(work, &window) : maximum(work, &window);
    }
    cudnn_round(work->to, y, outputs, work->alpha, work->beta);
    free(y);
}

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t poolingDesc,
                                  const void *alpha, cudnnTensorDescriptor_t xDesc, const void *x,
                                  const void *beta, cudnnTensorDescriptor_t yDesc, void *y)
{
    ENTER();
    struct pool_work work = {0};
    TRY(pool_begin(&work, __func__, handle, run_pool, poolingDesc, alpha, beta, xDesc, yDesc));
    TRY(cudnn_reads(&work.work, "x", work.from = x, cudnn_elements(&work.x)));
    TRY(cudnn_writes(&work.work, "y", work.to = y, cudnn_elements(&work.y)));
    return cudnn_queue(&work.work, sizeof work);
}
