/* Device memory: the arenas' chunks, copies to and from the host, operations on a whole tensor, and the
 * optimizers. */
#include "kernels/cuda/cuda_internal.h"

#include <cmath>
#include <cstring>

/* ---- arenas ---- */

static void *chunk_take(void *context, size_t bytes)
{
    void *chunk = NULL;
    (void)context;
    if (cudaMalloc(&chunk, bytes) != cudaSuccess) {
        cudaGetLastError(); // the NULL reports the error; clear it
        return NULL;
    }
    return chunk;
}

/* A queued operation may still read the chunk. */
static void chunk_give(void *context, void *chunk, size_t bytes)
{
    (void)bytes;
    struct cuda *cuda = (struct cuda *)context;
    cudaStreamSynchronize(cuda->stream);
    cudaFree(chunk);
    cudaGetLastError(); // an error above must not look like the next launch's
}

static void chunk_poison(void *context, void *block, size_t bytes)
{
    struct cuda *cuda = (struct cuda *)context;
    cudaMemsetAsync(block, 0xff, bytes, cuda->stream);
}

const struct arena_source cuda_source = {NULL, chunk_take, chunk_give, chunk_poison};

static enum status no_memory(size_t bytes, const struct tensor *about, struct error *error)
{
    char shape[SHAPE_TEXT_BYTES];
    const cudaError_t code = cudaPeekAtLastError(); // not chunk_take's: an error of earlier work, which stays
    if (code != cudaSuccess)
        return cuda_failed(error, "cudaMalloc", code, about);
    return error_set(error, STATUS_NO_MEMORY, "no memory on the GPU for %zu bytes, for %.60s of %s", bytes,
                     about->name != NULL ? about->name : "a tensor", shape_text(&about->shape, shape));
}

enum status cuda_output(struct op_call *call, struct tensor *tensor, struct error *error)
{
    if (tensor->data != NULL)
        return STATUS_OK;
    tensor->layout = NULL;
    tensor->bytes = cuda_elements(tensor) * dtype_bytes(tensor->dtype);
    tensor->data = arena_take(call->arena, tensor->bytes);
    return tensor->data != NULL ? STATUS_OK : no_memory(tensor->bytes, tensor, error);
}

enum status cuda_scratch(struct op_call *call, size_t bytes, void **out, const struct tensor *about,
                         struct error *error)
{
    *out = arena_take(call->arena, bytes);
    return *out != NULL ? STATUS_OK : no_memory(bytes, about, error);
}

enum status cuda_saved(struct op_call *call, uint32_t index, size_t bytes, struct error *error)
{
    struct tensor *saved = &call->saved[index];
    TRY(cuda_scratch(call, bytes, &saved->data, call->in[0], error));
    saved->bytes = bytes;
    return STATUS_OK;
}

void cuda_same_memory(struct op_call *call, struct tensor *to, const struct tensor *from)
{
    arena_share(call->arena, from->data);
    to->data = from->data;
    to->bytes = from->bytes;
    to->layout = NULL;
}

/* ---- to the host and back ---- */

/* Copies through the pinned buffer, piece by piece, and converts on the host. Every piece waits for the
 * device: uploads are small or happen once. */
static enum status cuda_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                               struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(to), piece = STAGING_BYTES / sizeof(float);
    for (size_t begin = 0; begin < count; begin += piece) {
        const size_t now = count - begin < piece ? count - begin : piece;
        if (dtype == DTYPE_F64)
            for (size_t i = 0; i < now; i++)
                ((float *)cuda->staging)[i] = (float)((const double *)from)[begin + i];
        else
            memcpy(cuda->staging, (const float *)from + begin, now * sizeof(float));
        CUDA_TRY(to, cudaMemcpyAsync, cuda_floats(to) + begin, cuda->staging, now * sizeof(float),
                 cudaMemcpyHostToDevice, cuda->stream);
        TRY(cuda_wait(cuda, to, error));
    }
    return STATUS_OK;
}

