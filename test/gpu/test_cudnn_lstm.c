/* The stand-in's LSTM against the oracle's, with its rules on sizes, order and absent tensors. */
#include "test/gpu/cudnn_fixture.h"
#include "test/oracle/ref_internal.h"
#include "test/workplace.h"

#include <signal.h>

enum { STEPS = 4, BATCH = 3, INPUTS = 2, HIDDEN = 5, GATES = 4 };
enum { X_COUNT = STEPS * BATCH * INPUTS, Y_COUNT = STEPS * BATCH * HIDDEN, STATE = BATCH * HIDDEN };

/* An LSTM's descriptors, sizes and weights: PyTorch's four tensors, and cuDNN's space on the device. */
struct lstm {
    cudnnRNNDescriptor_t rnn;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t state, matrix, vector;
    size_t weight_bytes, work_bytes, reserve_bytes;
    float weight[2][GATES * HIDDEN * HIDDEN], bias[2][GATES * HIDDEN];
    float *space, *workspace, *reserve;
};

static cudnnTensorDescriptor_t empty_tensor(void)
{
    cudnnTensorDescriptor_t made = images(1, 1, 1, 1);
    return made;
}

static cudnnRNNDataDescriptor_t sequences(int width)
{
    cudnnRNNDataDescriptor_t made;
    const int lengths[BATCH] = {STEPS, STEPS, STEPS};
    OK(cudnnCreateRNNDataDescriptor(&made));
    OK(cudnnSetRNNDataDescriptor(made, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, STEPS, BATCH,
                                 width, lengths, NULL));
    return made;
}

/* Asks where matrix `id` and its bias lie in `space`, and checks their descriptors. */
static void lstm_place(const struct lstm *lstm, const void *space, int id, float **matrix, float **bias)
{
    cudnnDataType_t type;
    int rank, size[3], stride[3];
    OK(cudnnGetRNNWeightParams(cudnn, lstm->rnn, 0, lstm->weight_bytes, space, id, lstm->matrix,
                               (void **)matrix, lstm->vector, (void **)bias));
    OK(cudnnGetTensorNdDescriptor(lstm->matrix, 3, &type, &rank, size, stride));
    ck_assert(rank == 3 && size[0] == 1 && size[1] == HIDDEN && size[2] == (id < GATES ? INPUTS : HIDDEN));
    OK(cudnnGetTensorNdDescriptor(lstm->vector, 3, &type, &rank, size, stride));
    ck_assert(rank == 3 && size[0] == 1 && size[1] == HIDDEN && size[2] == 1);
}

static void lstm_pack(const struct lstm *lstm)
{
    float zeros[4096] = {0};
    ck_assert_uint_le(lstm->weight_bytes, sizeof zeros);
    device_write(lstm->space, zeros, lstm->weight_bytes / sizeof(float));
    for (int id = 0; id < 2 * GATES; id++) {
        const size_t of = (size_t)id / GATES, gate = (size_t)id % GATES, columns = of == 0 ? INPUTS : HIDDEN;
        float *matrix, *bias;
        lstm_place(lstm, lstm->space, id, &matrix, &bias);
        device_write(matrix, lstm->weight[of] + gate * HIDDEN * columns, HIDDEN * columns);
        device_write(bias, lstm->bias[of] + gate * HIDDEN, HIDDEN);
    }
}

static void lstm_describe(struct lstm *lstm)
{
    const int size[3] = {1, BATCH, HIDDEN}, stride[3] = {STATE, HIDDEN, 1};
    cudnnDropoutDescriptor_t dropout;
    OK(cudnnCreateDropoutDescriptor(&dropout));
    OK(cudnnSetDropoutDescriptor(dropout, cudnn, 0, NULL, 0, 0));
    OK(cudnnCreateRNNDescriptor(&lstm->rnn));
    OK(cudnnSetRNNDescriptor_v8(lstm->rnn, CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, CUDNN_RNN_DOUBLE_BIAS,
                                CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                                CUDNN_FMA_MATH, INPUTS, HIDDEN, HIDDEN, 1, dropout,
                                CUDNN_RNN_PADDED_IO_DISABLED));
    OK(cudnnDestroyDropoutDescriptor(dropout));
    lstm->x = sequences(INPUTS);
    lstm->y = sequences(HIDDEN);
    lstm->state = empty_tensor();
    OK(cudnnSetTensorNdDescriptor(lstm->state, CUDNN_DATA_FLOAT, 3, size, stride));
    lstm->matrix = empty_tensor();
    lstm->vector = empty_tensor();
}

