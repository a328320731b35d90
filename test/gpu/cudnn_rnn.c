/* The stand-in's RNN: one layer of an LSTM or a GRU over packed sequences of one length. An LSTM's is
 *
 *     i, f, o = sigmoid(z)   g = tanh(z)   z = W x_t + b + R h_{t-1} + b', for each gate
 *     c_t = f c_{t-1} + i g   h_t = o tanh(c_t)
 *
 * and a GRU's
 *
 *     r, u = sigmoid(z)   m = R h_{t-1} + b'   n = tanh(W x_t + b + r m)   h_t = (1 - u) n + u h_{t-1}
 *
 * The weight space has an order of its own, with gaps between some pieces. The reserve begins with a header
 * that says which call wrote it last, so that the calls' order is checked when they run. Behind the header
 * lie the gates (steps, batch, gates * hidden), whose place the backward of the data takes for the gradients
 * of the sums of x, and an LSTM's cells or a GRU's m (steps, batch, hidden), in double. m's place takes its
 * gradient. */
#include "test/gpu/cudnn_stand_in.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LSTM = 4, GRU = 3 }; /* gates. cuDNN's linLayerID: first the gates of x, then those of h */

struct lstm_sizes {
    size_t steps, batch, inputs, hidden, gates;
};

/* ---- the weight space ---- */

/* The order of the pieces: cuDNN's number of the matrix or bias, and the floats left out behind it. A GRU
 * lacks the last two. */
static const struct {
    int id;
    bool bias;
    size_t gap;
} pieces[] = {
    {5, false, 16}, {4, false, 0}, {6, false, 3}, {7, false, 8}, {0, true, 0},  {1, true, 0},
    {2, true, 0},   {3, true, 5},  {0, false, 0}, {1, false, 0}, {3, false, 1}, {2, false, 32},
    {4, true, 0},   {6, true, 0},  {5, true, 7},  {7, true, 4},
};
enum { PIECES = sizeof pieces / sizeof *pieces };

static size_t matrix_columns(const struct cudnn_rnn *rnn, int id)
{
    return (size_t)(id < rnn->gates ? rnn->inputs : rnn->hidden);
}

/* The first float of a piece; of one that is not there, the size of the space. */
static size_t weight_offset(const struct cudnn_rnn *rnn, int id, bool bias)
{
    size_t at = 0;
    for (size_t i = 0; i < PIECES; i++) {
        if (pieces[i].id >= 2 * rnn->gates)
            continue;
        if (pieces[i].id == id && pieces[i].bias == bias)
            break;
        at += (size_t)rnn->hidden * (pieces[i].bias ? 1 : matrix_columns(rnn, pieces[i].id)) + pieces[i].gap;
    }
    return at;
}

static size_t weight_space_bytes(const struct cudnn_rnn *rnn)
{
    return weight_offset(rnn, 2 * rnn->gates, false) * sizeof(float);
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc,
                                         size_t *weightSpaceSize)
{
    ENTER();
    struct cudnn_rnn rnn;
    REQUIRE_POINTER(handle);
    REQUIRE_POINTER(weightSpaceSize);
    TRY(cudnn_rnn_of(__func__, rnnDesc, &rnn));
    *weightSpaceSize = weight_space_bytes(&rnn);
    return CUDNN_STATUS_SUCCESS;
}

