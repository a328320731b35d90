/* The policy's act as one launch: input copy, two layers, dropout, softmax, sample, output copy, captured as
 * a CUDA graph for each padded batch size.
 *
 * A captured launch repeats its captured arguments, so nothing that changes may be an argument: observations,
 * keys and the seed are read from the input slab, the weights from the parameter slab, where the learner
 * updates them. All graphs share the slabs and the workspace. Therefore every size runs once before any is
 * captured: then the workspace has the largest size, and cuDNN has loaded its kernels, which it cannot do
 * inside a capture. */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>
#include <cstring>

enum { SIZES_MAX = 32, SECTION_BYTES = 256 };

/* Where things stand in the input and the output slab of one padded size, in bytes. The seed is at 0. */
struct slab_layout {
    size_t observations, words, in_bytes;            /* (rows, inputs) float, (rows, 3) int32 */
    size_t probabilities, masks, actions, out_bytes; /* (rows, actions) float, (rows, mask words), (rows) */
};

struct policy_size {
    uint32_t rows;
    struct slab_layout layout;
    cudaGraphExec_t graph;
};

struct policy_rows {
    struct mlp_shape shape;
    uint32_t threshold;
    float scale;
    uint32_t rows_max, size_count;
    bool fixed;
    float *weight[2], *bias[2]; /* in the parameter slab */
    char *in, *out;             /* slabs on the device ... */
    char *in_host, *out_host;   /* ... and pinned on the host */
    float *hidden, *logits;     /* (rows_max, hidden), (rows_max, actions) */
    void *workspace;
    size_t workspace_bytes;
    struct policy_size sizes[SIZES_MAX];
};

static size_t section(size_t bytes)
{
    return (bytes + SECTION_BYTES - 1) / SECTION_BYTES * SECTION_BYTES;
}

static struct slab_layout layout_of(const struct mlp_shape *shape, uint32_t rows)
{
    struct slab_layout layout;
    layout.observations = SECTION_BYTES;
    layout.words = layout.observations + section((size_t)rows * shape->inputs * sizeof(float));
    layout.in_bytes = layout.words + (size_t)rows * 3 * sizeof(int32_t);
    layout.probabilities = 0;
    layout.masks = section((size_t)rows * shape->actions * sizeof(float));
    layout.actions = layout.masks + section((size_t)rows * mlp_mask_words(shape) * sizeof(uint16_t));
    layout.out_bytes = layout.actions + rows;
    return layout;
}

/* ---- kernels ---- */

struct policy_dropout {
    uint32_t rows, hidden, mask_words, threshold;
    float scale;
};

/* A thread for each row and Philox block: drops its up to 8 units, and hands their keep bits to the threads
 * that write the mask. 16 neighbours have the 8 words of a group of 128 units; word v is made of everyone's
 * bit v. All threads of a warp take part in that, those beyond the last row too. */
static __global__ void policy_dropout_kernel(struct policy_dropout d, const uint64_t *seed,
                                             const int32_t *words, float *hidden, uint16_t *masks)
{
    const uint32_t blocks = element_dropout_blocks(d.hidden);
    const size_t row = cuda_thread() / blocks;
    const uint32_t block = (uint32_t)(cuda_thread() % blocks), lane = threadIdx.x % 16;
    const bool live = row < d.rows;
    uint32_t bits = 0, mine = 0;
    if (live) {
        const uint32_t word[3] = {(uint32_t)words[3 * row], (uint32_t)words[3 * row + 1],
                                  (uint32_t)words[3 * row + 2]};
        bits = element_keep_bits(*seed, word, block, d.threshold);
        for (uint32_t v = 0; v < 8; v++) {
            const uint32_t j = element_dropout_index(block, v);
            if (j >= d.hidden)
                bits &= ~(1u << v);
            else
                hidden[row * d.hidden + j] = bits >> v & 1 ? hidden[row * d.hidden + j] * d.scale : 0;
        }
    }
    for (uint32_t v = 0; v < 8; v++) {
        const uint32_t all = __ballot_sync(0xffffffffu, bits >> v & 1);
        if (lane == v)
            mine = all >> (threadIdx.x & 16) & 0xffff;
    }
    const uint32_t word = block / 16 * 8 + lane;
    if (live && lane < 8 && word < d.mask_words)
        masks[row * d.mask_words + word] = (uint16_t)mine;
}

static __global__ void policy_action_kernel(uint32_t rows, uint32_t classes, const uint64_t *seed,
                                            const int32_t *words, const float *logits, float *probabilities,
                                            uint8_t *actions)
{
    const size_t row = cuda_thread();
    if (row < rows)
        actions[row] = (uint8_t)element_policy_row(*seed, words + 3 * row, logits + row * classes, classes,
                                                   probabilities + row * classes);
}