static void lstm_open(struct lstm *lstm)
{
    size_t none = 1;
    lstm_describe(lstm);
    OK(cudnnGetRNNWeightSpaceSize(cudnn, lstm->rnn, &lstm->weight_bytes));
    OK(cudnnGetRNNTempSpaceSizes(cudnn, lstm->rnn, CUDNN_FWD_MODE_INFERENCE, lstm->x, &lstm->work_bytes,
                                 &none));
    ck_assert_uint_eq(none, 0);
    OK(cudnnGetRNNTempSpaceSizes(cudnn, lstm->rnn, CUDNN_FWD_MODE_TRAINING, lstm->x, &lstm->work_bytes,
                                 &lstm->reserve_bytes));
    for (uint32_t of = 0; of < 2; of++) {
        draw(lstm->weight[of], GATES * HIDDEN * (of == 0 ? INPUTS : HIDDEN), 20 + of);
        draw(lstm->bias[of], GATES * HIDDEN, 22 + of);
    }
    lstm->space = device_new(lstm->weight_bytes / sizeof(float));
    lstm->workspace = device_new(lstm->work_bytes / sizeof(float));
    lstm->reserve = device_new(lstm->reserve_bytes / sizeof(float));
    lstm_pack(lstm);
}

static void lstm_close(struct lstm *lstm)
{
    OK(cudnnDestroyRNNDataDescriptor(lstm->x));
    OK(cudnnDestroyRNNDataDescriptor(lstm->y));
    OK(cudnnDestroyRNNDescriptor(lstm->rnn));
}

/* The tensors of one LSTM, on the host (f) and on the device (d). Without states, h0, c0, dhn and dcn are
 * zeros to the oracle, and NULL to cuDNN. */
struct lstm_run {
    bool states;
    float x[X_COUNT], h0[STATE], c0[STATE], dy[Y_COUNT], dhn[STATE], dcn[STATE];
    float *dev_x, *dev_h0, *dev_c0, *dev_dy, *dev_dhn, *dev_dcn;
    float *dev_y, *dev_hn, *dev_cn, *dev_dx, *dev_dh0, *dev_dc0, *dev_dweights;
};

static void lstm_run_open(struct lstm_run *run, const struct lstm *lstm, bool states)
{
    *run = (struct lstm_run){.states = states};
    draw(run->x, X_COUNT, 30);
    draw(run->dy, Y_COUNT, 31);
    run->dev_x = device_of(run->x, X_COUNT);
    run->dev_dy = device_of(run->dy, Y_COUNT);
    float *const host[4] = {run->h0, run->c0, run->dhn, run->dcn};
    float **const device[4] = {&run->dev_h0, &run->dev_c0, &run->dev_dhn, &run->dev_dcn};
    for (uint32_t i = 0; i < 4 && states; i++) {
        draw(host[i], STATE, 32 + i);
        *device[i] = device_of(host[i], STATE);
    }
    run->dev_y = device_new(Y_COUNT);
    run->dev_hn = device_new(STATE);
    run->dev_cn = device_new(STATE);
    run->dev_dx = device_new(X_COUNT);
    run->dev_dh0 = device_new(STATE);
    run->dev_dc0 = device_new(STATE);
    run->dev_dweights = device_new(lstm->weight_bytes / sizeof(float));
}

static cudnnStatus_t lstm_forward(const struct lstm *lstm, const struct lstm_run *run, bool training)
{
    return cudnnRNNForward(cudnn, lstm->rnn, training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
                           NULL, lstm->x, run->dev_x, lstm->y, run->dev_y, lstm->state, run->dev_h0,
                           run->dev_hn, lstm->state, run->dev_c0, run->dev_cn, lstm->weight_bytes,
                           lstm->space, lstm->work_bytes, lstm->workspace, training ? lstm->reserve_bytes : 0,
                           training ? lstm->reserve : NULL);
}

static cudnnStatus_t lstm_backward_data(const struct lstm *lstm, const struct lstm_run *run)
{
    return cudnnRNNBackwardData_v8(cudnn, lstm->rnn, NULL, lstm->y, run->dev_y, run->dev_dy, lstm->x,
                                   run->dev_dx, lstm->state, run->dev_h0, run->dev_dhn, run->dev_dh0,
                                   lstm->state, run->dev_c0, run->dev_dcn, run->dev_dc0, lstm->weight_bytes,
                                   lstm->space, lstm->work_bytes, lstm->workspace, lstm->reserve_bytes,
                                   lstm->reserve);
}

static cudnnStatus_t lstm_backward_weights(const struct lstm *lstm, const struct lstm_run *run,
                                           cudnnWgradMode_t mode)
{
    return cudnnRNNBackwardWeights_v8(cudnn, lstm->rnn, mode, NULL, lstm->x, run->dev_x, lstm->state,
                                      run->dev_h0, lstm->y, run->dev_y, lstm->weight_bytes, run->dev_dweights,
                                      lstm->work_bytes, lstm->workspace, lstm->reserve_bytes, lstm->reserve);
}

