/* A policy's layers as one launch: input copy, layers, perhaps dropout and a draw, output copy, captured as a
 * CUDA graph for each padded batch size.
 *
 * A captured launch repeats its captured arguments, so nothing that changes may be an argument: observations
 * and keys are read from the input slab, the weights from the parameters, where the learner updates them. All
 * graphs share the slabs and the workspace. Therefore every size runs once before any is captured: then the
 * workspace has the largest size, and cuDNN has loaded its kernels, which it cannot do inside a capture. */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>
#include <cstring>

enum { SIZES_MAX = 32 };

struct policy_size {
    uint32_t rows;
    cudaGraphExec_t graph;
};

struct policy_launch {
    struct policy_launch_settings settings;
    uint32_t size_count;
    struct policy_size sizes[SIZES_MAX];
    bool draws; /* keys are read */
    /* Slabs on the device, and pinned on the host. In: (rows, inputs) observations, then (rows, 3) keys. Out:
     * the results, in the layers' order; on the device each y behind them that is not a result. */
    float *in, *in_host, *out, *out_host;
    void *workspace;
    size_t workspace_bytes;
};

/* ---- slabs ---- */

/* Floats of a matrix in a slab. The next one is aligned for whatever reads it. */
static size_t slab_floats(uint32_t rows, uint32_t columns)
{
    return ((size_t)rows * columns + 63) / 64 * 64;
}

static uint32_t result_columns(const struct policy_launch_layer *layer)
{
    return layer->result == POLICY_LAUNCH_ACTIONS ? 1 : layer->weight.shape.size[0];
}

/* Floats of the slabs for so many rows: in, the results, and each y that is not a result. */
struct slab_sizes {
    size_t in, out, inner;
};

static struct slab_sizes slab_sizes_of(const struct policy_launch *launch, uint32_t rows)
{
    const struct policy_launch_settings *settings = &launch->settings;
    struct slab_sizes floats = {
        slab_floats(rows, settings->inputs) + (launch->draws ? slab_floats(rows, 3) : 0), 0, 0};
    for (uint32_t l = 0; l < settings->layers; l++) {
        const struct policy_launch_layer *layer = &settings->layer[l];
        if (layer->result != POLICY_LAUNCH_INNER)
            floats.out += slab_floats(rows, result_columns(layer));
        if (layer->result != POLICY_LAUNCH_FLOATS)
            floats.inner += slab_floats(rows, layer->weight.shape.size[0]);
    }
    return floats;
}

/* ---- one launch's body ---- */

static struct tensor matrix(uint32_t rows, uint32_t columns, enum dtype dtype, void *data, const char *name)
{
    struct tensor tensor = {};
    tensor.shape = {2, {rows, columns}};
    tensor.dtype = dtype;
    tensor.data = data;
    tensor.bytes = (size_t)rows * columns * dtype_bytes(dtype);
    tensor.name = name;
    return tensor;
}

/* In place. With dropout, the ReLU comes before the mask: they commute. It is in the mask's kernel and not in
 * cuDNN's call, whose ReLU makes 0 of a NaN: a policy with a NaN would draw actions as if nothing was wrong.
 */
static enum status queue_activation(struct backend *backend, const struct policy_launch *launch,
                                    const struct policy_launch_layer *layer, struct tensor *y,
                                    struct tensor *keys, struct error *error)
{
    struct op_call call = {};
    call.op = layer->activation;
    call.in[0] = call.out[0] = y;
    if (layer->dropout == 0)
        return call.op == OP_LINEAR ? STATUS_OK : cuda_activation(backend, &call, error);
    call.attributes.relu = true;
    call.attributes.dropout = layer->dropout;
    call.attributes.draw.seed = launch->settings.seed;
    call.in[1] = keys;
    return cuda_dropout(backend, &call, error);
}

static enum status queue_layer(struct backend *backend, struct policy_launch *launch,
                               struct policy_launch_layer *layer, struct tensor *x, struct tensor *y,
                               struct tensor *keys, struct error *error)
{
    struct op_call call = {};
    call.op = OP_LINEAR;
    call.in[0] = x;
    call.in[1] = &layer->weight;
    call.in[2] = &layer->bias;
    call.out[0] = y;
    TRY(cuda_convolution(backend, &call, error));
    return queue_activation(backend, launch, layer, y, keys, error);
}

/* The action for one row, by the softmax of z (classes): the smallest a with u < P(0) + … + P(a), else the
 * last. row: (environment, step, episode). */
