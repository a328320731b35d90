/* One LSTM layer by cuDNN's RNN calls, every sequence equally long.
 *
 * cuDNN wants all weights of a layer in one buffer, in its own order: eight matrices and eight biases (input
 * gate, forget gate, cell, output gate; first those of x, then those of h), which is PyTorch's order of
 * gates. cuDNN is asked once per shape for the offset of each; neighbours are then copied in one piece. The
 * standard algorithm is deterministic. */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>

enum { X, H0, C0, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH }; /* inputs */
enum { Y, HN, CN };                                         /* outputs */
enum { SAVED_RESERVE, SAVED_WEIGHTS };                      /* for the backward */
enum { GATES = 4, PIECES_MAX = 4 * GATES };

/* Bytes [from, from + bytes) of input `tensor` stand at `to` in cuDNN's buffer. */
struct piece {
    uint32_t tensor;
    size_t from, to, bytes;
};

struct lstm_plan {
    struct plan plan;
    cudnnRNNDescriptor_t rnn;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t state; /* of h and c alike */
    size_t weight_bytes, work_bytes, reserve_bytes;
    uint32_t pieces; /* 0: not asked yet */
    struct piece piece[PIECES_MAX];
};

struct lstm_sizes {
    uint32_t steps, batch, inputs, hidden;
    bool bias, training;
};

static struct lstm_sizes sizes_of(const struct op_call *call)
{
    const uint32_t *x = call->in[X]->shape.size;
    const struct lstm_sizes s = {
        x[0], x[1], x[2], call->in[WEIGHT_HH]->shape.size[1], call->in[BIAS_IH] != NULL, call->keep};
    return s;
}

static void lstm_plan_destroy(struct plan *plan)
{
    struct lstm_plan *lstm = (struct lstm_plan *)plan;
    if (lstm->rnn != NULL)
        cudnnDestroyRNNDescriptor(lstm->rnn);
    if (lstm->x != NULL)
        cudnnDestroyRNNDataDescriptor(lstm->x);
    if (lstm->y != NULL)
        cudnnDestroyRNNDataDescriptor(lstm->y);
    if (lstm->state != NULL)
        cudnnDestroyTensorDescriptor(lstm->state);
    free(lstm);
}

/* ---- plan ---- */