static enum status cuda_download(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                 void *to, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(from), piece = STAGING_BYTES / sizeof(float);
    for (size_t begin = 0; begin < count; begin += piece) {
        const size_t now = count - begin < piece ? count - begin : piece;
        CUDA_TRY(from, cudaMemcpyAsync, cuda->staging, cuda_floats(from) + begin, now * sizeof(float),
                 cudaMemcpyDeviceToHost, cuda->stream);
        TRY(cuda_wait(cuda, from, error));
        if (dtype == DTYPE_F64)
            for (size_t i = 0; i < now; i++)
                ((double *)to)[begin + i] = (double)((const float *)cuda->staging)[i];
        else
            memcpy((float *)to + begin, cuda->staging, now * sizeof(float));
    }
    return STATUS_OK;
}

/* ---- element by element ---- */

static enum status cuda_fill(struct backend *backend, struct tensor *tensor, double value,
                             struct error *error)
{
    float *to = cuda_floats(tensor);
    const float number = (float)value;
    return cuda_each(cuda_of(backend), cuda_elements(tensor), "launch of fill", tensor, error,
                     [=] __device__(size_t i) { to[i] = number; });
}

static enum status cuda_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                                   const struct tensor *from, struct error *error)
{
    float *sum = cuda_floats(to);
    const float *added = cuda_floats(from);
    (void)arena;
    return cuda_each(cuda_of(backend), cuda_elements(to), "launch of accumulate", to, error,
                     [=] __device__(size_t i) { sum[i] += added[i]; });
}

static enum status cuda_scale(struct backend *backend, struct tensor *tensor, double factor,
                              struct error *error)
{
    float *to = cuda_floats(tensor);
    const float by = (float)factor;
    return cuda_each(cuda_of(backend), cuda_elements(tensor), "launch of scale", tensor, error,
                     [=] __device__(size_t i) { to[i] *= by; });
}

/* ---- over a whole tensor: lanes, a tree in each block, and one block for the blocks' results ---- */

struct plus {
    static __device__ double of(double a, double b)
    {
        return a + b;
    }
};
struct least {
    static __device__ size_t of(size_t a, size_t b)
    {
        return a < b ? a : b;
    }
};

/* Joins the values of the block's threads in a tree. */
template <class Join, class Value> static __device__ Value join_block(Value value)
{
    __shared__ Value tree[THREADS];
    tree[threadIdx.x] = value;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            tree[threadIdx.x] = Join::of(tree[threadIdx.x], tree[threadIdx.x + half]);
    }
    __syncthreads();
    return tree[0];
}

/* lane(lane, lanes) is a lane's own value. */
template <class Join, class Value, class Lane>
static __global__ void reduce_lanes_kernel(Lane lane, Value *partial)
{
    const Value value = join_block<Join>((Value)lane(cuda_thread(), (size_t)gridDim.x * THREADS));
    if (threadIdx.x == 0)
        partial[blockIdx.x] = value;
}

/* One block. `none` joins with any value to that value. */
template <class Join, class Value, class Finish>
static __global__ void reduce_blocks_kernel(const Value *partial, unsigned count, Value none, Finish finish)
{
    const Value value = join_block<Join>(threadIdx.x < count ? partial[threadIdx.x] : none);
    if (threadIdx.x == 0)
        finish(value);
}

static_assert(REDUCE_BLOCKS_MAX <= THREADS, "one block joins the blocks' results");
static_assert(sizeof(size_t) == sizeof(double), "both kinds of partial results share a buffer");

/* Joins the lanes' values; one thread calls finish(result), which may write to cuda->partial. */
template <class Join, class Value, class Lane, class Finish>
static enum status reduce(struct cuda *cuda, size_t count, Value none, const struct tensor *about,
                          struct error *error, Lane lane, Finish finish)
{
    /* Four elements a lane, as long as there are blocks. */
    const size_t wanted = (count + 4 * THREADS - 1) / (4 * THREADS), blocks_max = REDUCE_BLOCKS_MAX;
    const unsigned blocks = (unsigned)(wanted < blocks_max ? wanted : blocks_max);
    Value *partial = (Value *)cuda->partial;
    CUDA_LAUNCH(reduce_lanes_kernel<Join>, blocks, THREADS, cuda->stream, lane, partial);
    LAUNCH_TRY(about, "reduction in lanes");
    CUDA_LAUNCH(reduce_blocks_kernel<Join>, 1, THREADS, cuda->stream, partial, blocks, none, finish);
    LAUNCH_TRY(about, "reduction of blocks");
    return STATUS_OK;
}