static __device__ uint32_t draw_action(uint64_t seed, const int32_t *row, const float *z, uint32_t classes)
{
    const uint32_t word[3] = {(uint32_t)row[0], (uint32_t)row[1], (uint32_t)row[2]};
    uint32_t action = 0;
    float highest = z[0], total = 0;
    for (uint32_t a = 1; a < classes; a++)
        highest = fmaxf(highest, z[a]);
    for (uint32_t a = 0; a < classes; a++)
        total += expf(z[a] - highest);
    const float uniform = (float)(device_philox(seed, word, RNG_ACTION, 0).v[0] >> 8) * 0x1p-24f;
    float cumulated = expf(z[0] - highest) / total;
    while (action + 1 < classes && !(uniform < cumulated))
        cumulated += expf(z[++action] - highest) / total;
    return action;
}

static enum status queue_draw(struct cuda *cuda, const struct policy_launch *launch,
                              const struct tensor *logits, const struct tensor *keys, int32_t *action,
                              struct error *error)
{
    const uint64_t seed = launch->settings.seed;
    const uint32_t rows = logits->shape.size[0], classes = logits->shape.size[1];
    const float *z = cuda_floats(logits);
    const int32_t *key = cuda_ints(keys);
    return cuda_each(cuda, rows, "launch of the policy's actions", logits, error, [=] __device__(size_t row) {
        action[row] = (int32_t)draw_action(seed, key + 3 * row, z + row * classes, classes);
    });
}

static enum status queue_body(struct backend *backend, struct policy_launch *launch, uint32_t rows,
                              struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    struct policy_launch_settings *settings = &launch->settings;
    const struct slab_sizes floats = slab_sizes_of(launch, rows);
    float *out = launch->out, *inner = out + floats.out;
    struct tensor keys = matrix(rows, 3, DTYPE_I32, launch->in + slab_floats(rows, settings->inputs), "keys");
    struct tensor y[1 + POLICY_LAUNCH_LAYERS_MAX];
    y[0] = matrix(rows, settings->inputs, DTYPE_F32, launch->in, "observations");
    CUDA_TRY(&y[0], cudaMemcpyAsync, launch->in, launch->in_host, floats.in * sizeof(float),
             cudaMemcpyHostToDevice, cuda->stream);
    for (uint32_t l = 0; l < settings->layers; l++) {
        struct policy_launch_layer *layer = &settings->layer[l];
        const uint32_t outputs = layer->weight.shape.size[0];
        float **slab = layer->result == POLICY_LAUNCH_FLOATS ? &out : &inner;
        y[l + 1] = matrix(rows, outputs, DTYPE_F32, *slab, "a layer's units");
        *slab += slab_floats(rows, outputs);
        TRY(queue_layer(backend, launch, layer, &y[layer->from], &y[l + 1], &keys, error));
        if (layer->result != POLICY_LAUNCH_ACTIONS)
            continue;
        TRY(queue_draw(cuda, launch, &y[l + 1], &keys, (int32_t *)out, error));
        out += slab_floats(rows, 1);
    }
    CUDA_TRY(&y[0], cudaMemcpyAsync, launch->out_host, launch->out, floats.out * sizeof(float),
             cudaMemcpyDeviceToHost, cuda->stream);
    return STATUS_OK;
}

/* ---- open, close ---- */

/* The relaxed mode lets cuDNN call functions that a stricter mode forbids to the capturing thread, as long as
 * they queue nothing on the stream. */
static enum status capture(struct backend *backend, struct policy_launch *launch, struct policy_size *size,
                           struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    cudaGraph_t graph = NULL;
    CUDA_TRY(NULL, cudaStreamBeginCapture, cuda->stream, cudaStreamCaptureModeRelaxed);
    enum status status = queue_body(backend, launch, size->rows, error);
    cudaError_t code = cudaStreamEndCapture(cuda->stream, &graph);
    const char *call = "cudaStreamEndCapture";
    if (status == STATUS_OK && code == cudaSuccess) {
        call = "cudaGraphInstantiate";
        code = cudaGraphInstantiate(&size->graph, graph, 0);
    }
    if (status == STATUS_OK && code == cudaSuccess) {
        call = "cudaGraphUpload";
        code = cudaGraphUpload(size->graph, cuda->stream);
    }
    if (graph != NULL)
        cudaGraphDestroy(graph);
    if (status == STATUS_OK && code != cudaSuccess)
        status = cuda_failed(error, call, code, NULL);
    cudaGetLastError(); // an error of cudaStreamEndCapture or cudaGraphDestroy must not look like a launch's
    return status;
}

/* Exchanges the policy's workspace and the backend's. The policy's launches are captured with the policy's
 * own, because a graph keeps the address and the backend's workspace may move. */
static void swap_workspace(struct cuda *cuda, struct policy_launch *launch)
{
    void *workspace = cuda->workspace;
    const size_t bytes = cuda->workspace_bytes;
    cuda->workspace = launch->workspace;
    cuda->workspace_bytes = launch->workspace_bytes;
    launch->workspace = workspace;
    launch->workspace_bytes = bytes;
}

