/* Batch norm, ReLU, add and log-softmax. */
#include "kernels/cuda/cuda_internal.h"

static enum status describe_tensor(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                                   struct error *error)
{
    const struct image_sizes *s = &plan->key.image;
    (void)cuda;
    TRY(cuda_describe(&plan->x, s->n, s->c, s->window.size[0], s->window.size[1], about, error));
    return cuda_describe(&plan->channels, 1, s->c, 1, 1, about, error);
}

/* The plan of a tensor (n, c, h, w). */
static enum status plan_of(struct cuda *cuda, const uint32_t size[4], const struct tensor *about,
                           struct plan **out, struct error *error)
{
    struct plan_key key = {};
    key.kind = PLAN_TENSOR;
    key.image.n = size[0];
    key.image.c = size[1];
    key.image.window.size[0] = size[2];
    key.image.window.size[1] = size[3];
    return cuda_plan(cuda, &key, describe_tensor, about, out, error);
}

/* ---- relu ---- */

/* y = max(0, x); y may be x. */
static enum status queue_relu(struct cuda *cuda, const struct tensor *x, const struct tensor *y,
                              struct error *error)
{
    const float *from = cuda_floats(x);
    float *to = cuda_floats(y);
    return cuda_each(cuda, cuda_elements(x), "launch of relu", x, error,
                     [=] __device__(size_t i) { to[i] = element_relu(from[i]); });
}

enum status cuda_relu(struct backend *backend, struct op_call *call, struct error *error)
{
    TRY(cuda_output(call, call->out[0], error));
    return queue_relu(cuda_of(backend), call->in[0], call->out[0], error);
}

/* The gradient of the call's output before its ReLU, into `to`. It is computed from the output alone: the
 * tape has released the input, for which cuDNN's call asks. */
static enum status relu_backward(struct cuda *cuda, const struct op_call *call, float *to,
                                 struct error *error)
{
    const struct tensor *about = call->out[0];
    const float *y = cuda_floats(about), *dy = cuda_floats(call->dout[0]);
    return cuda_each(cuda, cuda_elements(about), "launch of relu backward", about, error,
                     [=] __device__(size_t i) { to[i] = element_relu_backward(y[i], dy[i]); });
}

/* With attributes.relu, the same in scratch; else *dy is the output's gradient itself. */
static enum status unfused_gradient(struct cuda *cuda, struct op_call *call, void **dy, struct error *error)
{
    const struct tensor *y = call->out[0];
    *dy = call->dout[0]->data;
    if (!call->attributes.relu)
        return STATUS_OK;
    TRY(cuda_scratch(call, cuda_elements(y) * sizeof(float), dy, y, error));
    return relu_backward(cuda, call, (float *)*dy, error);
}

static void release_gradient(struct op_call *call, void *dy)
{
    if (call->attributes.relu)
        arena_release(call->arena, dy);
}

enum status cuda_relu_op_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    TRY(cuda_output(call, call->din[0], error));
    return relu_backward(cuda_of(backend), call, cuda_floats(call->din[0]), error);
}

/* ---- add ---- */

enum status cuda_add(struct backend *backend, struct op_call *call, struct error *error)
{
    const float *a = cuda_floats(call->in[0]), *b = cuda_floats(call->in[1]);
    const bool relu = call->attributes.relu;
    TRY(cuda_output(call, call->out[0], error));
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of add", call->in[0], error,
                     [=] __device__(size_t i) { y[i] = relu ? element_relu(a[i] + b[i]) : a[i] + b[i]; });
}

enum status cuda_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    for (int i = 0; i < 2; i++) {
        struct tensor *din = call->din[i];
        if (din != NULL && call->attributes.relu) {
            TRY(cuda_output(call, din, error));
            TRY(relu_backward(cuda, call, cuda_floats(din), error));
        } else if (din != NULL)
            cuda_same_memory(call, din, call->dout[0]);
    }
    return STATUS_OK;
}

/* ---- batch norm ---- */

enum { SAVED_MEAN, SAVED_INVERSE }; /* of the standard deviation, epsilon included */