/* The oracle's layer: 7 inputs, 3 outputs and their gradients, in double. */
struct lstm_oracle {
    struct arena *arena;
    struct op_call call;
    struct tensor in[7], out[3], dout[3], din[7];
    bool backward;
};

static struct tensor wide(struct arena *arena, struct shape shape, const float *from)
{
    struct tensor made;
    OK(tensor_new(&made, arena, shape, DTYPE_F64, NULL, NULL));
    for (size_t i = 0; i < shape_elements(&shape); i++)
        ((double *)made.data)[i] = from != NULL ? (double)from[i] : 0;
    return made;
}

static void lstm_oracle_open(struct lstm_oracle *o, const struct lstm *lstm, const struct lstm_run *run)
{
    const struct shape x = SHAPE3(STEPS, BATCH, INPUTS), y = SHAPE3(STEPS, BATCH, HIDDEN),
                       s = SHAPE2(BATCH, HIDDEN);
    const struct shape shapes_in[7] = {x,
                                       s,
                                       s,
                                       SHAPE2(GATES * HIDDEN, INPUTS),
                                       SHAPE2(GATES * HIDDEN, HIDDEN),
                                       SHAPE1(GATES * HIDDEN),
                                       SHAPE1(GATES * HIDDEN)};
    const float *from[7] = {run->x,          run->h0,       run->c0,      lstm->weight[0],
                            lstm->weight[1], lstm->bias[0], lstm->bias[1]};
    const float *gradient[3] = {run->dy, run->dhn, run->dcn};
    *o = (struct lstm_oracle){.call = {.op = OP_LSTM_LAYER, .keep = true}};
    OK(arena_new(&o->arena, &arena_host, NULL));
    o->call.arena = o->arena;
    for (int i = 0; i < 7; i++) {
        o->in[i] = wide(o->arena, shapes_in[i], from[i]);
        o->din[i] = wide(o->arena, shapes_in[i], NULL);
        o->call.in[i] = &o->in[i];
        o->call.din[i] = &o->din[i];
    }
    for (int i = 0; i < 3; i++) {
        o->out[i] = wide(o->arena, i == 0 ? y : s, NULL);
        o->dout[i] = wide(o->arena, i == 0 ? y : s, gradient[i]);
        o->call.out[i] = &o->out[i];
        o->call.dout[i] = &o->dout[i];
    }
    OK(ref_lstm_forward(NULL, &o->call, NULL));
    OK(ref_lstm_backward(NULL, &o->call, NULL));
}

static void assert_floats(const float *device, const struct tensor *expected, size_t from, size_t count,
                          double factor)
{
    float values[Y_COUNT + GATES * HIDDEN * HIDDEN];
    device_read(values, device, count);
    for (size_t i = 0; i < count; i++)
        assert_near((double)values[i], factor * ((const double *)expected->data)[from + i], 2e-6);
}

START_TEST(lstm_is_the_oracles)
{
    static struct lstm lstm;
    static struct lstm_run run;
    static struct lstm_oracle o;
    float zeros[4096] = {0};
    lstm_open(&lstm);
    lstm_run_open(&run, &lstm, _i == 1);
    lstm_oracle_open(&o, &lstm, &run);
    OK(lstm_forward(&lstm, &run, false));
    assert_floats(run.dev_y, &o.out[0], 0, Y_COUNT, 1);
    OK(lstm_forward(&lstm, &run, true));
    assert_floats(run.dev_y, &o.out[0], 0, Y_COUNT, 1);
    assert_floats(run.dev_hn, &o.out[1], 0, STATE, 1);
    assert_floats(run.dev_cn, &o.out[2], 0, STATE, 1);
    OK(lstm_backward_data(&lstm, &run));
    assert_floats(run.dev_dx, &o.din[0], 0, X_COUNT, 1);
    assert_floats(run.dev_dh0, &o.din[1], 0, STATE, 1);
    assert_floats(run.dev_dc0, &o.din[2], 0, STATE, 1);
    device_write(run.dev_dweights, zeros, lstm.weight_bytes / sizeof(float));
    OK(lstm_backward_weights(&lstm, &run, CUDNN_WGRAD_MODE_ADD));
    OK(lstm_backward_weights(&lstm, &run, CUDNN_WGRAD_MODE_ADD)); /* adds */
    for (int id = 0; id < 2 * GATES; id++) {
        const size_t of = (size_t)id / GATES, gate = (size_t)id % GATES,
                     count = HIDDEN * (of == 0 ? INPUTS : HIDDEN);
        float *matrix, *bias;
        lstm_place(&lstm, run.dev_dweights, id, &matrix, &bias);
        assert_floats(matrix, &o.din[3 + of], gate * count, count, 2);
        assert_floats(bias, &o.din[5 + of], gate * HIDDEN, HIDDEN, 2);
    }
    arena_free(o.arena);
    lstm_close(&lstm);
}
END_TEST

