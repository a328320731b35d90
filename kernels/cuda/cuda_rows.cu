/* Operations along the last dimension: log-softmax, log-probabilities of what was picked, embedding. */
#include "kernels/cuda/cuda_internal.h"

/* ---- log-softmax ---- */

/* (rows, classes, 1, 1): the classes are cuDNN's channels. */
static enum status describe_rows(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                                 struct error *error)
{
    (void)cuda;
    return cuda_describe(&plan->x, plan->key.image.n, plan->key.image.c, 1, 1, about, error);
}

static enum status plan_of(struct cuda *cuda, const struct tensor *x, struct plan **out, struct error *error)
{
    const uint32_t classes = x->shape.size[x->shape.rank - 1];
    struct plan_key key = {};
    key.kind = PLAN_ROWS;
    key.image.n = (uint32_t)(cuda_elements(x) / classes);
    key.image.c = classes;
    return cuda_plan(cuda, &key, describe_rows, x, out, error);
}

enum status cuda_log_softmax(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *x = call->in[0];
    struct plan *plan;
    TRY(plan_of(cuda, x, &plan, error));
    CUDNN_TRY(x, cudnnSoftmaxForward, cuda->cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE,
              plan->x, x->data, &ZERO, plan->x, call->out[0]->data);
    return STATUS_OK;
}

enum status cuda_log_softmax_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *y = call->out[0];
    struct plan *plan;
    TRY(plan_of(cuda, y, &plan, error));
    CUDNN_TRY(y, cudnnSoftmaxBackward, cuda->cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE,
              plan->x, y->data, plan->x, call->dout[0]->data, &ZERO, plan->x, call->din[0]->data);
    return STATUS_OK;
}

/* ---- log-probability of what was picked ---- */

enum status cuda_log_probability(struct backend *backend, struct op_call *call, struct error *error)
{
    const uint32_t classes = call->in[0]->shape.size[1];
    const float *x = cuda_floats(call->in[0]);
    const int32_t *actions = cuda_ints(call->in[1]);
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), call->in[0]->shape.size[0], "launch of log-probability", call->in[0],
                     error,
                     [=] __device__(size_t i) { y[i] = x[i * classes + device_clamp(actions[i], classes)]; });
}

enum status cuda_log_probability_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const uint32_t classes = call->in[0]->shape.size[1];
    const int32_t *actions = cuda_ints(call->in[1]);
    const float *dy = cuda_floats(call->dout[0]);
    float *dx = cuda_floats(call->din[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->in[0]), "launch of log-probability backward",
                     call->in[0], error, [=] __device__(size_t i) {
                         const size_t row = i / classes;
                         dx[i] = i % classes == device_clamp(actions[row], classes) ? dy[row] : 0;
                     });
}

/* ---- embedding ---- */

enum status cuda_embedding(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct tensor *indices = call->in[0], *table = call->in[1];
    const uint32_t vocabulary = table->shape.size[0], width = table->shape.size[1];
    const int32_t *index = cuda_ints(indices);
    const float *row = cuda_floats(table);
    float *y = cuda_floats(call->out[0]);
    return cuda_each(cuda_of(backend), cuda_elements(call->out[0]), "launch of embedding", indices, error,
                     [=] __device__(size_t i) {
                         const size_t at = device_clamp(index[i / width], vocabulary);
                         y[i] = row[at * width + i % width];
                     });
}

/* The backward sorts the tokens by index, then by place, so that each row of the table has one writer. A key
 * is the index in the upper half and the place in the lower. */

/* One step of a bitonic sorting network (Batcher, "Sorting networks and their applications", 1968): pair
 * number `pair` of the elements that stand `apart` from each other, in the merge of runs of `run`. keys[0] is
 * element number `base` of all. Sizes are powers of two. */
static __device__ void sort_pair(uint64_t *keys, size_t pair, size_t apart, size_t run, size_t base)
{
    const size_t i = pair / apart * 2 * apart + pair % apart;
    const bool ascending = ((base + i) & run) == 0;
    const uint64_t a = keys[i], b = keys[i + apart];
    if ((a > b) == ascending) {
        keys[i] = b;
        keys[i + apart] = a;
    }
}