/* ---- one launch's body ---- */

static struct tensor matrix(uint32_t rows, uint32_t columns, void *data, const char *name)
{
    struct tensor tensor = {};
    tensor.shape.rank = 2;
    tensor.shape.size[0] = rows;
    tensor.shape.size[1] = columns;
    tensor.dtype = DTYPE_F32;
    tensor.data = data;
    tensor.bytes = (size_t)rows * columns * sizeof(float);
    tensor.name = name;
    return tensor;
}

static enum status layer(struct backend *backend, struct tensor *x, uint32_t outputs, float *weight,
                         float *bias, bool relu, float *y, struct error *error)
{
    struct tensor weights = matrix(outputs, x->shape.size[1], weight, "the policy's weight");
    struct tensor biases = matrix(1, outputs, bias, "the policy's bias");
    struct tensor result = matrix(x->shape.size[0], outputs, y, "the policy's layer");
    struct op_call call = {};
    call.op = OP_LINEAR;
    call.attributes.relu = relu;
    call.in[0] = x;
    call.in[1] = &weights;
    call.in[2] = &biases;
    call.out[0] = &result;
    return cuda_linear(backend, &call, error);
}

/* Bias and ReLU are fused before the mask: they commute with it. */
static enum status queue_body(struct backend *backend, struct policy_rows *rows,
                              const struct policy_size *size, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct slab_layout *layout = &size->layout;
    const struct mlp_shape *shape = &rows->shape;
    const uint64_t *seed = (const uint64_t *)rows->in;
    const int32_t *words = (const int32_t *)(rows->in + layout->words);
    struct tensor x = matrix(size->rows, shape->inputs, rows->in + layout->observations, "observations");
    struct tensor hidden = matrix(size->rows, shape->hidden, rows->hidden, "hidden units");
    const struct policy_dropout dropout = {size->rows, shape->hidden, mlp_mask_words(shape), rows->threshold,
                                           rows->scale};
    CUDA_TRY(&x, cudaMemcpyAsync, rows->in, rows->in_host, layout->in_bytes, cudaMemcpyHostToDevice,
             cuda->stream);
    TRY(layer(backend, &x, shape->hidden, rows->weight[0], rows->bias[0], true, rows->hidden, error));
    policy_dropout_kernel<<<cuda_blocks((size_t)size->rows * element_dropout_blocks(shape->hidden)), THREADS,
                            0, cuda->stream>>>(dropout, seed, words, rows->hidden,
                                               (uint16_t *)(rows->out + layout->masks));
    LAUNCH_TRY(&hidden, "the policy's dropout");
    TRY(layer(backend, &hidden, shape->actions, rows->weight[1], rows->bias[1], false, rows->logits, error));
    policy_action_kernel<<<cuda_blocks(size->rows), THREADS, 0, cuda->stream>>>(
        size->rows, shape->actions, seed, words, rows->logits, (float *)(rows->out + layout->probabilities),
        (uint8_t *)(rows->out + layout->actions));
    LAUNCH_TRY(&x, "the policy's actions");
    CUDA_TRY(&x, cudaMemcpyAsync, rows->out_host, rows->out, layout->out_bytes, cudaMemcpyDeviceToHost,
             cuda->stream);
    return STATUS_OK;
}

/* ---- open, close ---- */

/* Relaxed: cuDNN may call what a stricter mode forbids to the capturing thread, as long as none of it goes to
 * the stream. */
static enum status capture(struct backend *backend, struct policy_rows *rows, struct policy_size *size,
                           struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    cudaGraph_t graph = NULL;
    CUDA_TRY(NULL, cudaStreamBeginCapture, cuda->stream, cudaStreamCaptureModeRelaxed);
    enum status status = queue_body(backend, rows, size, error);
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
    else if (status != STATUS_OK)
        cudaGetLastError(); // that the capture ended badly is no news
    return status;
}

/* The policy's own workspace takes the backend's place while its launches are queued: a graph keeps the
 * address, and the backend's may move. */
static void swap_workspace(struct cuda *cuda, struct policy_rows *rows)
{
    void *workspace = cuda->workspace;
    const size_t bytes = cuda->workspace_bytes;
    cuda->workspace = rows->workspace;
    cuda->workspace_bytes = rows->workspace_bytes;
    rows->workspace = workspace;
    rows->workspace_bytes = bytes;
}