enum status cuda_sum(struct cuda *cuda, enum element_term term, const float *x, const float *c, size_t count,
                     double scale, float *to, const struct tensor *about, struct error *error)
{
    return reduce<plus>(
        cuda, count, 0.0, about, error,
        [=] __device__(size_t lane, size_t lanes) {
            return element_sum_lane(term, x, c, count, lane, lanes);
        },
        [=] __device__(double sum) { *to = (float)(scale * sum); });
}

/* Copies a reduction's result, the first element of cuda->partial, to the host. */
static enum status fetch(struct cuda *cuda, void *to, const struct tensor *about, struct error *error)
{
    const size_t bytes = sizeof *cuda->partial;
    CUDA_TRY(about, cudaMemcpyAsync, cuda->staging, cuda->partial, bytes, cudaMemcpyDeviceToHost,
             cuda->stream);
    TRY(cuda_wait(cuda, about, error));
    memcpy(to, cuda->staging, bytes);
    return STATUS_OK;
}

static enum status cuda_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                                   struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(tensor);
    const float *x = cuda_floats(tensor);
    double *to = cuda->partial;
    TRY(reduce<plus>(
        cuda, count, 0.0, tensor, error,
        [=] __device__(size_t lane, size_t lanes) {
            return element_sum_lane(ELEMENT_SQUARE, x, NULL, count, lane, lanes);
        },
        [=] __device__(double found) { *to = found; }));
    return fetch(cuda, sum, tensor, error);
}

static enum status cuda_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                         struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(tensor);
    const float *x = cuda_floats(tensor);
    size_t *to = (size_t *)cuda->partial;
    TRY(reduce<least>(
        cuda, count, (size_t)SIZE_MAX, tensor, error,
        [=] __device__(size_t lane, size_t lanes) { return element_not_finite_lane(x, count, lane, lanes); },
        [=] __device__(size_t found) { *to = found; }));
    return fetch(cuda, index, tensor, error);
}

/* ---- optimizers ---- */

static enum status cuda_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                            struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                            struct error *error)
{
    const float lr = (float)settings->lr, keep = (float)settings->momentum;
    const bool first = step == 1;
    float *p = cuda_floats(parameters), *v = cuda_floats(momentum);
    const float *g = cuda_floats(gradient);
    return cuda_each(
        cuda_of(backend), cuda_elements(parameters), "launch of sgd", parameters, error,
        [=] __device__(size_t i) { element_sgd(lr, keep, first, p + i, g[i], v != NULL ? v + i : NULL); });
}

/* nvcc's kernels cannot hold a struct whose name is a function's too. */
struct adam_step {
    struct adam_factors factors;
};

static enum status cuda_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                             struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                             struct tensor *second, struct error *error)
{
    struct adam_step now;
    float *p = cuda_floats(parameters), *m = cuda_floats(first), *v = cuda_floats(second);
    const float *g = cuda_floats(gradient);
    adam_factors(settings, step, &now.factors);
    return cuda_each(cuda_of(backend), cuda_elements(parameters), "launch of adam", parameters, error,
                     [=] __device__(size_t i) { element_adam(&now.factors, p + i, m + i, v + i, g[i]); });
}

void cuda_memory_slots(struct backend_ops *ops)
{
    ops->upload = cuda_upload;
    ops->download = cuda_download;
    ops->fill = cuda_fill;
    ops->accumulate = cuda_accumulate;
    ops->scale = cuda_scale;
    ops->square_sum = cuda_square_sum;
    ops->first_not_finite = cuda_first_not_finite;
    ops->sgd = cuda_sgd;
    ops->adam = cuda_adam;
}
