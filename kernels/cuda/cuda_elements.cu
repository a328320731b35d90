/* ReLU, tanh, add, reshape and dropout. A dropout's backward draws the mask again: a Philox block costs less
 * than storing its bits. */
#include "kernels/cuda/cuda_internal.h"

/* ---- relu, tanh ---- */

enum status cuda_activation(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *about = call->in[0];
    const bool is_tanh = call->op == OP_TANH;
    const float *x = cuda_floats(about);
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), cuda_elements(about), is_tanh ? "launch of tanh" : "launch of relu",
                     about, error,
                     [=] __device__(size_t i) { y[i] = is_tanh ? tanhf(x[i]) : device_relu(x[i]); });
}

/* Computes the input's gradient from the output alone: the tape has released the input, for which cuDNN's
 * call asks. An addition with a ReLU writes it for the first input that wants one. */
enum status cuda_activation_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *about = call->out[0];
    const bool is_tanh = call->op == OP_TANH;
    const float *y = cuda_floats(about), *dy = cuda_floats(call->dout[0]);
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(about),
                     is_tanh ? "launch of tanh backward" : "launch of relu backward", about, error,
                     [=] __device__(size_t i) {
                         dx[i] = is_tanh ? dy[i] * (1 - y[i] * y[i]) : device_relu_backward(y[i], dy[i]);
                     });
}

/* ---- add ---- */

enum status cuda_add(struct backend *backend, struct op_call *call, struct error *error)
{
    const float *a = cuda_floats(call->in[0]), *b = cuda_floats(call->in[1]);
    const bool relu = call->attributes.relu;
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of add", call->in[0], error,
                     [=] __device__(size_t i) { y[i] = relu ? device_relu(a[i] + b[i]) : a[i] + b[i]; });
}

/* Both gradients are the same numbers, in one block: without a ReLU the output's. */
enum status cuda_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *gradient = call->attributes.relu ? NULL : call->dout[0];
    for (int i = 0; i < 2; i++) {
        struct tensor *din = call->din[i];
        struct op_call relu = *call;
        if (din != NULL && gradient == NULL) {
            relu.din[0] = din;
            TRY(cuda_output(call, din, error));
            TRY(cuda_activation_backward(backend, &relu, error));
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

/* ---- dropout (kernels/op.h, "Draws") ---- */

enum { GROUP = 128, GROUP_BLOCKS = 16 }; /* elements, and Philox blocks that draw for them */

struct dropout {
    uint64_t seed;
    uint32_t word[3];    /* where `rows` is NULL */
    const int32_t *rows; /* (R, 3) or NULL */
    uint32_t width;      /* elements of a row; of the whole tensor where `rows` is NULL */
    uint32_t blocks;     /* Philox blocks of a row */
    uint32_t bound;      /* round(65536 p), at which an element's 16 bits begin to keep it */
    float scale;         /* 1 / (1 - p) */
    bool relu;           /* of x, before the mask */
};

/* Thread i of R blocks: the up to 8 elements for which one Philox block draws, each by half a word. */
static __device__ void drop(const struct dropout *d, size_t i, const float *x, float *y)
{
    const uint32_t block = (uint32_t)(i % d->blocks);
    const size_t row = i / d->blocks;
    uint32_t word[3];
    for (int k = 0; k < 3; k++)
        word[k] = d->rows != NULL ? (uint32_t)d->rows[3 * row + k] : d->word[k];
    const philox4x32_ctr_t drawn = device_philox(d->seed, word, RNG_DROPOUT, block);
    for (uint32_t v = 0; v < 8; v++) {
        const uint32_t j = block / GROUP_BLOCKS * GROUP + GROUP_BLOCKS * v + block % GROUP_BLOCKS;
        if (j >= d->width)
            continue;
        const bool keeps = (drawn.v[v / 2] >> 16 * (v % 2) & 0xffff) >= d->bound;
        const float from = x[row * d->width + j];
        y[row * d->width + j] = keeps ? (d->relu ? device_relu(from) : from) * d->scale : 0;
    }
}

/* The gradient is the same function of the output's gradient: the mask is drawn again. */
static enum status apply_mask(struct cuda *cuda, const struct op_call *call, const struct tensor *x,
                              const struct tensor *y, struct error *error)
{
    const struct op_attributes *a = &call->attributes;
    const struct tensor *rows = call->in[1];
    const uint32_t row_count = rows != NULL ? rows->shape.size[0] : 1;
    struct dropout dropout = {};
    dropout.seed = a->draw.seed;
    for (int i = 0; i < 3; i++)
        dropout.word[i] = a->draw.word[i];
    dropout.rows = cuda_ints(rows);
    dropout.width = (uint32_t)(cuda_elements(x) / row_count);
    dropout.blocks = (dropout.width + GROUP - 1) / GROUP * GROUP_BLOCKS;
    dropout.bound = (uint32_t)lrint(65536 * a->dropout);
    dropout.scale = (float)(1 / (1 - a->dropout));
    dropout.relu = a->relu; // cuda_policy.cu's: the tape has it apart
    const float *from = cuda_floats(x);
    float *to = cuda_floats(y);
    return cuda_each(cuda, (size_t)row_count * dropout.blocks, "launch of dropout", x, error,
                     [=] __device__(size_t i) { drop(&dropout, i, from, to); });
}

enum status cuda_dropout(struct backend *backend, struct op_call *call, struct error *error)
{
    return apply_mask(cuda_of(backend), call, call->in[0], call->out[0], error);
}

enum status cuda_dropout_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return apply_mask(cuda_of(backend), call, call->dout[0], call->din[0], error);
}