static enum status capture_all(struct backend *backend, struct policy_launch *launch, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    enum status status = STATUS_OK;
    swap_workspace(cuda, launch);
    for (uint32_t i = 0; status == STATUS_OK && i < launch->size_count; i++)
        status = queue_body(backend, launch, launch->sizes[i].rows, error);
    if (status == STATUS_OK)
        status = cuda_wait(cuda, NULL, error);
    for (uint32_t i = 0; status == STATUS_OK && i < launch->size_count; i++)
        status = capture(backend, launch, &launch->sizes[i], error);
    if (status == STATUS_OK)
        status = cuda_wait(cuda, NULL, error);
    swap_workspace(cuda, launch);
    return status;
}

static enum status take_memory(struct policy_launch *launch, struct error *error)
{
    const struct slab_sizes floats = slab_sizes_of(launch, launch->settings.rows_max);
    const size_t in = floats.in * sizeof(float), out = floats.out * sizeof(float);
    CUDA_TRY(NULL, cudaMalloc, (void **)&launch->in, in);
    CUDA_TRY(NULL, cudaMalloc, (void **)&launch->out, out + floats.inner * sizeof(float));
    CUDA_TRY(NULL, cudaHostAlloc, (void **)&launch->in_host, in, cudaHostAllocDefault);
    CUDA_TRY(NULL, cudaHostAlloc, (void **)&launch->out_host, out, cudaHostAllocDefault);
    memset(launch->in_host, 0, in);
    return STATUS_OK;
}

static void cuda_launch_free(struct backend *backend, struct policy_launch *launch)
{
    cudaStreamSynchronize(cuda_of(backend)->stream);
    for (uint32_t i = 0; i < launch->size_count; i++)
        if (launch->sizes[i].graph != NULL)
            cudaGraphExecDestroy(launch->sizes[i].graph);
    cudaFree(launch->in);
    cudaFree(launch->out);
    cudaFree(launch->workspace);
    cudaFreeHost(launch->in_host);
    cudaFreeHost(launch->out_host);
    cudaGetLastError(); // an error above must not look like the next launch's
    free(launch);
}

static enum status cuda_launch_new(struct backend *backend, const struct policy_launch_settings *settings,
                                   struct policy_launch **out, struct error *error)
{
    struct policy_launch *launch = (struct policy_launch *)calloc(1, sizeof *launch);
    if (launch == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a captured policy");
    launch->settings = *settings;
    for (uint32_t l = 0; l < settings->layers; l++)
        launch->draws |= settings->layer[l].dropout > 0 || settings->layer[l].result == POLICY_LAUNCH_ACTIONS;
    for (uint32_t rows = 1; rows < settings->rows_max; rows = settings->fixed ? settings->rows_max : 2 * rows)
        launch->sizes[launch->size_count++].rows = rows;
    launch->sizes[launch->size_count++].rows = settings->rows_max;
    enum status status = take_memory(launch, error);
    if (status == STATUS_OK)
        status = capture_all(backend, launch, error);
    if (status != STATUS_OK) {
        cuda_launch_free(backend, launch);
        return status;
    }
    *out = launch;
    return STATUS_OK;
}

/* ---- run ---- */

/* Values of the rows, and zeros behind them up to `floats`. */
static void fill(float *to, const void *values, size_t count, size_t floats)
{
    memcpy(to, values, count * sizeof *to);
    memset(to + count, 0, (floats - count) * sizeof *to);
}

static enum status cuda_launch_run(struct backend *backend, struct policy_launch *launch, uint32_t rows,
                                   const float *observations, const int32_t *keys, void *const results[],
                                   struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct policy_launch_settings *settings = &launch->settings;
    const uint32_t inputs = settings->inputs;
    const struct policy_size *size = launch->sizes;
    while (size->rows < rows)
        size++;
    const size_t seen = slab_floats(size->rows, inputs);
    fill(launch->in_host, observations, (size_t)rows * inputs, seen);
    if (launch->draws)
        fill(launch->in_host + seen, keys, (size_t)rows * 3, slab_floats(size->rows, 3));
    CUDA_TRY(NULL, cudaGraphLaunch, size->graph, cuda->stream);
    TRY(cuda_wait(cuda, NULL, error));
    const float *out = launch->out_host;
    for (uint32_t l = 0; l < settings->layers; l++) {
        if (settings->layer[l].result == POLICY_LAUNCH_INNER)
            continue;
        const uint32_t columns = result_columns(&settings->layer[l]);
        memcpy(*results++, out, (size_t)rows * columns * sizeof *out);
        out += slab_floats(size->rows, columns);
    }
    return STATUS_OK;
}

void cuda_policy_slots(struct backend_ops *ops)
{
    ops->launch_new = cuda_launch_new;
    ops->launch_free = cuda_launch_free;
    ops->launch_run = cuda_launch_run;
}