/* Matrix (1, hidden, columns) and bias (1, hidden, 1). An LSTM's linLayerID 8 is a projection, which does not
 * exist: its addresses are NULL. */
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc, int32_t pseudoLayer,
                                      size_t weightSpaceSize, const void *weightSpace, int32_t linLayerID,
                                      cudnnTensorDescriptor_t mDesc, void **mAddr,
                                      cudnnTensorDescriptor_t bDesc, void **bAddr)
{
    ENTER();
    struct cudnn_rnn rnn;
    struct cudnn_work unused;
    TRY(cudnn_begin(&unused, __func__, handle, NULL));
    TRY(cudnn_rnn_of(__func__, rnnDesc, &rnn));
    REQUIRE_POINTER(mAddr);
    REQUIRE_POINTER(bAddr);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, pseudoLayer == 0, "layer %d does not exist", pseudoLayer);
    REQUIRE(CUDNN_STATUS_BAD_PARAM, linLayerID >= 0 && linLayerID < 2 * rnn.gates + (rnn.gates == LSTM),
            "matrix %d does not exist", linLayerID);
    TRY(cudnn_space(&unused, "weightSpace", weightSpace, weightSpaceSize, weight_space_bytes(&rnn),
                    CUDNN_READ));
    *mAddr = *bAddr = NULL;
    if (linLayerID == 2 * rnn.gates)
        return CUDNN_STATUS_SUCCESS;
    TRY(cudnn_describe3(__func__, "mDesc", mDesc, 1, rnn.hidden, (int)matrix_columns(&rnn, linLayerID)));
    TRY(cudnn_describe3(__func__, "bDesc", bDesc, 1, rnn.hidden, 1));
    *mAddr = (float *)(uintptr_t)weightSpace + weight_offset(&rnn, linLayerID, false);
    *bAddr = (float *)(uintptr_t)weightSpace + weight_offset(&rnn, linLayerID, true);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- workspace and reserve ---- */

enum stage { FORWARD_DONE = 0x6c73746d, DATA_DONE };

struct reserve {
    uint64_t stage;
    struct lstm_sizes sizes;
};

static double *gates_of(struct reserve *reserve)
{
    return (double *)(reserve + 1);
}

static double *cells_of(struct reserve *reserve)
{
    const struct lstm_sizes *sizes = &reserve->sizes;
    return gates_of(reserve) + sizes->steps * sizes->batch * sizes->gates * sizes->hidden;
}

static size_t reserve_bytes(const struct lstm_sizes *sizes)
{
    const size_t values = sizes->steps * sizes->batch * sizes->hidden * (sizes->gates + 1);
    return sizeof(struct reserve) + values * sizeof(double);
}

static size_t work_bytes(const struct lstm_sizes *sizes)
{
    return 1024 + sizes->steps * sizes->batch * sizes->gates * sizes->hidden * sizeof(float);
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc,
                                        cudnnForwardMode_t fwdMode, cudnnRNNDataDescriptor_t xDesc,
                                        size_t *workSpaceSize, size_t *reserveSpaceSize)
{
    ENTER();
    struct cudnn_rnn rnn;
    struct cudnn_sequences x;
    REQUIRE_POINTER(handle);
    TRY(cudnn_rnn_of(__func__, rnnDesc, &rnn));
    TRY(cudnn_sequences_of(__func__, "xDesc", xDesc, &x));
    REQUIRE(CUDNN_STATUS_BAD_PARAM, fwdMode == CUDNN_FWD_MODE_INFERENCE || fwdMode == CUDNN_FWD_MODE_TRAINING,
            "forward mode %d does not exist", (int)fwdMode);
    const struct lstm_sizes sizes = {(size_t)x.steps, (size_t)x.batch, (size_t)x.width, (size_t)rnn.hidden,
                                     (size_t)rnn.gates};
    if (workSpaceSize != NULL)
        *workSpaceSize = work_bytes(&sizes);
    if (reserveSpaceSize != NULL)
        *reserveSpaceSize = fwdMode == CUDNN_FWD_MODE_TRAINING ? reserve_bytes(&sizes) : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- arguments ---- */

/* One queued call. The arguments that it does not have are NULL. */
struct lstm_work {
    struct cudnn_work work;
    struct cudnn_rnn rnn;
    struct lstm_sizes sizes;
    const float *weights, *x, *hx, *cx, *dy, *dhy, *dcy;
    float *y, *hy, *cy, *dx, *dhx, *dcx, *dweights;
    struct reserve *reserve;
    size_t reserve_size;
};

/* (1, batch, hidden) of packed floats. */
static cudnnStatus_t check_state(const struct lstm_work *work, const char *name,
                                 cudnnTensorDescriptor_t descriptor)
{
    const char *function = work->work.function;
    const int batch = (int)work->sizes.batch, hidden = (int)work->sizes.hidden;
    const struct cudnn_tensor expected = {.rank = 3, .size = {1, batch, hidden}};
    const int stride[3] = {batch * hidden, hidden, 1};
    struct cudnn_tensor state;
    TRY(cudnn_tensor_of(function, name, descriptor, &state));
    TRY(cudnn_same_sizes(function, name, &state, "(layers, batch, hidden)", &expected));
    if (state.type != CUDNN_DATA_FLOAT)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, function, "%s is not of floats", name);
    if (memcmp(state.stride, stride, sizeof stride) != 0)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "%s is not packed", name);
    return CUDNN_STATUS_SUCCESS;
}

