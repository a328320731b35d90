/* Pooling. The backward passes are our own kernels. cuDNN does not say which of several equal maxima receives
 * the gradient, and after a ReLU equal ones are common. For a mean cuDNN asks for input and output, which the
 * tape has released, and does not say whether it reads them. */
#include "kernels/cuda/cuda_internal.h"

struct window cuda_window(const struct op_call *call)
{
    const struct op_attributes *a = &call->attributes;
    struct window window = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}};
    for (int i = 0; i < 2 && call->op != OP_LINEAR; i++) {
        window.size[i] = call->in[0]->shape.size[2 + i];
        window.out[i] = call->out[0]->shape.size[2 + i];
        window.kernel[i] = call->op == OP_CONV2D ? call->in[1]->shape.size[2 + i] : a->kernel[i];
        window.stride[i] = a->stride[i];
        window.padding[i] = a->padding[i];
    }
    return window;
}

static enum status describe_pool(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                                 struct error *error)
{
    const struct image_sizes *s = &plan->key.image;
    const struct window *w = &s->window;
    const cudnnPoolingMode_t mode = plan->key.kind == PLAN_MAX_POOL
                                        ? CUDNN_POOLING_MAX_DETERMINISTIC
                                        : CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
    (void)cuda;
    TRY(cuda_describe(&plan->x, s->n, s->c, w->size[0], w->size[1], about, error));
    TRY(cuda_describe(&plan->y, s->n, s->c, w->out[0], w->out[1], about, error));
    CUDNN_TRY(about, cudnnCreatePoolingDescriptor, &plan->pooling);
    CUDNN_TRY(about, cudnnSetPooling2dDescriptor, plan->pooling, mode, CUDNN_PROPAGATE_NAN, (int)w->kernel[0],
              (int)w->kernel[1], (int)w->padding[0], (int)w->padding[1], (int)w->stride[0],
              (int)w->stride[1]);
    return STATUS_OK;
}

static enum status pool_plan_of(struct cuda *cuda, const struct op_call *call, struct plan **out,
                                struct error *error)
{
    const uint32_t *x = call->in[0]->shape.size;
    struct plan_key key = {};
    key.kind = call->op == OP_MAX_POOL ? PLAN_MAX_POOL : PLAN_AVG_POOL;
    key.image = {x[0], x[1], x[1], cuda_window(call)};
    return cuda_plan(cuda, &key, describe_pool, call->in[0], out, error);
}

enum status cuda_pool(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct plan *plan;
    TRY(pool_plan_of(cuda, call, &plan, error));
    CUDNN_TRY(x, cudnnPoolingForward, cuda->cudnn, plan->pooling, &ONE, plan->x, x->data, &ZERO, plan->y,
              call->out[0]->data);
    return STATUS_OK;
}

/* ---- backward ---- */

/* The part of window `o` along dimension d that lies in the input: [*begin, *end). */
static __device__ void window_inputs(const struct window *pool, int d, uint32_t o, uint32_t *begin,
                                     uint32_t *end)
{
    const uint32_t first = o * pool->stride[d], last = first + pool->kernel[d];
    *begin = first > pool->padding[d] ? first - pool->padding[d] : 0;
    *end = last - pool->padding[d] < pool->size[d] ? last - pool->padding[d] : pool->size[d];
}

/* Which element of the image x has the first maximum of window (o0, o1), in row-major order. */
static __device__ size_t first_maximum(const struct window *pool, const float *x, uint32_t o0, uint32_t o1)
{
    uint32_t top, bottom, left, right;
    window_inputs(pool, 0, o0, &top, &bottom);
    window_inputs(pool, 1, o1, &left, &right);
    size_t best = (size_t)top * pool->size[1] + left;
    for (uint32_t r = top; r < bottom; r++)
        for (uint32_t c = left; c < right; c++) {
            const size_t at = (size_t)r * pool->size[1] + c;
            if (x[at] > x[best])
                best = at;
        }
    return best;
}

/* The first window along dimension d that holds input i, and the one past the last. */
static __device__ void windows_of(const struct window *pool, int d, uint32_t i, uint32_t *begin,
                                  uint32_t *end)
{
    const uint32_t at = i + pool->padding[d], past = at / pool->stride[d] + 1;
    *begin = at >= pool->kernel[d] ? (at - pool->kernel[d]) / pool->stride[d] + 1 : 0;
    *end = past < pool->out[d] ? past : pool->out[d];
}

/* Of element i of (images, height, width): the sum of the gradients of the windows that hold it; of a
 * maximum, of those whose first maximum it is in x. NULL: a mean. */
static __device__ float window_gradients(const struct window *pool, const float *x, const float *dy, size_t i)
{
    const size_t plane = (size_t)pool->size[0] * pool->size[1], image = i / plane, at = i % plane;
    const size_t out_plane = (size_t)pool->out[0] * pool->out[1];
    uint32_t top, bottom, left, right;
    float sum = 0;
    windows_of(pool, 0, (uint32_t)(at / pool->size[1]), &top, &bottom);
    windows_of(pool, 1, (uint32_t)(at % pool->size[1]), &left, &right);
    for (uint32_t o0 = top; o0 < bottom; o0++)
        for (uint32_t o1 = left; o1 < right; o1++)
            if (x == NULL || first_maximum(pool, x + image * plane, o0, o1) == at)
                sum += dy[image * out_plane + (size_t)o0 * pool->out[1] + o1];
    return sum;
}

/* A mean's divisor counts the padding. */
enum status cuda_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct window window = cuda_window(call);
    const bool is_max = call->op == OP_MAX_POOL;
    const float *x = is_max ? cuda_floats(call->in[0]) : NULL, *dy = cuda_floats(call->dout[0]);
    const float divisor = is_max ? 1 : (float)(window.kernel[0] * window.kernel[1]);
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->din[0]),
                     is_max ? "launch of max pool backward" : "launch of avg pool backward", call->in[0],
                     error,
                     [=] __device__(size_t i) { dx[i] = window_gradients(&window, x, dy, i) / divisor; });
}