static enum status capture_all(struct backend *backend, struct policy_rows *rows, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    enum status status = STATUS_OK;
    swap_workspace(cuda, rows);
    for (uint32_t i = 0; status == STATUS_OK && i < rows->size_count; i++)
        status = queue_body(backend, rows, &rows->sizes[i], error);
    if (status == STATUS_OK)
        status = cuda_wait(cuda, NULL, error);
    for (uint32_t i = 0; status == STATUS_OK && i < rows->size_count; i++)
        status = capture(backend, rows, &rows->sizes[i], error);
    if (status == STATUS_OK)
        status = cuda_wait(cuda, NULL, error);
    swap_workspace(cuda, rows);
    return status;
}

static void add_size(struct policy_rows *rows, uint32_t count)
{
    struct policy_size *size = &rows->sizes[rows->size_count++];
    size->rows = count;
    size->layout = layout_of(&rows->shape, count);
}

static enum status take_memory(struct policy_rows *rows, struct error *error)
{
    const struct slab_layout *largest = &rows->sizes[rows->size_count - 1].layout;
    const size_t units = (size_t)rows->rows_max * rows->shape.hidden;
    const size_t logits = (size_t)rows->rows_max * rows->shape.actions;
    CUDA_TRY(NULL, cudaMalloc, (void **)&rows->in, largest->in_bytes);
    CUDA_TRY(NULL, cudaMalloc, (void **)&rows->out, largest->out_bytes);
    CUDA_TRY(NULL, cudaMalloc, (void **)&rows->hidden, units * sizeof(float));
    CUDA_TRY(NULL, cudaMalloc, (void **)&rows->logits, logits * sizeof(float));
    CUDA_TRY(NULL, cudaHostAlloc, (void **)&rows->in_host, largest->in_bytes, cudaHostAllocDefault);
    CUDA_TRY(NULL, cudaHostAlloc, (void **)&rows->out_host, largest->out_bytes, cudaHostAllocDefault);
    memset(rows->in_host, 0, largest->in_bytes);
    return STATUS_OK;
}