/* A GRU's c is not read. */
static cudnnStatus_t check_cells(const struct lstm_work *work, cudnnTensorDescriptor_t descriptor)
{
    return work->rnn.gates == LSTM ? check_state(work, "cDesc", descriptor) : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lstm_begin(struct lstm_work *work, const char *function, cudnnHandle_t handle,
                                void (*run)(void *), cudnnRNNDescriptor_t rnn, const int32_t *lengths,
                                cudnnRNNDataDescriptor_t x_descriptor, cudnnRNNDataDescriptor_t y_descriptor)
{
    struct cudnn_sequences x, y;
    TRY(cudnn_begin(&work->work, function, handle, run));
    TRY(cudnn_rnn_of(function, rnn, &work->rnn));
    TRY(cudnn_sequences_of(function, "xDesc", x_descriptor, &x));
    TRY(cudnn_sequences_of(function, "yDesc", y_descriptor, &y));
    if (lengths != NULL)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function,
                             "devSeqLengths is not NULL: the lengths stand in the descriptors");
    if (x.steps != y.steps || x.batch != y.batch || x.width != work->rnn.inputs ||
        y.width != work->rnn.hidden)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, function,
                             "x is (%d, %d, %d) and y (%d, %d, %d), for %d inputs and %d hidden", x.steps,
                             x.batch, x.width, y.steps, y.batch, y.width, work->rnn.inputs, work->rnn.hidden);
    work->sizes = (struct lstm_sizes){(size_t)x.steps, (size_t)x.batch, (size_t)x.width, (size_t)y.width,
                                      (size_t)work->rnn.gates};
    return CUDNN_STATUS_SUCCESS;
}

static size_t values_of_x(const struct lstm_work *work)
{
    return work->sizes.steps * work->sizes.batch * work->sizes.inputs;
}

static size_t values_of_y(const struct lstm_work *work)
{
    return work->sizes.steps * work->sizes.batch * work->sizes.hidden;
}

static size_t values_of_state(const struct lstm_work *work)
{
    return work->sizes.batch * work->sizes.hidden;
}

/* ---- weights in double ---- */

/* W of each gate as rows of one matrix (gates * hidden, inputs), R as (gates * hidden, hidden), the sums of
 * both biases; and the bias of a GRU's m by itself. */
struct lstm_weights {
    double *x, *h, *bias, *bias_m;
};

static void weights_open(const struct lstm_work *work, struct lstm_weights *out)
{
    const size_t hidden = work->sizes.hidden, inputs = work->sizes.inputs, gates = work->sizes.gates;
    *out = (struct lstm_weights){.x = cudnn_doubles(NULL, gates * hidden * inputs),
                                 .h = cudnn_doubles(NULL, gates * hidden * hidden),
                                 .bias = cudnn_doubles(NULL, gates * hidden),
                                 .bias_m = cudnn_doubles(NULL, hidden)};
    for (int id = 0; id < 2 * (int)gates; id++) {
        const size_t gate = (size_t)id % gates, columns = matrix_columns(&work->rnn, id);
        const bool of_m = gates == GRU && id == 5;
        double *matrix = (id < (int)gates ? out->x : out->h) + gate * hidden * columns;
        double *to = of_m ? out->bias_m : out->bias + gate * hidden;
        const float *from = work->weights + weight_offset(&work->rnn, id, false);
        const float *bias = work->weights + weight_offset(&work->rnn, id, true);
        for (size_t i = 0; i < hidden * columns; i++)
            matrix[i] = (double)from[i];
        for (size_t i = 0; i < hidden; i++)
            to[i] += (double)bias[i];
    }
    if (work->rnn.math != CUDNN_FMA_MATH) {
        cudnn_round_to_tf32(out->x, gates * hidden * inputs);
        cudnn_round_to_tf32(out->h, gates * hidden * hidden);
    }
}

