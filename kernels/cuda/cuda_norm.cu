/* Batch norm, ReLU, add and log-softmax. */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>

/* Plans of one or two tensor descriptors. */
struct tensor_plan {
    struct plan plan;
    cudnnTensorDescriptor_t x;
    cudnnTensorDescriptor_t channels; /* batch norm: (1, c, 1, 1), as cuDNN derives it */
};

static void tensor_plan_destroy(struct plan *plan)
{
    struct tensor_plan *tensors = (struct tensor_plan *)plan;
    if (tensors->x != NULL)
        cudnnDestroyTensorDescriptor(tensors->x);
    if (tensors->channels != NULL)
        cudnnDestroyTensorDescriptor(tensors->channels);
    free(tensors);
}

static enum status derive_channels(struct tensor_plan *plan, const struct tensor *about, struct error *error)
{
    CUDNN_TRY(about, cudnnCreateTensorDescriptor, &plan->channels);
    CUDNN_TRY(about, cudnnDeriveBNTensorDescriptor, plan->channels, plan->x, CUDNN_BATCHNORM_SPATIAL);
    return STATUS_OK;
}

/* The plan of a 4-d tensor of these sizes. */
static enum status tensor_plan_of(struct cuda *cuda, enum plan_kind kind, const uint32_t size[4],
                                  const struct tensor *about, struct tensor_plan **out, struct error *error)
{
    const struct plan_key key = {(uint32_t)kind, {size[0], size[1], size[2], size[3]}};
    struct plan *plan = cuda_plan_find(cuda, &key);
    *out = (struct tensor_plan *)plan;
    if (plan != NULL)
        return STATUS_OK;
    plan = cuda_plan_new(sizeof **out, tensor_plan_destroy);
    if (plan == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a tensor's plan");
    *out = (struct tensor_plan *)plan;
    enum status status = cuda_describe(&(*out)->x, size[0], size[1], size[2], size[3], about, error);
    if (status == STATUS_OK && kind == PLAN_BATCH_NORM)
        status = derive_channels(*out, about, error);
    if (status != STATUS_OK) {
        plan->destroy(plan);
        return status;
    }
    cuda_plan_keep(cuda, &key, plan);
    return STATUS_OK;
}

/* The descriptor of a tensor whose shape does not matter. */
static enum status flat_plan_of(struct cuda *cuda, const struct tensor *tensor, struct tensor_plan **out,
                                struct error *error)
{
    const uint32_t size[4] = {1, 1, 1, (uint32_t)cuda_elements(tensor)};
    return tensor_plan_of(cuda, PLAN_FLAT, size, tensor, out, error);
}

/* ---- relu ---- */

static enum status activate(struct cuda *cuda, const struct tensor *x, void *y, struct error *error)
{
    struct tensor_plan *plan;
    TRY(flat_plan_of(cuda, x, &plan, error));
    CUDNN_TRY(x, cudnnActivationForward, cuda->cudnn, cuda->relu, &ONE, plan->x, x->data, &ZERO, plan->x, y);
    return STATUS_OK;
}

enum status cuda_relu_in_place(struct cuda *cuda, const struct tensor *y, struct error *error)
{
    return activate(cuda, y, y->data, error);
}

enum status cuda_relu(struct backend *backend, struct op_call *call, struct error *error)
{
    TRY(cuda_output(call, call->out[0], error));
    return activate(cuda_of(backend), call->in[0], call->out[0]->data, error);
}

/* Of the output alone: cuDNN's call asks for the input too, which is gone by then. */
static __global__ void relu_backward_kernel(size_t count, const float *y, const float *dy, float *to)
{
    const size_t i = cuda_thread();
    if (i < count)
        to[i] = element_relu_backward(y[i], dy[i]);
}

enum status cuda_relu_backward(struct cuda *cuda, size_t count, const float *y, const float *dy, float *to,
                               const struct tensor *about, struct error *error)
{
    relu_backward_kernel<<<cuda_blocks(count), THREADS, 0, cuda->stream>>>(count, y, dy, to);
    LAUNCH_TRY(about, "relu backward");
    return STATUS_OK;
}

enum status cuda_relu_op_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *y = call->out[0];
    TRY(cuda_output(call, call->din[0], error));
    return cuda_relu_backward(cuda_of(backend), cuda_elements(y), cuda_floats(y), cuda_floats(call->dout[0]),
                              cuda_floats(call->din[0]), y, error);
}

/* ---- add ---- */

enum status cuda_add(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *a = call->in[0], *b = call->in[1];
    struct tensor_plan *plan;
    TRY(cuda_output(call, call->out[0], error));
    TRY(flat_plan_of(cuda, a, &plan, error));
    CUDNN_TRY(a, cudnnOpTensor, cuda->cudnn, cuda->add, &ONE, plan->x, a->data, &ONE, plan->x, b->data, &ZERO,
              plan->x, call->out[0]->data);
    return call->attributes.relu ? cuda_relu_in_place(cuda, call->out[0], error) : STATUS_OK;
}

/* One summand's gradient is the sum's: the same memory, where the caller leaves that to us. */
static enum status add_backward_of(struct cuda *cuda, struct op_call *call, struct tensor *din,
                                   struct error *error)
{
    const struct tensor *y = call->out[0], *dy = call->dout[0];
    if (call->attributes.relu) {
        TRY(cuda_output(call, din, error));
        return cuda_relu_backward(cuda, cuda_elements(y), cuda_floats(y), cuda_floats(dy), cuda_floats(din),
                                  y, error);
    }
    if (din->data == NULL) {
        din->data = dy->data;
        din->bytes = dy->bytes;
        din->layout = NULL;
        return STATUS_OK;
    }
    CUDA_TRY(dy, cudaMemcpyAsync, din->data, dy->data, cuda_elements(dy) * sizeof(float),
             cudaMemcpyDeviceToDevice, cuda->stream);
    return STATUS_OK;
}

