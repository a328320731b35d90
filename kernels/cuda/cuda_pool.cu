/* Pooling. Max pooling's backward is our own kernel: cuDNN does not say which of several equal maxima
 * receives the gradient, and after a ReLU equal ones are common. */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>

struct pool_plan {
    struct plan plan;
    cudnnTensorDescriptor_t x, y;
    cudnnPoolingDescriptor_t pooling;
};

static void pool_plan_destroy(struct plan *plan)
{
    struct pool_plan *pool = (struct pool_plan *)plan;
    if (pool->x != NULL)
        cudnnDestroyTensorDescriptor(pool->x);
    if (pool->y != NULL)
        cudnnDestroyTensorDescriptor(pool->y);
    if (pool->pooling != NULL)
        cudnnDestroyPoolingDescriptor(pool->pooling);
    free(pool);
}

static enum status describe_pool(struct pool_plan *plan, const struct op_call *call, struct error *error)
{
    const struct tensor *about = call->in[0];
    const struct op_attributes *a = &call->attributes;
    const uint32_t *x = call->in[0]->shape.size, *y = call->out[0]->shape.size;
    const cudnnPoolingMode_t mode = call->op == OP_MAX_POOL ? CUDNN_POOLING_MAX_DETERMINISTIC
                                                            : CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
    TRY(cuda_describe(&plan->x, x[0], x[1], x[2], x[3], about, error));
    TRY(cuda_describe(&plan->y, y[0], y[1], y[2], y[3], about, error));
    CUDNN_TRY(about, cudnnCreatePoolingDescriptor, &plan->pooling);
    CUDNN_TRY(about, cudnnSetPooling2dDescriptor, plan->pooling, mode, CUDNN_PROPAGATE_NAN, (int)a->kernel[0],
              (int)a->kernel[1], (int)a->padding[0], (int)a->padding[1], (int)a->stride[0],
              (int)a->stride[1]);
    return STATUS_OK;
}

static enum status plan_of(struct cuda *cuda, const struct op_call *call, struct pool_plan **out,
                           struct error *error)
{
    const struct op_attributes *a = &call->attributes;
    const uint32_t *x = call->in[0]->shape.size;
    const struct plan_key key = {PLAN_POOL,
                                 {(uint32_t)call->op, x[0], x[1], x[2], x[3], a->kernel[0], a->kernel[1],
                                  a->stride[0], a->stride[1], a->padding[0], a->padding[1]}};
    struct plan *plan = cuda_plan_find(cuda, &key);
    *out = (struct pool_plan *)plan;
    if (plan != NULL)
        return STATUS_OK;
    plan = cuda_plan_new(sizeof **out, pool_plan_destroy);
    if (plan == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a pool's plan");
    *out = (struct pool_plan *)plan;
    enum status status = describe_pool(*out, call, error);
    if (status != STATUS_OK) {
        plan->destroy(plan);
        return status;
    }
    cuda_plan_keep(cuda, &key, plan);
    return STATUS_OK;
}

static enum status forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct pool_plan *plan;
    TRY(cuda_output(call, call->out[0], error));
    TRY(plan_of(cuda, call, &plan, error));
    CUDNN_TRY(x, cudnnPoolingForward, cuda->cudnn, plan->pooling, &ONE, plan->x, x->data, &ZERO, plan->y,
              call->out[0]->data);
    return STATUS_OK;
}

enum status cuda_max_pool(struct backend *backend, struct op_call *call, struct error *error)
{
    return forward(backend, call, error);
}

static __global__ void max_pool_backward_kernel(size_t count, struct element_pool pool, const float *x,
                                                const float *dy, float *dx)
{
    const size_t i = cuda_thread();
    if (i < count)
        dx[i] = element_max_pool_backward(&pool, x, dy, i);
}

enum status cuda_max_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *x = call->in[0];
    const size_t count = cuda_elements(x);
    struct element_pool pool;
    for (int i = 0; i < 2; i++) {
        pool.size[i] = x->shape.size[2 + i];
        pool.out[i] = call->out[0]->shape.size[2 + i];
        pool.kernel[i] = call->attributes.kernel[i];
        pool.stride[i] = call->attributes.stride[i];
        pool.padding[i] = call->attributes.padding[i];
    }
    TRY(cuda_output(call, call->din[0], error));
    max_pool_backward_kernel<<<cuda_blocks(count), THREADS, 0, cuda_of(backend)->stream>>>(
        count, pool, cuda_floats(x), cuda_floats(call->dout[0]), cuda_floats(call->din[0]));
    LAUNCH_TRY(x, "max pool backward");
    return STATUS_OK;
}

enum status cuda_avg_pool(struct backend *backend, struct op_call *call, struct error *error)
{
    return forward(backend, call, error);
}

/* cuDNN asks for input and output, which a mean's gradient does not depend on, and which are gone by then.
 * What has the right shape and is there stands for them: the gradients themselves. */
enum status cuda_avg_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *dy = call->dout[0];
    struct pool_plan *plan;
    TRY(cuda_output(call, call->din[0], error));
    TRY(plan_of(cuda, call, &plan, error));
    CUDNN_TRY(call->in[0], cudnnPoolingBackward, cuda->cudnn, plan->pooling, &ONE, plan->y, dy->data, plan->y,
              dy->data, plan->x, call->din[0]->data, &ZERO, plan->x, call->din[0]->data);
    return STATUS_OK;
}