/* Keys that one block sorts in its shared memory, by half as many threads. */
enum { SORT_TILE = 2048 };

/* The steps of the merges of runs of run_begin … run_end whose elements stand less than a tile apart. A block
 * has tile / 2 threads. */
static enum status sort_tiles(struct cuda *cuda, uint64_t *keys, size_t padded, size_t tile, size_t run_begin,
                              size_t run_end, const char *name, const struct tensor *about,
                              struct error *error)
{
    return cuda_blocks(cuda, padded / tile, (unsigned)(tile / 2), name, about, error, [=] __device__() {
        __shared__ uint64_t held[SORT_TILE];
        const size_t base = blockIdx.x * tile;
        for (size_t i = threadIdx.x; i < tile; i += blockDim.x)
            held[i] = keys[base + i];
        for (size_t run = run_begin; run <= run_end; run *= 2)
            for (size_t apart = (run < tile ? run : tile) / 2; apart > 0; apart /= 2) {
                __syncthreads();
                sort_pair(held, threadIdx.x, apart, run, base);
            }
        __syncthreads();
        for (size_t i = threadIdx.x; i < tile; i += blockDim.x)
            keys[base + i] = held[i];
    });
}

/* Sorts `padded` keys, a power of two of at least 2. */
static enum status sort_keys(struct cuda *cuda, uint64_t *keys, size_t padded, const struct tensor *about,
                             struct error *error)
{
    const size_t tile_max = SORT_TILE, tile = padded < tile_max ? padded : tile_max;
    TRY(sort_tiles(cuda, keys, padded, tile, 2, tile, "launch of sort of tiles", about, error));
    for (size_t run = 2 * tile; run <= padded; run *= 2) {
        for (size_t apart = run / 2; apart >= tile; apart /= 2)
            TRY(cuda_each(cuda, padded / 2, "launch of step of a sort", about, error,
                          [=] __device__(size_t pair) { sort_pair(keys, pair, apart, run, 0); }));
        TRY(sort_tiles(cuda, keys, padded, tile, run, run, "launch of end of a sort's step", about, error));
    }
    return STATUS_OK;
}

enum status cuda_embedding_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const struct tensor *indices = call->in[0], *dy = call->dout[0];
    struct tensor *dtable = call->din[1];
    const size_t count = cuda_elements(indices);
    const uint32_t vocabulary = call->in[1]->shape.size[0], width = call->in[1]->shape.size[1];
    const int32_t *index = cuda_ints(indices);
    const float *gradient = cuda_floats(dy);
    float *to = cuda_floats(dtable);
    size_t padded = 2;
    void *scratch;
    while (padded < count)
        padded *= 2;
    TRY(cuda_scratch(call, padded * sizeof(uint64_t), &scratch, indices, error));
    uint64_t *keys = (uint64_t *)scratch;
    CUDA_TRY(dtable, cudaMemsetAsync, dtable->data, 0, (size_t)vocabulary * width * sizeof(float),
             cuda->stream);
    /* Keys beyond `count` sort behind all others. */
    TRY(cuda_each(cuda, padded, "launch of sort's keys", indices, error, [=] __device__(size_t i) {
        keys[i] = i < count ? (uint64_t)device_clamp(index[i], vocabulary) << 32 | i : UINT64_MAX;
    }));
    TRY(sort_keys(cuda, keys, padded, indices, error));
    /* Block i writes the table's row whose run of equal indices begins at i, the sum over its tokens in
     * ascending order; the other blocks return. */
    TRY(cuda_blocks(cuda, count, THREADS, "launch of embedding backward", dy, error, [=] __device__() {
        const size_t i = blockIdx.x;
        const uint64_t row = keys[i] >> 32;
        if (i > 0 && keys[i - 1] >> 32 == row)
            return;
        for (uint32_t column = threadIdx.x; column < width; column += blockDim.x) {
            double sum = 0;
            for (size_t at = i; at < count && keys[at] >> 32 == row; at++)
                sum += (double)gradient[(size_t)(uint32_t)keys[at] * width + column];
            to[row * width + column] = (float)sum;
        }
    }));
    arena_release(call->arena, scratch);
    return STATUS_OK;
}
