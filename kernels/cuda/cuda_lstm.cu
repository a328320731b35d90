/* One LSTM or GRU layer by cuDNN's RNN calls, every sequence equally long.
 *
 * cuDNN wants all weights of a layer in one buffer, in its own order: a matrix and a bias for each gate,
 * first those of x, then those of h. The gates are an LSTM's input gate, forget gate, cell and output gate,
 * and a GRU's reset gate, update gate and new state: PyTorch's order. A GRU has no c. cuDNN is asked once per
 * shape for the offset of each; neighbours are then copied in one piece. The standard algorithm is
 * deterministic. */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>

enum { X, H0, C0 };                    /* inputs; then four of weights and biases */
enum { Y, HN, CN };                    /* outputs */
enum { SAVED_RESERVE, SAVED_WEIGHTS }; /* for the backward */

static bool has_cells(const struct op_call *call)
{
    return call->op == OP_LSTM_LAYER;
}

/* The number of the input weight_ih, which weight_hh, bias_ih and bias_hh follow. */
static uint32_t first_weight(uint32_t gates)
{
    return gates == LSTM_GATES ? C0 + 1 : C0;
}

static struct lstm_sizes sizes_of(const struct op_call *call)
{
    const uint32_t *x = call->in[X]->shape.size;
    const uint32_t gates = has_cells(call) ? LSTM_GATES : GRU_GATES;
    return {x[0], x[1], x[2], call->in[first_weight(gates) + 1]->shape.size[1], call->keep, gates};
}

/* ---- plan ---- */