static void weights_close(struct lstm_weights *weights)
{
    free(weights->x);
    free(weights->h);
    free(weights->bias);
    free(weights->bias_m);
}

/* ---- forward ---- */

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* to (rows) += matrix (rows, columns) from (columns) */
static void add_rows(double *to, const double *matrix, const double *from, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < columns; i++)
            to[r] += matrix[r * columns + i] * from[i];
}

/* One sequence's step: the gates (4 hidden), and the new h and c (hidden) from the old. */
static void lstm_step(const struct lstm_work *work, const struct lstm_weights *weights, const double *x,
                      double *gates, double *h, double *c)
{
    const size_t hidden = work->sizes.hidden;
    memcpy(gates, weights->bias, LSTM * hidden * sizeof *gates);
    add_rows(gates, weights->x, x, LSTM * hidden, work->sizes.inputs);
    add_rows(gates, weights->h, h, LSTM * hidden, hidden);
    for (size_t i = 0; i < hidden; i++) {
        double *gate = gates + i;
        gate[0] = sigmoid(gate[0]);
        gate[hidden] = sigmoid(gate[hidden]);
        gate[2 * hidden] = tanh(gate[2 * hidden]);
        gate[3 * hidden] = sigmoid(gate[3 * hidden]);
        c[i] = gate[hidden] * c[i] + gate[0] * gate[2 * hidden];
        h[i] = gate[3 * hidden] * tanh(c[i]);
    }
}

/* The same of a GRU: the gates (3 hidden), m (hidden), and the new h. */
static void gru_step(const struct lstm_work *work, const struct lstm_weights *weights, const double *x,
                     double *gates, double *h, double *m)
{
    const size_t hidden = work->sizes.hidden;
    memcpy(gates, weights->bias, GRU * hidden * sizeof *gates);
    memcpy(m, weights->bias_m, hidden * sizeof *m);
    add_rows(gates, weights->x, x, GRU * hidden, work->sizes.inputs);
    add_rows(gates, weights->h, h, 2 * hidden, hidden);
    add_rows(m, weights->h + 2 * hidden * hidden, h, hidden, hidden);
    for (size_t i = 0; i < hidden; i++) {
        double *gate = gates + i;
        gate[0] = sigmoid(gate[0]);
        gate[hidden] = sigmoid(gate[hidden]);
        gate[2 * hidden] = tanh(gate[2 * hidden] + gate[0] * m[i]);
        h[i] = (1 - gate[hidden]) * gate[2 * hidden] + gate[hidden] * h[i];
    }
}

/* Fills the reserve with NaNs and its header. A forward without a reserve has one of its own. */
static struct reserve *reserve_open(const struct lstm_work *work)
{
    const size_t bytes = work->reserve != NULL ? work->reserve_size : reserve_bytes(&work->sizes);
    struct reserve *reserve = work->reserve != NULL ? work->reserve : malloc(bytes);
    if (reserve == NULL)
        gpu_misuse("no memory for an RNN's %zu bytes", bytes);
    memset(reserve, 0xff, bytes);
    *reserve = (struct reserve){FORWARD_DONE, work->sizes};
    return reserve;
}

static void run_lstm(void *args)
{
    const struct lstm_work *work = args;
    const size_t state = values_of_state(work), hidden = work->sizes.hidden;
    struct lstm_weights weights;
    struct reserve *reserve = reserve_open(work);
    double *gates = gates_of(reserve), *cells = cells_of(reserve);
    double *x = cudnn_doubles(work->x, values_of_x(work)), *y = cudnn_doubles(NULL, values_of_y(work));
    double *h = cudnn_doubles(work->hx, state), *c = cudnn_doubles(work->cx, state);
    weights_open(work, &weights);
    if (work->rnn.math != CUDNN_FMA_MATH)
        cudnn_round_to_tf32(x, values_of_x(work));
    for (size_t step = 0; step < work->sizes.steps; step++) {
        for (size_t b = 0; b < work->sizes.batch; b++) {
            const size_t row = step * work->sizes.batch + b;
            (work->sizes.gates == LSTM ? lstm_step : gru_step)(work, &weights, x + row * work->sizes.inputs,
                                                               gates + row * work->sizes.gates * hidden,
                                                               h + b * hidden, c + b * hidden);
        }
        memcpy(y + step * state, h, state * sizeof *y);
        memcpy(cells + step * state, c, state * sizeof *cells);
    }
    cudnn_round(work->y, y, values_of_y(work), 1, 0);
    if (work->hy != NULL)
        cudnn_round(work->hy, h, state, 1, 0);
    if (work->cy != NULL)
        cudnn_round(work->cy, c, state, 1, 0);
    weights_close(&weights);
    free(c);
    free(h);
    free(y);
    free(x);
    if (work->reserve == NULL)
        free(reserve);
}