enum status cuda_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    for (int i = 0; i < 2; i++)
        if (call->din[i] != NULL)
            TRY(add_backward_of(cuda_of(backend), call, call->din[i], error));
    return STATUS_OK;
}

/* ---- batch norm ---- */

enum { SAVED_MEAN, SAVED_INVERSE }; /* of the standard deviation, epsilon included */

static enum status normalize_training(struct cuda *cuda, struct op_call *call, const struct tensor_plan *plan,
                                      struct error *error)
{
    const struct tensor *x = call->in[0];
    const size_t bytes = x->shape.size[1] * sizeof(float);
    for (int i = 1; i <= 2; i++) {
        TRY(cuda_output(call, call->out[i], error));
        /* cuDNN moves them by a factor of 1, which leaves nothing of what was there but a NaN. */
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
    struct tensor_plan *plan;
    TRY(tensor_plan_of(cuda, PLAN_BATCH_NORM, x->shape.size, x, &plan, error));
    TRY(cuda_output(call, call->out[0], error));
    if (call->attributes.training)
        TRY(normalize_training(cuda, call, plan, error));
    else
        CUDNN_TRY(x, cudnnBatchNormalizationForwardInference, cuda->cudnn, CUDNN_BATCHNORM_SPATIAL, &ONE,
                  &ZERO, plan->x, x->data, plan->x, call->out[0]->data, plan->channels, call->in[1]->data,
                  call->in[2]->data, call->in[3]->data, call->in[4]->data, call->attributes.epsilon);
    return call->attributes.relu ? cuda_relu_in_place(cuda, call->out[0], error) : STATUS_OK;
}

/* cuDNN computes all three gradients: those that nobody wants go into scratch. */
struct batch_norm_gradients {
    void *dy, *dx, *dweight, *dbias;
    void *scratch[4];
    int scratches;
};

static enum status gradient_place(struct op_call *call, uint32_t i, struct batch_norm_gradients *g,
                                  void **out, struct error *error)
{
    const struct tensor *in = call->in[i];
    if (call->din[i] != NULL) {
        TRY(cuda_output(call, call->din[i], error));
        *out = call->din[i]->data;
        return STATUS_OK;
    }
    TRY(cuda_scratch(call, cuda_elements(in) * sizeof(float), out, in, error));
    g->scratch[g->scratches++] = *out;
    return STATUS_OK;
}

static enum status gradient_places(struct cuda *cuda, struct op_call *call, struct batch_norm_gradients *g,
                                   struct error *error)
{
    const struct tensor *y = call->out[0];
    const size_t count = cuda_elements(y);
    TRY(gradient_place(call, 0, g, &g->dx, error));
    TRY(gradient_place(call, 1, g, &g->dweight, error));
    TRY(gradient_place(call, 2, g, &g->dbias, error));
    g->dy = call->dout[0]->data;
    if (!call->attributes.relu)
        return STATUS_OK;
    TRY(cuda_scratch(call, count * sizeof(float), &g->dy, y, error));
    g->scratch[g->scratches++] = g->dy;
    return cuda_relu_backward(cuda, count, cuda_floats(y), cuda_floats(call->dout[0]), (float *)g->dy, y,
                              error);
}

enum status cuda_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct batch_norm_gradients g = {};
    struct tensor_plan *plan;
    TRY(tensor_plan_of(cuda, PLAN_BATCH_NORM, x->shape.size, x, &plan, error));
    TRY(gradient_places(cuda, call, &g, error));
    CUDNN_TRY(x, cudnnBatchNormalizationBackward, cuda->cudnn, CUDNN_BATCHNORM_SPATIAL, &ONE, &ZERO, &ONE,
              &ZERO, plan->x, x->data, plan->x, g.dy, plan->x, g.dx, plan->channels, call->in[1]->data,
              g.dweight, g.dbias, call->attributes.epsilon, call->saved[SAVED_MEAN].data,
              call->saved[SAVED_INVERSE].data);
    for (int i = 0; i < g.scratches; i++)
        arena_release(call->arena, g.scratch[i]);
    return STATUS_OK;
}

/* ---- log-softmax ---- */

/* (rows, classes, 1, 1): the classes are cuDNN's channels. */
static enum status log_softmax_plan_of(struct cuda *cuda, const struct tensor *x, struct tensor_plan **out,
                                       struct error *error)
{
    const uint32_t classes = x->shape.size[x->shape.rank - 1];
    const uint32_t size[4] = {(uint32_t)(cuda_elements(x) / classes), classes, 1, 1};
    return tensor_plan_of(cuda, PLAN_LOG_SOFTMAX, size, x, out, error);
}

enum status cuda_log_softmax(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct tensor_plan *plan;
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
    struct tensor_plan *plan;
    TRY(cuda_output(call, call->din[0], error));
    TRY(log_softmax_plan_of(cuda, y, &plan, error));
    CUDNN_TRY(y, cudnnSoftmaxBackward, cuda->cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE,
              plan->x, y->data, plan->x, call->dout[0]->data, &ZERO, plan->x, call->din[0]->data);
    return STATUS_OK;
}