/* mlp's four tensors, each from a multiple of 64 bytes on. */
static enum status find_weights(struct policy_rows *rows, const struct tensor *slab, struct error *error)
{
    enum { ALIGNMENT = 64 / sizeof(float) };
    const size_t hidden = rows->shape.hidden, inputs = rows->shape.inputs, actions = rows->shape.actions;
    const size_t counts[4] = {hidden * inputs, hidden, actions * hidden, actions};
    size_t offset = 0;
    for (int i = 0; i < 4; i++) {
        (i % 2 == 0 ? rows->weight : rows->bias)[i / 2] = cuda_floats(slab) + offset;
        if (offset + counts[i] > cuda_elements(slab))
            return error_set(
                error, STATUS_INVALID,
                "policy: a slab of %zu parameters, expected at least %zu for %u inputs, %u hidden "
                "units and %u actions",
                cuda_elements(slab), offset + counts[i], rows->shape.inputs, rows->shape.hidden,
                rows->shape.actions);
        offset += (counts[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return STATUS_OK;
}

static void cuda_policy_close(struct backend *backend, struct policy_rows *rows)
{
    if (rows == NULL)
        return;
    cudaStreamSynchronize(cuda_of(backend)->stream);
    for (uint32_t i = 0; i < rows->size_count; i++)
        if (rows->sizes[i].graph != NULL)
            cudaGraphExecDestroy(rows->sizes[i].graph);
    cudaFree(rows->in);
    cudaFree(rows->out);
    cudaFree(rows->hidden);
    cudaFree(rows->logits);
    cudaFree(rows->workspace);
    cudaFreeHost(rows->in_host);
    cudaFreeHost(rows->out_host);
    free(rows);
}

static enum status check_bounds(const struct mlp_shape *shape, uint32_t rows_max, struct error *error)
{
    enum { ROWS_MAX = 1 << 20 };
    if (shape->inputs >= 1 && shape->inputs <= MLP_INPUTS_MAX && shape->hidden >= 1 &&
        shape->hidden <= MLP_HIDDEN_MAX && shape->actions >= 1 && shape->actions <= MLP_ACTIONS_MAX &&
        rows_max >= 1 && rows_max <= ROWS_MAX)
        return STATUS_OK;
    return error_set(
        error, STATUS_INVALID,
        "policy: expected 1..%d inputs, 1..%d hidden units, 1..%d actions and 1..%d rows, got %u, "
        "%u, %u and %u",
        (int)MLP_INPUTS_MAX, (int)MLP_HIDDEN_MAX, (int)MLP_ACTIONS_MAX, (int)ROWS_MAX, shape->inputs,
        shape->hidden, shape->actions, rows_max);
}

static enum status cuda_policy_open(struct backend *backend, const struct mlp_shape *shape, double dropout,
                                    uint32_t rows_max, bool fixed, const struct tensor *slab,
                                    struct policy_rows **out, struct error *error)
{
    TRY(check_bounds(shape, rows_max, error));
    struct policy_rows *rows = (struct policy_rows *)calloc(1, sizeof *rows);
    if (rows == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a captured policy");
    rows->shape = *shape;
    rows->threshold = element_dropout_threshold(dropout);
    rows->scale = (float)(1 / (1 - dropout));
    rows->rows_max = rows_max;
    rows->fixed = fixed;
    for (uint32_t count = 1; !fixed && count < rows_max; count *= 2)
        add_size(rows, count);
    add_size(rows, rows_max);
    enum status status = find_weights(rows, slab, error);
    if (status == STATUS_OK)
        status = take_memory(rows, error);
    if (status == STATUS_OK)
        status = capture_all(backend, rows, error);
    if (status != STATUS_OK) {
        cuda_policy_close(backend, rows);
        return status;
    }
    *out = rows;
    return STATUS_OK;
}

/* ---- act ---- */

/* The rows into the input slab; what stands beside them is zero, so that a launch is a function of its rows.
 */
static enum status fill_rows(struct policy_rows *rows, const struct policy_size *size,
                             const struct mlp_batch *batch, uint64_t seed, uint32_t episode,
                             const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const uint32_t inputs = rows->shape.inputs;
    float *observations = (float *)(rows->in_host + size->layout.observations);
    int32_t *words = (int32_t *)(rows->in_host + size->layout.words);
    memset(rows->in_host, 0, size->layout.in_bytes);
    memcpy(rows->in_host, &seed, sizeof seed);
    for (uint32_t i = 0; i < batch->count; i++) {
        const uint32_t place = rows->fixed ? environment[i] : i;
        if (place >= rows->rows_max)
            return error_set(error, STATUS_INVALID,
                             "policy: row %u is of environment %u, expected one below %u", i, place,
                             rows->rows_max);
        memcpy(observations + (size_t)place * inputs, batch->observations + (size_t)batch->row[i] * inputs,
               inputs * sizeof(float));
        words[3 * place] = (int32_t)environment[i];
        words[3 * place + 1] = (int32_t)step[i];
        words[3 * place + 2] = (int32_t)episode;
    }
    return STATUS_OK;
}

static void read_rows(const struct policy_rows *rows, const struct policy_size *size,
                      const struct mlp_batch *batch, const uint32_t *environment, float *probabilities)
{
    const uint32_t mask_words = mlp_mask_words(&rows->shape), classes = rows->shape.actions;
    const float *from = (const float *)(rows->out_host + size->layout.probabilities);
    const uint16_t *masks = (const uint16_t *)(rows->out_host + size->layout.masks);
    const uint8_t *actions = (const uint8_t *)(rows->out_host + size->layout.actions);
    for (uint32_t i = 0; i < batch->count; i++) {
        const size_t place = rows->fixed ? environment[i] : i, row = batch->row[i];
        memcpy(batch->masks + row * mask_words, masks + place * mask_words, mask_words * sizeof *masks);
        batch->actions[row] = actions[place];
        if (probabilities != NULL)
            memcpy(probabilities + (size_t)i * classes, from + place * classes, classes * sizeof *from);
    }
}

static enum status cuda_policy_act(struct backend *backend, struct policy_rows *rows,
                                   const struct mlp_batch *batch, uint64_t seed, uint32_t episode,
                                   const uint32_t *environment, const uint32_t *step, float *probabilities,
                                   struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    if (batch->count > rows->rows_max)
        return error_set(error, STATUS_INVALID, "policy: %u rows in a batch, expected at most %u",
                         batch->count, rows->rows_max);
    const struct policy_size *size = rows->sizes;
    while (size->rows < batch->count)
        size++;
    TRY(fill_rows(rows, size, batch, seed, episode, environment, step, error));
    CUDA_TRY(NULL, cudaGraphLaunch, size->graph, cuda->stream);
    TRY(cuda_wait(cuda, NULL, error));
    read_rows(rows, size, batch, environment, probabilities);
    return STATUS_OK;
}

void cuda_policy_slots(struct backend_ops *ops)
{
    ops->policy_open = cuda_policy_open;
    ops->policy_close = cuda_policy_close;
    ops->policy_act = cuda_policy_act;
}