/* hx, cx NULL: zeros. hy, cy NULL: not wanted. Inference needs no reserve. */
cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc, cudnnForwardMode_t fwdMode,
                              const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t xDesc, const void *x,
                              cudnnRNNDataDescriptor_t yDesc, void *y, cudnnTensorDescriptor_t hDesc,
                              const void *hx, void *hy, cudnnTensorDescriptor_t cDesc, const void *cx,
                              void *cy, size_t weightSpaceSize, const void *weightSpace, size_t workSpaceSize,
                              void *workSpace, size_t reserveSpaceSize, void *reserveSpace)
{
    ENTER();
    struct lstm_work work = {0};
    TRY(lstm_begin(&work, __func__, handle, run_lstm, rnnDesc, devSeqLengths, xDesc, yDesc));
    REQUIRE(CUDNN_STATUS_BAD_PARAM, fwdMode == CUDNN_FWD_MODE_INFERENCE || fwdMode == CUDNN_FWD_MODE_TRAINING,
            "forward mode %d does not exist", (int)fwdMode);
    const bool training = fwdMode == CUDNN_FWD_MODE_TRAINING;
    const size_t state = values_of_state(&work);
    TRY(check_state(&work, "hDesc", hDesc));
    TRY(check_cells(&work, cDesc));
    TRY(cudnn_reads(&work.work, "x", work.x = x, values_of_x(&work)));
    TRY(cudnn_writes(&work.work, "y", work.y = y, values_of_y(&work)));
    TRY(cudnn_may_read(&work.work, "hx", work.hx = hx, state));
    TRY(cudnn_may_write(&work.work, "hy", work.hy = hy, state));
    TRY(cudnn_may_read(&work.work, "cx", work.cx = cx, state));
    TRY(cudnn_may_write(&work.work, "cy", work.cy = cy, state));
    TRY(cudnn_space(&work.work, "weightSpace", work.weights = weightSpace, weightSpaceSize,
                    weight_space_bytes(&work.rnn), CUDNN_READ));
    TRY(cudnn_scratch(&work.work, "workSpace", workSpace, workSpaceSize, work_bytes(&work.sizes)));
    if (training) {
        TRY(cudnn_space(&work.work, "reserveSpace", reserveSpace, reserveSpaceSize,
                        reserve_bytes(&work.sizes), CUDNN_WRITTEN));
        work.reserve = reserveSpace;
        work.reserve_size = reserveSpaceSize;
    }
    return cudnn_queue(&work.work, sizeof work);
}

/* ---- backward of the data ---- */

static void check_stage(const struct lstm_work *work, enum stage expected, const char *before)
{
    const struct reserve *reserve = work->reserve;
    if (reserve->stage != expected)
        gpu_misuse("the reserve was not written last by %s", before);
    if (memcmp(&reserve->sizes, &work->sizes, sizeof work->sizes) != 0)
        gpu_misuse("the reserve is of a forward with other sizes");
}

/* h before a row: of hx or of y. */
static double state_before(const struct lstm_work *work, size_t row, size_t i)
{
    const size_t batch = work->sizes.batch, hidden = work->sizes.hidden;
    if (row >= batch)
        return (double)work->y[(row - batch) * hidden + i];
    return work->hx != NULL ? (double)work->hx[row * hidden + i] : 0;
}