/* Packed: sequences of equal length leave no gaps, so that this is (steps, batch, width) as it lies. */
static enum status describe_data(cudnnRNNDataDescriptor_t *out, const struct lstm_sizes *s, uint32_t width,
                                 const struct tensor *about, struct error *error)
{
    int *lengths = (int *)malloc(s->batch * sizeof *lengths);
    if (lengths == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the lengths of %u sequences", s->batch);
    for (uint32_t i = 0; i < s->batch; i++)
        lengths[i] = (int)s->steps;
    cudnnStatus_t code = cudnnCreateRNNDataDescriptor(out);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetRNNDataDescriptor(*out, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
                                         (int)s->steps, (int)s->batch, (int)width, lengths, NULL);
    free(lengths);
    return code == CUDNN_STATUS_SUCCESS ? STATUS_OK
                                        : cudnn_failed(error, "cudnnSetRNNDataDescriptor", code, about);
}

static enum status describe_lstm(struct cuda *cuda, struct lstm_plan *plan, const struct lstm_sizes *s,
                                 const struct tensor *about, struct error *error)
{
    const int dims[3] = {1, (int)s->batch, (int)s->hidden};
    const int strides[3] = {(int)(s->batch * s->hidden), (int)s->hidden, 1};
    CUDNN_TRY(about, cudnnCreateRNNDescriptor, &plan->rnn);
    CUDNN_TRY(about, cudnnSetRNNDescriptor_v8, plan->rnn, CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM,
              s->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS, CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT,
              CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, (int32_t)s->inputs, (int32_t)s->hidden,
              (int32_t)s->hidden, 1, cuda->no_dropout, CUDNN_RNN_PADDED_IO_DISABLED);
    TRY(describe_data(&plan->x, s, s->inputs, about, error));
    TRY(describe_data(&plan->y, s, s->hidden, about, error));
    CUDNN_TRY(about, cudnnCreateTensorDescriptor, &plan->state);
    CUDNN_TRY(about, cudnnSetTensorNdDescriptor, plan->state, CUDNN_DATA_FLOAT, 3, dims, strides);
    CUDNN_TRY(about, cudnnGetRNNWeightSpaceSize, cuda->cudnn, plan->rnn, &plan->weight_bytes);
    CUDNN_TRY(about, cudnnGetRNNTempSpaceSizes, cuda->cudnn, plan->rnn,
              s->training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, plan->x, &plan->work_bytes,
              &plan->reserve_bytes);
    return STATUS_OK;
}

static enum status plan_of(struct cuda *cuda, const struct op_call *call, struct lstm_plan **out,
                           struct error *error)
{
    const struct lstm_sizes s = sizes_of(call);
    const struct plan_key key = {PLAN_LSTM, {s.steps, s.batch, s.inputs, s.hidden, s.bias, s.training}};
    struct plan *plan = cuda_plan_find(cuda, &key);
    *out = (struct lstm_plan *)plan;
    if (plan != NULL)
        return STATUS_OK;
    plan = cuda_plan_new(sizeof **out, lstm_plan_destroy);
    if (plan == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an LSTM layer's plan");
    *out = (struct lstm_plan *)plan;
    enum status status = describe_lstm(cuda, *out, &s, call->in[X], error);
    if (status != STATUS_OK) {
        plan->destroy(plan);
        return status;
    }
    cuda_plan_keep(cuda, &key, plan);
    return STATUS_OK;
}

/* ---- weights ---- */

/* Adds a piece, or makes the last one longer where it goes on on both sides. */
static enum status add_piece(struct lstm_plan *plan, uint32_t tensor, size_t from, size_t to, size_t bytes,
                             const struct tensor *about, struct error *error)
{
    struct piece *last = plan->pieces > 0 ? &plan->piece[plan->pieces - 1] : NULL;
    if (to > plan->weight_bytes || bytes > plan->weight_bytes - to)
        return cudnn_failed(error, "cudnnGetRNNWeightParams", CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE,
                            about);
    if (last != NULL && last->tensor == tensor && last->from + last->bytes == from &&
        last->to + last->bytes == to) {
        last->bytes += bytes;
        return STATUS_OK;
    }
    const struct piece piece = {tensor, from, to, bytes};
    plan->piece[plan->pieces++] = piece;
    return STATUS_OK;
}

/* Asks where everything lies in the buffer `weights`: matrices of x, of h, then the biases of each. */
static enum status find_pieces(struct cuda *cuda, struct lstm_plan *plan, const struct op_call *call,
                               void *weights, cudnnTensorDescriptor_t matrix, cudnnTensorDescriptor_t bias,
                               struct error *error)
{
    const struct lstm_sizes s = sizes_of(call);
    for (uint32_t part = 0; part < (s.bias ? 4 : 2); part++)
        for (uint32_t gate = 0; gate < GATES; gate++) {
            void *matrix_at = NULL, *bias_at = NULL;
            CUDNN_TRY(call->in[X], cudnnGetRNNWeightParams, cuda->cudnn, plan->rnn, 0, plan->weight_bytes,
                      weights, (int32_t)(part % 2 * GATES + gate), matrix, &matrix_at, bias, &bias_at);
            const uint32_t columns = part >= 2 ? 1 : part == 0 ? s.inputs : s.hidden;
            const size_t bytes = (size_t)s.hidden * columns * sizeof(float);
            const char *at = (const char *)(part < 2 ? matrix_at : bias_at);
            TRY(add_piece(plan, WEIGHT_IH + part, gate * bytes, (size_t)(at - (const char *)weights), bytes,
                          call->in[X], error));
        }
    return STATUS_OK;
}

static enum status plan_pieces(struct cuda *cuda, struct lstm_plan *plan, const struct op_call *call,
                               void *weights, struct error *error)
{
    cudnnTensorDescriptor_t matrix = NULL, bias = NULL;
    if (plan->pieces > 0)
        return STATUS_OK;
    CUDNN_TRY(call->in[X], cudnnCreateTensorDescriptor, &matrix);
    const cudnnStatus_t code = cudnnCreateTensorDescriptor(&bias);
    enum status status = code == CUDNN_STATUS_SUCCESS
                             ? find_pieces(cuda, plan, call, weights, matrix, bias, error)
                             : cudnn_failed(error, "cudnnCreateTensorDescriptor", code, call->in[X]);
    if (status != STATUS_OK)
        plan->pieces = 0;
    if (bias != NULL)
        cudnnDestroyTensorDescriptor(bias);
    cudnnDestroyTensorDescriptor(matrix);
    return status;
}

/* Our four tensors into cuDNN's buffer. What lies between the pieces is never read for its value, but it is
 * not to be a NaN. */
static enum status pack(struct cuda *cuda, const struct lstm_plan *plan, const struct op_call *call,
                        void *weights, struct error *error)
{
    CUDA_TRY(call->in[X], cudaMemsetAsync, weights, 0, plan->weight_bytes, cuda->stream);
    for (uint32_t i = 0; i < plan->pieces; i++) {
        const struct piece *piece = &plan->piece[i];
        const struct tensor *tensor = call->in[piece->tensor];
        CUDA_TRY(tensor, cudaMemcpyAsync, (char *)weights + piece->to,
                 (const char *)tensor->data + piece->from, piece->bytes, cudaMemcpyDeviceToDevice,
                 cuda->stream);
    }
    return STATUS_OK;
}

/* The gradients that are wanted, out of cuDNN's buffer. */
static enum status unpack(struct cuda *cuda, const struct lstm_plan *plan, struct op_call *call,
                          const void *gradients, struct error *error)
{
    for (uint32_t i = 0; i < plan->pieces; i++) {
        const struct piece *piece = &plan->piece[i];
        struct tensor *tensor = call->din[piece->tensor];
        if (tensor == NULL)
            continue;
        TRY(cuda_output(call, tensor, error));
        CUDA_TRY(tensor, cudaMemcpyAsync, (char *)tensor->data + piece->from,
                 (const char *)gradients + piece->to, piece->bytes, cudaMemcpyDeviceToDevice, cuda->stream);
    }
    return STATUS_OK;
}

/* ---- forward ---- */

static void *data_or_null(const struct tensor *tensor)
{
    return tensor != NULL ? tensor->data : NULL;
}

enum status cuda_lstm(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct lstm_plan *plan;
    void *weights = NULL, *reserve = NULL;
    TRY(plan_of(cuda, call, &plan, error));
    for (int i = 0; i < 3; i++)
        TRY(cuda_output(call, call->out[i], error));
    if (call->keep) {
        TRY(cuda_saved(call, SAVED_RESERVE, plan->reserve_bytes, error));
        TRY(cuda_saved(call, SAVED_WEIGHTS, plan->weight_bytes, error));
        reserve = call->saved[SAVED_RESERVE].data;
        weights = call->saved[SAVED_WEIGHTS].data;
    } else {
        TRY(cuda_scratch(call, plan->weight_bytes, &weights, call->in[X], error));
    }
    TRY(plan_pieces(cuda, plan, call, weights, error));
    TRY(pack(cuda, plan, call, weights, error));
    TRY(cuda_workspace(cuda, plan->work_bytes, error));
    CUDNN_TRY(call->in[X], cudnnRNNForward, cuda->cudnn, plan->rnn,
              call->keep ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, NULL, plan->x,
              call->in[X]->data, plan->y, call->out[Y]->data, plan->state, data_or_null(call->in[H0]),
              call->out[HN]->data, plan->state, data_or_null(call->in[C0]), call->out[CN]->data,
              plan->weight_bytes, weights, plan->work_bytes, cuda->workspace,
              call->keep ? plan->reserve_bytes : 0, reserve);
    if (!call->keep)
        arena_release(call->arena, weights);
    return STATUS_OK;
}

/* ---- backward ---- */

/* What the call needs beside its tensors, taken for the time of the call. */
struct lstm_scratch {
    void *dy; /* zeros, where y has no gradient */
    void *dx; /* where x's is not wanted */
    void *dweights;
    void *reserve; /* a copy of the saved one: cuDNN's backward writes into it */
};

static enum status take_scratch(struct cuda *cuda, const struct lstm_plan *plan, struct op_call *call,
                                struct lstm_scratch *scratch, struct error *error)
{
    const struct tensor *x = call->in[X], *y = call->out[Y];
    const size_t y_bytes = cuda_elements(y) * sizeof(float);
    if (call->dout[Y] == NULL) {
        TRY(cuda_scratch(call, y_bytes, &scratch->dy, y, error));
        CUDA_TRY(y, cudaMemsetAsync, scratch->dy, 0, y_bytes, cuda->stream);
    }
    if (call->din[X] == NULL)
        TRY(cuda_scratch(call, cuda_elements(x) * sizeof(float), &scratch->dx, x, error));
    TRY(cuda_scratch(call, plan->weight_bytes, &scratch->dweights, x, error));
    /* cuDNN adds to what is there. */
    CUDA_TRY(x, cudaMemsetAsync, scratch->dweights, 0, plan->weight_bytes, cuda->stream);
    TRY(cuda_scratch(call, plan->reserve_bytes, &scratch->reserve, x, error));
    CUDA_TRY(x, cudaMemcpyAsync, scratch->reserve, call->saved[SAVED_RESERVE].data, plan->reserve_bytes,
             cudaMemcpyDeviceToDevice, cuda->stream);
    for (uint32_t i = X; i <= C0; i++)
        if (call->din[i] != NULL)
            TRY(cuda_output(call, call->din[i], error));
    return STATUS_OK;
}

/* The weights' gradients come second: they read what the data's left in the reserve. The forward's plan may
 * have been forgotten meanwhile, and the pieces with it. */
enum status cuda_lstm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct lstm_plan *plan;
    struct lstm_scratch scratch = {};
    TRY(plan_of(cuda, call, &plan, error));
    TRY(plan_pieces(cuda, plan, call, call->saved[SAVED_WEIGHTS].data, error));
    TRY(take_scratch(cuda, plan, call, &scratch, error));
    TRY(cuda_workspace(cuda, plan->work_bytes, error));
    void *dy = scratch.dy != NULL ? scratch.dy : call->dout[Y]->data;
    void *dx = scratch.dx != NULL ? scratch.dx : call->din[X]->data;
    CUDNN_TRY(call->in[X], cudnnRNNBackwardData_v8, cuda->cudnn, plan->rnn, NULL, plan->y, call->out[Y]->data,
              dy, plan->x, dx, plan->state, data_or_null(call->in[H0]), data_or_null(call->dout[HN]),
              data_or_null(call->din[H0]), plan->state, data_or_null(call->in[C0]),
              data_or_null(call->dout[CN]), data_or_null(call->din[C0]), plan->weight_bytes,
              call->saved[SAVED_WEIGHTS].data, plan->work_bytes, cuda->workspace, plan->reserve_bytes,
              scratch.reserve);
    CUDNN_TRY(call->in[X], cudnnRNNBackwardWeights_v8, cuda->cudnn, plan->rnn, CUDNN_WGRAD_MODE_ADD, NULL,
              plan->x, call->in[X]->data, plan->state, data_or_null(call->in[H0]), plan->y,
              call->out[Y]->data, plan->weight_bytes, scratch.dweights, plan->work_bytes, cuda->workspace,
              plan->reserve_bytes, scratch.reserve);
    TRY(unpack(cuda, plan, call, scratch.dweights, error));
    arena_release(call->arena, scratch.reserve);
    arena_release(call->arena, scratch.dweights);
    arena_release(call->arena, scratch.dx);
    arena_release(call->arena, scratch.dy);
    return STATUS_OK;
}