/* Describes (steps, batch, width): sequences of equal length leave no gaps in cuDNN's packed layout. */
static enum status describe_data(cudnnRNNDataDescriptor_t *out, const struct lstm_sizes *s, uint32_t width,
                                 const struct tensor *about, struct error *error)
{
    CUDNN_TRY(about, cudnnCreateRNNDataDescriptor, out);
    int *lengths = (int *)malloc(s->batch * sizeof *lengths);
    if (lengths == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the lengths of %u sequences", s->batch);
    for (uint32_t i = 0; i < s->batch; i++)
        lengths[i] = (int)s->steps;
    const cudnnStatus_t code =
        cudnnSetRNNDataDescriptor(*out, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
                                  (int)s->steps, (int)s->batch, (int)width, lengths, NULL);
    free(lengths);
    return code == CUDNN_STATUS_SUCCESS ? STATUS_OK
                                        : cudnn_failed(error, "cudnnSetRNNDataDescriptor", code, about);
}

static enum status describe_layer(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                                  struct error *error)
{
    const struct lstm_sizes *s = &plan->key.lstm;
    const int dims[3] = {1, (int)s->batch, (int)s->hidden};
    const int strides[3] = {(int)(s->batch * s->hidden), (int)s->hidden, 1};
    CUDNN_TRY(about, cudnnCreateRNNDescriptor, &plan->rnn);
    CUDNN_TRY(about, cudnnSetRNNDescriptor_v8, plan->rnn, CUDNN_RNN_ALGO_STANDARD,
              s->gates == LSTM_GATES ? CUDNN_LSTM : CUDNN_GRU, CUDNN_RNN_DOUBLE_BIAS, CUDNN_UNIDIRECTIONAL,
              CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, (int32_t)s->inputs,
              (int32_t)s->hidden, (int32_t)s->hidden, 1, cuda->no_dropout, CUDNN_RNN_PADDED_IO_DISABLED);
    TRY(describe_data(&plan->sequences_x, s, s->inputs, about, error));
    TRY(describe_data(&plan->sequences_y, s, s->hidden, about, error));
    CUDNN_TRY(about, cudnnCreateTensorDescriptor, &plan->state);
    CUDNN_TRY(about, cudnnSetTensorNdDescriptor, plan->state, CUDNN_DATA_FLOAT, 3, dims, strides);
    CUDNN_TRY(about, cudnnCreateTensorDescriptor, &plan->gate_matrix);
    CUDNN_TRY(about, cudnnCreateTensorDescriptor, &plan->gate_vector);
    CUDNN_TRY(about, cudnnGetRNNWeightSpaceSize, cuda->cudnn, plan->rnn, &plan->weight_bytes);
    CUDNN_TRY(about, cudnnGetRNNTempSpaceSizes, cuda->cudnn, plan->rnn,
              s->training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, plan->sequences_x,
              &plan->work_bytes, &plan->reserve_bytes);
    return STATUS_OK;
}

static enum status lstm_plan_of(struct cuda *cuda, const struct op_call *call, struct plan **out,
                                struct error *error)
{
    struct plan_key key = {};
    key.kind = PLAN_LSTM;
    key.lstm = sizes_of(call);
    return cuda_plan(cuda, &key, describe_layer, call->in[X], out, error);
}

/* ---- weights ---- */

/* Adds a piece, or makes the last one longer where the two are neighbours on both sides. */
static void add_piece(struct plan *plan, uint32_t tensor, size_t from, size_t to, size_t bytes)
{
    struct weight_piece *last = plan->pieces > 0 ? &plan->piece[plan->pieces - 1] : NULL;
    if (last != NULL && last->tensor == tensor && last->from + last->bytes == from &&
        last->to + last->bytes == to)
        last->bytes += bytes;
    else
        plan->piece[plan->pieces++] = {tensor, from, to, bytes};
}

/* Asks cuDNN where each matrix and bias lies in the buffer `weights`. */
static enum status plan_pieces(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                               void *weights, struct error *error)
{
    const struct lstm_sizes *s = &plan->key.lstm;
    const char *at[4][LSTM_GATES]; /* of x's matrices, h's matrices, x's biases, h's biases */
    if (plan->pieces > 0)
        return STATUS_OK;
    for (uint32_t of = 0; of < 2; of++)
        for (uint32_t gate = 0; gate < s->gates; gate++)
            CUDNN_TRY(about, cudnnGetRNNWeightParams, cuda->cudnn, plan->rnn, 0, plan->weight_bytes, weights,
                      (int32_t)(of * s->gates + gate), plan->gate_matrix, (void **)&at[of][gate],
                      plan->gate_vector, (void **)&at[2 + of][gate]);
    for (uint32_t of = 0; of < 4; of++)
        for (uint32_t gate = 0; gate < s->gates; gate++) {
            const uint32_t columns = of >= 2 ? 1 : of == 0 ? s->inputs : s->hidden;
            const size_t bytes = (size_t)s->hidden * columns * sizeof(float);
            add_piece(plan, first_weight(s->gates) + of, gate * bytes,
                      (size_t)(at[of][gate] - (const char *)weights), bytes);
        }
    return STATUS_OK;
}

/* Copies our four tensors into cuDNN's buffer. The bytes between the pieces have no meaning, but must not be
 * a NaN. */
static enum status pack(struct cuda *cuda, const struct plan *plan, const struct op_call *call, void *weights,
                        struct error *error)
{
    CUDA_TRY(call->in[X], cudaMemsetAsync, weights, 0, plan->weight_bytes, cuda->stream);
    for (uint32_t i = 0; i < plan->pieces; i++) {
        const struct weight_piece *piece = &plan->piece[i];
        const struct tensor *tensor = call->in[piece->tensor];
        CUDA_TRY(tensor, cudaMemcpyAsync, (char *)weights + piece->to,
                 (const char *)tensor->data + piece->from, piece->bytes, cudaMemcpyDeviceToDevice,
                 cuda->stream);
    }
    return STATUS_OK;
}

/* Copies the gradients that the caller wants out of cuDNN's buffer. */
static enum status unpack(struct cuda *cuda, const struct plan *plan, struct op_call *call,
                          const void *gradients, struct error *error)
{
    for (uint32_t i = 0; i < plan->pieces; i++) {
        const struct weight_piece *piece = &plan->piece[i];
        struct tensor *tensor = call->din[piece->tensor];
        if (tensor != NULL)
            CUDA_TRY(tensor, cudaMemcpyAsync, (char *)tensor->data + piece->from,
                     (const char *)gradients + piece->to, piece->bytes, cudaMemcpyDeviceToDevice,
                     cuda->stream);
    }
    return STATUS_OK;
}

/* ---- cells ---- */

/* What cuDNN is told of c; a GRU has none. */
static cudnnTensorDescriptor_t cells_of(const struct plan *plan)
{
    return plan->key.lstm.gates == LSTM_GATES ? plan->state : NULL;
}

static float *floats_of(const struct op_call *call, struct tensor *const tensors[], uint32_t cells)
{
    return has_cells(call) ? cuda_floats(tensors[cells]) : NULL;
}

/* ---- forward ---- */

enum status cuda_recurrent(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct plan *plan;
    void *weights = NULL, *reserve = NULL;
    TRY(lstm_plan_of(cuda, call, &plan, error));
    if (call->keep) {
        TRY(cuda_saved(call, SAVED_RESERVE, plan->reserve_bytes, error));
        TRY(cuda_saved(call, SAVED_WEIGHTS, plan->weight_bytes, error));
        reserve = call->saved[SAVED_RESERVE].data;
        weights = call->saved[SAVED_WEIGHTS].data;
    } else {
        TRY(cuda_scratch(call, plan->weight_bytes, &weights, call->in[X], error));
    }
    TRY(plan_pieces(cuda, plan, call->in[X], weights, error));
    TRY(pack(cuda, plan, call, weights, error));
    TRY(cuda_workspace(cuda, plan->work_bytes, error));
    CUDNN_TRY(call->in[X], cudnnRNNForward, cuda->cudnn, plan->rnn,
              call->keep ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, NULL, plan->sequences_x,
              call->in[X]->data, plan->sequences_y, call->out[Y]->data, plan->state,
              cuda_floats(call->in[H0]), call->out[HN]->data, cells_of(plan), floats_of(call, call->in, C0),
              floats_of(call, call->out, CN), plan->weight_bytes, weights, plan->work_bytes, cuda->workspace,
              call->keep ? plan->reserve_bytes : 0, reserve);
    if (!call->keep)
        arena_release(call->arena, weights);
    return STATUS_OK;
}

/* ---- backward ---- */

/* Scratch of one backward call. */
struct lstm_scratch {
    void *dy; /* zeros; NULL: y has a gradient */
    void *dx; /* NULL: the caller wants x's gradient */
    void *dweights;
    void *reserve; /* a copy of the saved reserve, because cuDNN's backward writes into it */
};

static enum status take_scratch(struct cuda *cuda, const struct plan *plan, struct op_call *call,
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
    /* cuDNN adds the gradients to this buffer. */
    CUDA_TRY(x, cudaMemsetAsync, scratch->dweights, 0, plan->weight_bytes, cuda->stream);
    TRY(cuda_scratch(call, plan->reserve_bytes, &scratch->reserve, x, error));
    CUDA_TRY(x, cudaMemcpyAsync, scratch->reserve, call->saved[SAVED_RESERVE].data, plan->reserve_bytes,
             cudaMemcpyDeviceToDevice, cuda->stream);
    return STATUS_OK;
}

/* The weights' gradients come second: they read what the data's gradients wrote to the reserve. The plan may
 * be another one than the forward's, and then has no pieces yet. */
enum status cuda_recurrent_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct plan *plan;
    struct lstm_scratch scratch = {};
    TRY(lstm_plan_of(cuda, call, &plan, error));
    TRY(plan_pieces(cuda, plan, call->in[X], call->saved[SAVED_WEIGHTS].data, error));
    TRY(take_scratch(cuda, plan, call, &scratch, error));
    TRY(cuda_workspace(cuda, plan->work_bytes, error));
    void *dy = scratch.dy != NULL ? scratch.dy : call->dout[Y]->data;
    void *dx = scratch.dx != NULL ? scratch.dx : call->din[X]->data;
    CUDNN_TRY(call->in[X], cudnnRNNBackwardData_v8, cuda->cudnn, plan->rnn, NULL, plan->sequences_y,
              call->out[Y]->data, dy, plan->sequences_x, dx, plan->state, cuda_floats(call->in[H0]),
              cuda_floats(call->dout[HN]), cuda_floats(call->din[H0]), cells_of(plan),
              floats_of(call, call->in, C0), floats_of(call, call->dout, CN), floats_of(call, call->din, C0),
              plan->weight_bytes, call->saved[SAVED_WEIGHTS].data, plan->work_bytes, cuda->workspace,
              plan->reserve_bytes, scratch.reserve);
    CUDNN_TRY(call->in[X], cudnnRNNBackwardWeights_v8, cuda->cudnn, plan->rnn, CUDNN_WGRAD_MODE_ADD, NULL,
              plan->sequences_x, call->in[X]->data, plan->state, cuda_floats(call->in[H0]), plan->sequences_y,
              call->out[Y]->data, plan->weight_bytes, scratch.dweights, plan->work_bytes, cuda->workspace,
              plan->reserve_bytes, scratch.reserve);
    TRY(unpack(cuda, plan, call, scratch.dweights, error));
    arena_release(call->arena, scratch.reserve);
    arena_release(call->arena, scratch.dweights);
    arena_release(call->arena, scratch.dx);
    arena_release(call->arena, scratch.dy);
    return STATUS_OK;
}