/* The caller must pass the y that the forward computed; a GRU's by an h that is rounded. */
static void check_y(const struct lstm_work *work, const double *gates, const double *cells)
{
    const size_t hidden = work->sizes.hidden;
    for (size_t i = 0; i < values_of_y(work); i++) {
        const size_t row = i / hidden, unit = i % hidden;
        const double *gate = gates + row * work->sizes.gates * hidden + unit;
        const bool lstm = work->sizes.gates == LSTM;
        const double expected =
            lstm ? (double)(float)(gate[3 * hidden] * tanh(cells[i]))
                 : (1 - gate[hidden]) * gate[2 * hidden] + gate[hidden] * state_before(work, row, unit);
        if (!(fabs((double)work->y[i] - expected) <= (lstm ? 0 : 1e-6)) && !isnan(expected))
            gpu_misuse("y[%zu] is %g, but the forward computed %g", i, (double)work->y[i], expected);
    }
}

/* One sequence's step back: gates (4 hidden) become the gradients of z. `dc` goes from c_t to c_{t-1}. */
static void lstm_step_back(size_t hidden, const double *cell, const double *cell_before, const double *dh,
                           double *gates, double *dc)
{
    for (size_t j = 0; j < hidden; j++) {
        double *gate = gates + j;
        const double i = gate[0], f = gate[hidden], g = gate[2 * hidden], o = gate[3 * hidden];
        const double squashed = tanh(cell[j]);
        const double dcell = dc[j] + dh[j] * o * (1 - squashed * squashed);
        gate[0] = dcell * g * i * (1 - i);
        gate[hidden] = dcell * cell_before[j] * f * (1 - f);
        gate[2 * hidden] = dcell * i * (1 - g * g);
        gate[3 * hidden] = dh[j] * squashed * o * (1 - o);
        dc[j] = dcell * f;
    }
}

/* The same of a GRU: gates (3 hidden) become the gradients of the sums of x, and m that of m. `dh` becomes
 * what goes to the h before by u. */
static void gru_step_back(const struct lstm_work *work, size_t row, double *m, double *gates, double *dh)
{
    const size_t hidden = work->sizes.hidden;
    for (size_t j = 0; j < hidden; j++) {
        double *gate = gates + j;
        const double r = gate[0], u = gate[hidden], n = gate[2 * hidden];
        const double dn = dh[j] * (1 - u) * (1 - n * n);
        gate[0] = dn * m[j] * r * (1 - r);
        gate[hidden] = dh[j] * (state_before(work, row, j) - n) * u * (1 - u);
        gate[2 * hidden] = dn;
        m[j] = dn * r;
        dh[j] *= u;
    }
}

/* to (columns) += from (rows) matrix (rows, columns) */
static void add_columns(double *to, const double *matrix, const double *from, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < columns; i++)
            to[i] += matrix[r * columns + i] * from[r];
}

static void run_lstm_backward_data(void *args)
{
    const struct lstm_work *work = args;
    check_stage(work, FORWARD_DONE, "a forward for training");
    const size_t state = values_of_state(work), hidden = work->sizes.hidden, inputs = work->sizes.inputs,
                 count = work->sizes.gates;
    double *gates = gates_of(work->reserve), *cells = cells_of(work->reserve);
    check_y(work, gates, cells);
    double *dx = cudnn_doubles(NULL, values_of_x(work)), *cx = cudnn_doubles(work->cx, state);
    double *dh = cudnn_doubles(work->dhy, state), *dc = cudnn_doubles(work->dcy, state);
    struct lstm_weights weights;
    weights_open(work, &weights);
    for (size_t step = work->sizes.steps; step-- > 0;)
        for (size_t b = 0; b < work->sizes.batch; b++) {
            const size_t row = step * work->sizes.batch + b;
            const double *before = step == 0 ? cx + b * hidden : cells + (row - work->sizes.batch) * hidden;
            double *dz = gates + row * count * hidden, *dh_row = dh + b * hidden, *m = cells + row * hidden;
            for (size_t i = 0; i < hidden; i++)
                dh_row[i] += (double)work->dy[row * hidden + i];
            if (count == LSTM) {
                lstm_step_back(hidden, cells + row * hidden, before, dh_row, dz, dc + b * hidden);
                memset(dh_row, 0, hidden * sizeof *dh_row);
                add_columns(dh_row, weights.h, dz, LSTM * hidden, hidden);
            } else {
                gru_step_back(work, row, m, dz, dh_row);
                add_columns(dh_row, weights.h, dz, 2 * hidden, hidden);
                add_columns(dh_row, weights.h + 2 * hidden * hidden, m, hidden, hidden);
            }
            add_columns(dx + row * inputs, weights.x, dz, count * hidden, inputs);
        }
    cudnn_round(work->dx, dx, values_of_x(work), 1, 0);
    if (work->dhx != NULL)
        cudnn_round(work->dhx, dh, state, 1, 0);
    if (work->dcx != NULL)
        cudnn_round(work->dcx, dc, state, 1, 0);
    work->reserve->stage = DATA_DONE;
    weights_close(&weights);
    free(dc);
    free(dh);
    free(cx);
    free(dx);
}