static enum status normalize_training(struct cuda *cuda, struct op_call *call, const struct plan *plan,
                                      struct error *error)
{
    const struct tensor *x = call->in[0];
    const size_t bytes = x->shape.size[1] * sizeof(float);
    for (int i = 1; i <= 2; i++) {
        TRY(cuda_output(call, call->out[i], error));
        /* cuDNN replaces them by a moving average with a factor of 1, through which an old NaN would pass. */
        CUDA_TRY(x, cudaMemsetAsync, call->out[i]->data, 0, bytes, cuda->stream);
    }
    if (call->keep) {
        TRY(cuda_saved(call, SAVED_MEAN, bytes, error));
        TRY(cuda_saved(call, SAVED_INVERSE, bytes, error));
    }
    CUDNN_TRY(x, cudnnBatchNormalizationForwardTraining, cuda->cudnn, CUDNN_BATCHNORM_SPATIAL, &ONE, &ZERO,
              plan->x, x->data, plan->x, call->out[0]->data, plan->channels, call->in[1]->data,
              call->in[2]->data, 1.0, call->out[1]->data, call->out[2]->data, call->attributes.epsilon,
              call->saved[SAVED_MEAN].data, call->saved[SAVED_INVERSE].data);
    return STATUS_OK;
}

enum status cuda_batch_norm(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct plan *plan;
    TRY(plan_of(cuda, x->shape.size, x, &plan, error));
    TRY(cuda_output(call, call->out[0], error));
    if (call->attributes.training)
        TRY(normalize_training(cuda, call, plan, error));
    else
        CUDNN_TRY(x, cudnnBatchNormalizationForwardInference, cuda->cudnn, CUDNN_BATCHNORM_SPATIAL, &ONE,
                  &ZERO, plan->x, x->data, plan->x, call->out[0]->data, plan->channels, call->in[1]->data,
                  call->in[2]->data, call->in[3]->data, call->in[4]->data, call->attributes.epsilon);
    return call->attributes.relu ? queue_relu(cuda, call->out[0], call->out[0], error) : STATUS_OK;
}

/* cuDNN computes all three gradients: one that the caller does not want goes into scratch. */
enum status cuda_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct plan *plan;
    void *dy, *gradient[3];
    TRY(plan_of(cuda, x->shape.size, x, &plan, error));
    for (int i = 0; i < 3; i++) {
        const struct tensor *in = call->in[i];
        if (call->din[i] == NULL) {
            TRY(cuda_scratch(call, cuda_elements(in) * sizeof(float), &gradient[i], in, error));
            continue;
        }
        TRY(cuda_output(call, call->din[i], error));
        gradient[i] = call->din[i]->data;
    }
    TRY(unfused_gradient(cuda, call, &dy, error));
    CUDNN_TRY(x, cudnnBatchNormalizationBackward, cuda->cudnn, CUDNN_BATCHNORM_SPATIAL, &ONE, &ZERO, &ONE,
              &ZERO, plan->x, x->data, plan->x, dy, plan->x, gradient[0], plan->channels, call->in[1]->data,
              gradient[1], gradient[2], call->attributes.epsilon, call->saved[SAVED_MEAN].data,
              call->saved[SAVED_INVERSE].data);
    for (int i = 0; i < 3; i++)
        if (call->din[i] == NULL)
            arena_release(call->arena, gradient[i]);
    release_gradient(call, dy);
    return STATUS_OK;
}

/* ---- log-softmax ---- */

/* (rows, classes, 1, 1): the classes are cuDNN's channels. */
static enum status log_softmax_plan_of(struct cuda *cuda, const struct tensor *x, struct plan **out,
                                       struct error *error)
{
    const uint32_t classes = x->shape.size[x->shape.rank - 1];
    const uint32_t size[4] = {(uint32_t)(cuda_elements(x) / classes), classes, 1, 1};
    return plan_of(cuda, size, x, out, error);
}

enum status cuda_log_softmax(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct plan *plan;
    TRY(cuda_output(call, call->out[0], error));
    TRY(log_softmax_plan_of(cuda, x, &plan, error));
    CUDNN_TRY(x, cudnnSoftmaxForward, cuda->cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE,
              plan->x, x->data, &ZERO, plan->x, call->out[0]->data);
    return STATUS_OK;
}

enum status cuda_log_softmax_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *y = call->out[0];
    struct plan *plan;
    TRY(cuda_output(call, call->din[0], error));
    TRY(log_softmax_plan_of(cuda, y, &plan, error));
    CUDNN_TRY(y, cudnnSoftmaxBackward, cuda->cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE,
              plan->x, y->data, plan->x, call->dout[0]->data, &ZERO, plan->x, call->din[0]->data);
    return STATUS_OK;
}
