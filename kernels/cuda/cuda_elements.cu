/* Tanh, reshape, dropout and embedding. A dropout's backward draws the mask again: a Philox block costs less
 * than storing its bits. */
#include "kernels/cuda/cuda_internal.h"

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

/* ---- embedding ---- */

enum status cuda_embedding(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *indices = call->in[0], *table = call->in[1];
    const uint32_t vocabulary = table->shape.size[0], width = table->shape.size[1];
    const int32_t *index = cuda_ints(indices);
    const float *row = cuda_floats(table);
    TRY(cuda_output(call, call->out[0], error));
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->out[0]), "launch of embedding", indices, error,
                     [=] __device__(size_t i) {
                         const size_t at = element_clamp(index[i / width], vocabulary);
                         y[i] = row[at * width + i % width];
                     });
}

/* Keys that one block sorts in its shared memory, by half as many threads. */
enum { SORT_TILE = 2048 };

/* The steps of the merges of runs of run_begin … run_end whose elements stand less than a tile apart. A block
 * has tile / 2 threads. */
static __global__ void sort_tile_kernel(uint64_t *keys, size_t tile, size_t run_begin, size_t run_end)
{
    __shared__ uint64_t held[SORT_TILE];
    const size_t base = blockIdx.x * tile;
    for (size_t i = threadIdx.x; i < tile; i += blockDim.x)
        held[i] = keys[base + i];
    for (size_t run = run_begin; run <= run_end; run *= 2)
        for (size_t apart = (run < tile ? run : tile) / 2; apart > 0; apart /= 2) {
            __syncthreads();
            element_sort_pair(held, threadIdx.x, apart, run, base);
        }
    __syncthreads();
    for (size_t i = threadIdx.x; i < tile; i += blockDim.x)
        keys[base + i] = held[i];
}

/* Sorts `padded` keys, a power of two of at least 2. */
static enum status sort_keys(struct cuda *cuda, uint64_t *keys, size_t padded, const struct tensor *about,
                             struct error *error)
{
    const size_t tile_max = SORT_TILE, tile = padded < tile_max ? padded : tile_max;
    const unsigned tiles = (unsigned)(padded / tile), threads = (unsigned)(tile / 2);
    CUDA_LAUNCH(sort_tile_kernel, tiles, threads, cuda->stream, keys, tile, 2, tile);
    LAUNCH_TRY(about, "sort of tiles");
    for (size_t run = 2 * tile; run <= padded; run *= 2) {
        for (size_t apart = run / 2; apart >= tile; apart /= 2)
            TRY(cuda_each(cuda, padded / 2, "launch of step of a sort", about, error,
                          [=] __device__(size_t pair) { element_sort_pair(keys, pair, apart, run, 0); }));
        CUDA_LAUNCH(sort_tile_kernel, tiles, threads, cuda->stream, keys, tile, run, run);
        LAUNCH_TRY(about, "end of a sort's step");
    }
    return STATUS_OK;
}

/* Block i writes the table's row whose run of tokens begins at i; the other blocks return. */
static __global__ void embedding_backward_kernel(const uint64_t *keys, size_t count, const float *dy,
                                                 uint32_t width, float *dtable)
{
    const size_t i = blockIdx.x;
    if (!element_run_begins(keys, i))
        return;
    float *row = dtable + (keys[i] >> 32) * width;
    for (uint32_t column = threadIdx.x; column < width; column += blockDim.x)
        row[column] = element_embedding_backward(keys, count, i, dy, width, column);
}

enum status cuda_embedding_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *indices = call->in[0], *dy = call->dout[0];
    struct tensor *dtable = call->din[1];
    const size_t count = cuda_elements(indices);
    const uint32_t vocabulary = call->in[1]->shape.size[0], width = call->in[1]->shape.size[1];
    const int32_t *index = cuda_ints(indices);
    size_t padded = 2;
    void *scratch;
    while (padded < count)
        padded *= 2;
    TRY(cuda_output(call, dtable, error));
    TRY(cuda_scratch(call, padded * sizeof(uint64_t), &scratch, indices, error));
    uint64_t *keys = (uint64_t *)scratch;
    CUDA_TRY(dtable, cudaMemsetAsync, dtable->data, 0, (size_t)vocabulary * width * sizeof(float),
             cuda->stream);
    /* Keys beyond `count` sort behind all others. */
    TRY(cuda_each(cuda, padded, "launch of sort's keys", indices, error, [=] __device__(size_t i) {
        keys[i] = i < count ? element_sort_key(index, i, vocabulary) : UINT64_MAX;
    }));
    TRY(sort_keys(cuda, keys, padded, indices, error));
    CUDA_LAUNCH(embedding_backward_kernel, (unsigned)count, THREADS, cuda->stream, keys, count,
                cuda_floats(dy), width, cuda_floats(dtable));
    LAUNCH_TRY(dy, "embedding backward");
    arena_release(call->arena, scratch);
    return STATUS_OK;
}