/* hx, cx, dhy, dcy NULL: zeros. dhx, dcx NULL: not wanted. */
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc,
                                      const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t yDesc,
                                      const void *y, const void *dy, cudnnRNNDataDescriptor_t xDesc, void *dx,
                                      cudnnTensorDescriptor_t hDesc, const void *hx, const void *dhy,
                                      void *dhx, cudnnTensorDescriptor_t cDesc, const void *cx,
                                      const void *dcy, void *dcx, size_t weightSpaceSize,
                                      const void *weightSpace, size_t workSpaceSize, void *workSpace,
                                      size_t reserveSpaceSize, void *reserveSpace)
{
    ENTER();
    struct lstm_work work = {.y = (float *)(uintptr_t)y};
    TRY(lstm_begin(&work, __func__, handle, run_lstm_backward_data, rnnDesc, devSeqLengths, xDesc, yDesc));
    const size_t state = values_of_state(&work);
    TRY(check_state(&work, "hDesc", hDesc));
    TRY(check_cells(&work, cDesc));
    TRY(cudnn_reads(&work.work, "y", y, values_of_y(&work)));
    TRY(cudnn_reads(&work.work, "dy", work.dy = dy, values_of_y(&work)));
    TRY(cudnn_writes(&work.work, "dx", work.dx = dx, values_of_x(&work)));
    TRY(cudnn_may_read(&work.work, "hx", work.hx = hx, state));
    TRY(cudnn_may_read(&work.work, "dhy", work.dhy = dhy, state));
    TRY(cudnn_may_write(&work.work, "dhx", work.dhx = dhx, state));
    TRY(cudnn_may_read(&work.work, "cx", work.cx = cx, state));
    TRY(cudnn_may_read(&work.work, "dcy", work.dcy = dcy, state));
    TRY(cudnn_may_write(&work.work, "dcx", work.dcx = dcx, state));
    TRY(cudnn_space(&work.work, "weightSpace", work.weights = weightSpace, weightSpaceSize,
                    weight_space_bytes(&work.rnn), CUDNN_READ));
    TRY(cudnn_scratch(&work.work, "workSpace", workSpace, workSpaceSize, work_bytes(&work.sizes)));
    TRY(cudnn_space(&work.work, "reserveSpace", reserveSpace, reserveSpaceSize, reserve_bytes(&work.sizes),
                    CUDNN_WRITTEN));
    work.reserve = reserveSpace;
    return cudnn_queue(&work.work, sizeof work);
}

/* ---- backward of the weights ---- */

/* to (rows, columns) += sum over the rows of dz (rows) from (columns), in double; `from` NULL: nothing. */
static void add_product(double *to, const double *dz, const float *from, size_t rows, size_t columns)
{
    for (size_t r = 0; from != NULL && r < rows; r++)
        for (size_t i = 0; i < columns; i++)
            to[r * columns + i] += dz[r] * (double)from[i];
}

/* Adds the gradients of one matrix and its bias to the caller's. */
static void add_gradient(const struct lstm_work *work, int id, const double *matrix, const double *bias)
{
    const size_t hidden = work->sizes.hidden, columns = matrix_columns(&work->rnn, id);
    const size_t gate = (size_t)id % work->sizes.gates;
    cudnn_round(work->dweights + weight_offset(&work->rnn, id, false), matrix + gate * hidden * columns,
                hidden * columns, 1, 1);
    cudnn_round(work->dweights + weight_offset(&work->rnn, id, true), bias + gate * hidden, hidden, 1, 1);
}

/* The sums over all rows of the gradients of a matrix (gates * hidden, columns) and of its bias. */
struct weight_sums {
    double *matrix, *bias;
};

