/* ReLU, tanh, add, reshape and dropout. A dropout's backward draws the mask again: a Philox block costs less
 * than storing its bits. */
#include "kernels/cuda/cuda_internal.h"

/* ---- relu ---- */

enum status cuda_relu(struct backend *backend, struct op_call *call, struct error *error)
{
    const float *x = cuda_floats(call->in[0]);
    TRY(cuda_output(call, call->out[0], error));
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of relu", call->in[0], error,
                     [=] __device__(size_t i) { y[i] = element_relu(x[i]); });
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

enum status cuda_relu_op_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    TRY(cuda_output(call, call->din[0], error));
    return relu_backward(cuda_of(backend), call, cuda_floats(call->din[0]), error);
}

/* ---- tanh ---- */

enum status cuda_tanh(struct backend *backend, struct op_call *call, struct error *error)
{
    const float *x = cuda_floats(call->in[0]);
    TRY(cuda_output(call, call->out[0], error));
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of tanh", call->in[0], error,
                     [=] __device__(size_t i) { y[i] = tanhf(x[i]); });
}

enum status cuda_tanh_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *out = call->out[0];
    const float *y = cuda_floats(out), *dy = cuda_floats(call->dout[0]);
    TRY(cuda_output(call, call->din[0], error));
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(out), "launch of tanh backward", out, error,
                     [=] __device__(size_t i) { dx[i] = element_tanh_backward(y[i], dy[i]); });
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

/* Both gradients are the same numbers, in one block. */
enum status cuda_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *gradient = call->attributes.relu ? NULL : call->dout[0];
    for (int i = 0; i < 2; i++) {
        struct tensor *din = call->din[i];
        if (din != NULL && gradient == NULL) {
            TRY(cuda_output(call, din, error));
            TRY(relu_backward(cuda_of(backend), call, cuda_floats(din), error));
            gradient = din;
        } else if (din != NULL)
            cuda_same_memory(call, din, gradient);
    }
    return STATUS_OK;
}

/* ---- reshape ---- */

enum status cuda_reshape(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    (void)error;
    cuda_same_memory(call, call->out[0], call->in[0]);
    return STATUS_OK;
}

enum status cuda_reshape_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    (void)error;
    cuda_same_memory(call, call->din[0], call->dout[0]);
    return STATUS_OK;
}

/* ---- dropout ---- */

static enum status apply_mask(struct cuda *cuda, const struct op_call *call, const struct tensor *x,
                              const struct tensor *y, struct error *error)
{
    const struct op_attributes *a = &call->attributes;
    const struct tensor *rows = call->in[1];
    const uint32_t row_count = rows != NULL ? rows->shape.size[0] : 1;
    struct element_dropout dropout = {};
    dropout.seed = a->draw.seed;
    for (int i = 0; i < 3; i++)
        dropout.word[i] = a->draw.word[i];
    dropout.rows = cuda_ints(rows);
    dropout.width = (uint32_t)(cuda_elements(x) / row_count);
    dropout.threshold = element_dropout_threshold(a->dropout);
    dropout.scale = (float)(1 / (1 - a->dropout));
    dropout.relu = a->relu; // cuda_policy.cu's: the tape has it apart
    const size_t count = (size_t)row_count * element_dropout_blocks(dropout.width);
    const float *from = cuda_floats(x);
    float *to = cuda_floats(y);
    return cuda_each(cuda, count, "launch of dropout", x, error,
                     [=] __device__(size_t i) { element_drop(&dropout, i, from, to); });
}

enum status cuda_dropout(struct backend *backend, struct op_call *call, struct error *error)
{
    TRY(cuda_output(call, call->out[0], error));
    return apply_mask(cuda_of(backend), call, call->in[0], call->out[0], error);
}

enum status cuda_dropout_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    TRY(cuda_output(call, call->din[0], error));
    return apply_mask(cuda_of(backend), call, call->dout[0], call->din[0], error);
}