START_TEST(lstm_is_checked)
{
    static struct lstm lstm;
    static struct lstm_run run;
    void *at;
    lstm_open(&lstm);
    lstm_run_open(&run, &lstm, true);
    struct lstm wrong = lstm;
    wrong.weight_bytes -= 4;
    REFUSED(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, lstm_forward(&wrong, &run, true));
    wrong = lstm;
    wrong.work_bytes -= 4;
    REFUSED(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, lstm_forward(&wrong, &run, true));
    wrong = lstm;
    wrong.reserve_bytes -= 16;
    REFUSED(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, lstm_forward(&wrong, &run, true));
    wrong = lstm;
    wrong.y = lstm.x;
    REFUSED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, lstm_forward(&wrong, &run, true));
    wrong = lstm;
    wrong.state = images(1, BATCH, HIDDEN, 1);
    REFUSED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, lstm_forward(&wrong, &run, true));
    const int size[3] = {1, BATCH, HIDDEN}, columns[3] = {STATE, 1, BATCH},
              packed_stride[3] = {STATE, HIDDEN, 1};
    OK(cudnnSetTensorNdDescriptor(wrong.state, CUDNN_DATA_FLOAT, 3, size, columns));
    REFUSED(CUDNN_STATUS_BAD_PARAM, lstm_forward(&wrong, &run, true));
    OK(cudnnSetTensorNdDescriptor(wrong.state, CUDNN_DATA_HALF, 3, size, packed_stride));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, lstm_forward(&wrong, &run, true));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, lstm_backward_weights(&lstm, &run, CUDNN_WGRAD_MODE_SET));
    REFUSED(CUDNN_STATUS_BAD_PARAM, cudnnGetRNNWeightParams(cudnn, lstm.rnn, 1, lstm.weight_bytes, lstm.space,
                                                            0, lstm.matrix, &at, lstm.vector, &at));
    REFUSED(CUDNN_STATUS_BAD_PARAM, cudnnGetRNNWeightParams(cudnn, lstm.rnn, 0, lstm.weight_bytes, lstm.space,
                                                            9, lstm.matrix, &at, lstm.vector, &at));
    OK(cudnnGetRNNWeightParams(cudnn, lstm.rnn, 0, lstm.weight_bytes, lstm.space, 8, lstm.matrix, &at,
                               lstm.vector, &at));
    ck_assert_ptr_null(at);
    const int lengths[BATCH] = {STEPS, STEPS + 1, STEPS}, shorter[BATCH] = {STEPS, STEPS, 1};
    const cudnnRNNDataLayout_t packed = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetRNNDataDescriptor(lstm.x, CUDNN_DATA_FLOAT, packed, STEPS, BATCH, INPUTS, lengths, NULL));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED,
            cudnnSetRNNDataDescriptor(lstm.x, CUDNN_DATA_FLOAT, packed, STEPS, BATCH, INPUTS, shorter, NULL));
    lstm_close(&lstm);
}
END_TEST

/* The calls' order is noticed when they run: weights before data, data twice, no forward, another y. */
START_TEST(misuse_of_an_lstms_reserve)
{
    static struct lstm lstm;
    static struct lstm_run run;
    lstm_open(&lstm);
    lstm_run_open(&run, &lstm, true);
    if (_i != 2)
        OK(lstm_forward(&lstm, &run, true));
    if (_i == 0)
        OK(lstm_backward_weights(&lstm, &run, CUDNN_WGRAD_MODE_ADD));
    if (_i == 3)
        OK(cudaMemsetAsync(run.dev_y, 0, 4, stream));
    for (int i = 0; _i > 0 && i < (_i == 1 ? 2 : 1); i++)
        OK(lstm_backward_data(&lstm, &run));
    cudaStreamSynchronize(stream);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudnn_lstm");
    TCase *lstm = tcase_create("lstm");
    tcase_add_checked_fixture(lstm, device_open, device_close);
    tcase_add_loop_test(lstm, lstm_is_the_oracles, 0, 2);
    tcase_add_test(lstm, lstm_is_checked);
    tcase_add_loop_test_raise_signal(lstm, misuse_of_an_lstms_reserve, SIGABRT, 0, 4);
    suite_add_tcase(suite, lstm);
    return suite_run(suite);
}