static struct weight_sums weight_sums_of(const struct lstm_work *work, size_t columns)
{
    const size_t sums = work->sizes.gates * work->sizes.hidden;
    return (struct weight_sums){cudnn_doubles(NULL, sums * columns), cudnn_doubles(NULL, sums)};
}

/* Of `rows` gates' units from `first` on, whose sums' gradients are dz. */
static void add_row(struct weight_sums *to, size_t first, size_t rows, const double *dz, const float *from,
                    size_t columns)
{
    add_product(to->matrix + first * columns, dz, from, rows, columns);
    for (size_t i = 0; i < rows; i++)
        to->bias[first + i] += dz[i];
}

static void run_lstm_backward_weights(void *args)
{
    const struct lstm_work *work = args;
    check_stage(work, DATA_DONE, "cudnnRNNBackwardData_v8");
    const size_t hidden = work->sizes.hidden, inputs = work->sizes.inputs, batch = work->sizes.batch;
    const size_t count = work->sizes.gates,
                 same = count == LSTM ? LSTM : 2; // sums of x and h with one gradient
    const double *dz = gates_of(work->reserve), *dm = cells_of(work->reserve);
    struct weight_sums of_x = weight_sums_of(work, inputs), of_h = weight_sums_of(work, hidden);
    for (size_t row = 0; row < work->sizes.steps * batch; row++, dz += count * hidden) {
        const float *first = work->hx != NULL ? work->hx + row * hidden : NULL;
        const float *before = row < batch ? first : work->y + (row - batch) * hidden;
        add_row(&of_x, 0, count * hidden, dz, work->x + row * inputs, inputs);
        add_row(&of_h, 0, same * hidden, dz, before, hidden);
        if (count == GRU)
            add_row(&of_h, 2 * hidden, hidden, dm + row * hidden, before, hidden);
    }
    for (int id = 0; id < 2 * (int)count; id++)
        add_gradient(work, id, id < (int)count ? of_x.matrix : of_h.matrix,
                     id < (int)count ? of_x.bias : of_h.bias);
    free(of_x.matrix);
    free(of_x.bias);
    free(of_h.matrix);
    free(of_h.bias);
}

/* Adds to dweightSpace. hx NULL: zeros. */
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc,
                                         cudnnWgradMode_t addGrad, const int32_t devSeqLengths[],
                                         cudnnRNNDataDescriptor_t xDesc, const void *x,
                                         cudnnTensorDescriptor_t hDesc, const void *hx,
                                         cudnnRNNDataDescriptor_t yDesc, const void *y,
                                         size_t weightSpaceSize, void *dweightSpace, size_t workSpaceSize,
                                         void *workSpace, size_t reserveSpaceSize, void *reserveSpace)
{
    ENTER();
    struct lstm_work work = {.y = (float *)(uintptr_t)y, .dweights = dweightSpace};
    TRY(lstm_begin(&work, __func__, handle, run_lstm_backward_weights, rnnDesc, devSeqLengths, xDesc, yDesc));
    REQUIRE(CUDNN_STATUS_NOT_SUPPORTED, addGrad == CUDNN_WGRAD_MODE_ADD,
            "gradients are only added: CUDNN_WGRAD_MODE_ADD");
    TRY(check_state(&work, "hDesc", hDesc));
    TRY(cudnn_reads(&work.work, "x", work.x = x, values_of_x(&work)));
    TRY(cudnn_may_read(&work.work, "hx", work.hx = hx, values_of_state(&work)));
    TRY(cudnn_reads(&work.work, "y", y, values_of_y(&work)));
    TRY(cudnn_space(&work.work, "dweightSpace", dweightSpace, weightSpaceSize, weight_space_bytes(&work.rnn),
                    CUDNN_WRITTEN));
    TRY(cudnn_scratch(&work.work, "workSpace", workSpace, workSpaceSize, work_bytes(&work.sizes)));
    TRY(cudnn_space(&work.work, "reserveSpace", reserveSpace, reserveSpaceSize, reserve_bytes(&work.sizes),
                    CUDNN_WRITTEN));
    work.reserve = reserveSpace;
    return cudnn_queue(&work.work, sizeof work);
}
