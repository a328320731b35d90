/* Pooling. The backward passes are our own kernels. cuDNN does not say which of several equal maxima receives
 * the gradient, and after a ReLU equal ones are common. For a mean cuDNN asks for input and output, which the
 * tape has released, and does not say whether it reads them. */
#include "kernels/cuda/cuda_internal.h"

struct element_window cuda_window(const struct op_call *call)
{
    const struct op_attributes *a = &call->attributes;
    struct element_window window = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}};
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
    const struct element_window *w = &s->window;
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

static enum status plan_of(struct cuda *cuda, const struct op_call *call, struct plan **out,
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
    TRY(cuda_output(call, call->out[0], error));
    TRY(plan_of(cuda, call, &plan, error));
    CUDNN_TRY(x, cudnnPoolingForward, cuda->cudnn, plan->pooling, &ONE, plan->x, x->data, &ZERO, plan->y,
              call->out[0]->data);
    return STATUS_OK;
}

enum status cuda_max_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct element_window window = cuda_window(call);
    const float *x = cuda_floats(call->in[0]), *dy = cuda_floats(call->dout[0]);
    TRY(cuda_output(call, call->din[0], error));
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of max pool backward", call->in[0],
                     error,
                     [=] __device__(size_t i) { dx[i] = element_max_pool_backward(&window, x, dy, i); });
}

enum status cuda_avg_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct element_window window = cuda_window(call);
    const float *dy = cuda_floats(call->dout[0]);
    TRY(cuda_output(call, call->din[0], error));
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of avg pool backward", call->in[0],
                     error, [=] __device__(size_t i) { dx[i] = element_avg_pool_backward(&window, dy, i); });
}
