/* The policy's act as one launch: input copy, two layers, dropout, softmax, sample, output copy, captured as
 * a CUDA graph for each padded batch size.
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
    /* Slabs on the device, and pinned on the host. In: (rows, inputs) float32 observations, then (rows, 3)
     * int32 keys. Out: (rows) actions. */
    void *in, *in_host;
    int32_t *out, *out_host;
    void *hidden, *logits; /* (rows_max, hidden), (rows_max, actions) */
    void *workspace;
    size_t workspace_bytes;
};

static size_t in_bytes(const struct policy_launch *launch, uint32_t rows)
{
    return (size_t)rows * (launch->settings.shape.inputs + 3) * sizeof(float);
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

/* Layer 0 or 1. */
static enum status queue_layer(struct backend *backend, struct policy_launch *launch, int layer,
                               struct tensor *x, struct tensor *y, struct error *error)
{
    struct op_call call = {};
    call.op = OP_LINEAR;
    call.in[0] = x;
    call.in[1] = &launch->settings.parameter[2 * layer];
    call.in[2] = &launch->settings.parameter[2 * layer + 1];
    call.out[0] = y;
    return cuda_convolution(backend, &call, error);
}

/* ReLU and dropout, in place. */
static enum status queue_dropout(struct backend *backend, const struct policy_launch *launch,
                                 struct tensor *hidden, struct tensor *keys, struct error *error)
{
    struct op_call call = {};
    call.op = OP_DROPOUT;
    call.attributes.relu = true;
    call.attributes.dropout = launch->settings.dropout;
    call.attributes.draw.seed = launch->settings.seed;
    call.in[0] = call.out[0] = hidden;
    call.in[1] = keys;
    return cuda_dropout(backend, &call, error);
}

/* The ReLU comes before the mask: they commute. It is in the mask's kernel and not in cuDNN's call, whose
 * ReLU makes 0 of a NaN: a policy with a NaN would draw actions as if nothing was wrong. */
static enum status queue_body(struct backend *backend, struct policy_launch *launch, uint32_t rows,
                              struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct mlp_shape *shape = &launch->settings.shape;
    int32_t *key = (int32_t *)launch->in + (size_t)rows * shape->inputs;
    struct tensor x = matrix(rows, shape->inputs, DTYPE_F32, launch->in, "observations");
    struct tensor keys = matrix(rows, 3, DTYPE_I32, key, "keys");
    struct tensor hidden = matrix(rows, shape->hidden, DTYPE_F32, launch->hidden, "hidden units");
    struct tensor logits = matrix(rows, shape->actions, DTYPE_F32, launch->logits, "logits");
    CUDA_TRY(&x, cudaMemcpyAsync, launch->in, launch->in_host, in_bytes(launch, rows), cudaMemcpyHostToDevice,
             cuda->stream);
    TRY(queue_layer(backend, launch, 0, &x, &hidden, error));
    TRY(queue_dropout(backend, launch, &hidden, &keys, error));
    TRY(queue_layer(backend, launch, 1, &hidden, &logits, error));
    const uint64_t seed = launch->settings.seed;
    const uint32_t classes = shape->actions;
    const float *z = cuda_floats(&logits);
    int32_t *action = launch->out;
    TRY(cuda_each(cuda, rows, "launch of the policy's actions", &x, error, [=] __device__(size_t row) {
        action[row] = (int32_t)element_policy_action(seed, key + 3 * row, z + row * classes, classes);
    }));
    CUDA_TRY(&x, cudaMemcpyAsync, launch->out_host, launch->out, rows * sizeof(int32_t),
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
    const struct mlp_shape *shape = &launch->settings.shape;
    const uint32_t rows = launch->settings.rows_max;
    const size_t bytes = in_bytes(launch, rows);
    CUDA_TRY(NULL, cudaMalloc, &launch->in, bytes);
    CUDA_TRY(NULL, cudaMalloc, (void **)&launch->out, rows * sizeof(int32_t));
    CUDA_TRY(NULL, cudaMalloc, &launch->hidden, (size_t)rows * shape->hidden * sizeof(float));
    CUDA_TRY(NULL, cudaMalloc, &launch->logits, (size_t)rows * shape->actions * sizeof(float));
    CUDA_TRY(NULL, cudaHostAlloc, &launch->in_host, bytes, cudaHostAllocDefault);
    CUDA_TRY(NULL, cudaHostAlloc, (void **)&launch->out_host, rows * sizeof(int32_t), cudaHostAllocDefault);
    memset(launch->in_host, 0, bytes);
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
    cudaFree(launch->hidden);
    cudaFree(launch->logits);
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
    for (uint32_t rows = 1; !settings->fixed && rows < settings->rows_max; rows *= 2)
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

/* ---- act ---- */

/* The rest of the input slab is zero, so that a launch is a function of its rows. */
static enum status cuda_launch_run(struct backend *backend, struct policy_launch *launch,
                                   const struct mlp_batch *batch, uint32_t episode,
                                   const uint32_t *environment, const uint32_t *step, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const uint32_t inputs = launch->settings.shape.inputs;
    const bool fixed = launch->settings.fixed;
    const struct policy_size *size = launch->sizes;
    while (size->rows < batch->count)
        size++;
    float *observations = (float *)launch->in_host;
    int32_t *keys = (int32_t *)launch->in_host + (size_t)size->rows * inputs;
    memset(launch->in_host, 0, in_bytes(launch, size->rows));
    for (uint32_t i = 0; i < batch->count; i++) {
        const uint32_t place = fixed ? environment[i] : i, key[3] = {environment[i], step[i], episode};
        memcpy(observations + (size_t)place * inputs, batch->observations + (size_t)batch->row[i] * inputs,
               inputs * sizeof(float));
        memcpy(keys + (size_t)place * 3, key, sizeof key);
    }
    CUDA_TRY(NULL, cudaGraphLaunch, size->graph, cuda->stream);
    TRY(cuda_wait(cuda, NULL, error));
    for (uint32_t i = 0; i < batch->count; i++)
        batch->actions[batch->row[i]] = launch->out_host[fixed ? environment[i] : i];
    return STATUS_OK;
}

void cuda_policy_slots(struct backend_ops *ops)
{
    ops->launch_new = cuda_launch_new;
    ops->launch_free = cuda_launch_free;
    ops->launch_run = cuda_launch_run;
}
