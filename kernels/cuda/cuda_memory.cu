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
        cudaGetLastError(); // told by the NULL
        return NULL;
    }
    return chunk;
}

/* What is queued may still read the chunk. */
static void chunk_give(void *context, void *chunk, size_t bytes)
{
    (void)bytes;
    struct cuda *cuda = (struct cuda *)context;
    cudaStreamSynchronize(cuda->stream);
    cudaFree(chunk);
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

/* ---- to the host and back ---- */

/* Through the pinned buffer, piece by piece, converting on the host. Every piece waits for the device: what
 * is uploaded is small or happens once. */
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

static __global__ void fill_kernel(size_t count, float *to, float value)
{
    const size_t i = cuda_thread();
    if (i < count)
        to[i] = value;
}

static enum status cuda_fill(struct backend *backend, struct tensor *tensor, double value,
                             struct error *error)
{
    const size_t count = cuda_elements(tensor);
    fill_kernel<<<cuda_blocks(count), THREADS, 0, cuda_of(backend)->stream>>>(count, cuda_floats(tensor),
                                                                              (float)value);
    LAUNCH_TRY(tensor, "fill");
    return STATUS_OK;
}

static __global__ void accumulate_kernel(size_t count, float *to, const float *from)
{
    const size_t i = cuda_thread();
    if (i < count)
        to[i] += from[i];
}

static enum status cuda_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                                   const struct tensor *from, struct error *error)
{
    (void)arena;
    const size_t count = cuda_elements(to);
    accumulate_kernel<<<cuda_blocks(count), THREADS, 0, cuda_of(backend)->stream>>>(count, cuda_floats(to),
                                                                                    cuda_floats(from));
    LAUNCH_TRY(to, "accumulate");
    return STATUS_OK;
}

static __global__ void scale_kernel(size_t count, float *to, float factor)
{
    const size_t i = cuda_thread();
    if (i < count)
        to[i] *= factor;
}

static enum status cuda_scale(struct backend *backend, struct tensor *tensor, double factor,
                              struct error *error)
{
    const size_t count = cuda_elements(tensor);
    scale_kernel<<<cuda_blocks(count), THREADS, 0, cuda_of(backend)->stream>>>(count, cuda_floats(tensor),
                                                                               (float)factor);
    LAUNCH_TRY(tensor, "scale");
    return STATUS_OK;
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

/* The block's values, one a thread, joined in a tree. */
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

static __global__ void sum_lanes_kernel(enum element_term term, const float *x, const float *c, size_t count,
                                        double *partial)
{
    const double sum =
        join_block<plus>(element_sum_lane(term, x, c, count, cuda_thread(), (size_t)gridDim.x * THREADS));
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

/* One block. to: a float or a double. */
static __global__ void sum_blocks_kernel(const double *partial, unsigned count, double scale, float *to,
                                         double *to_double)
{
    const double sum = scale * join_block<plus>(threadIdx.x < count ? partial[threadIdx.x] : 0.0);
    if (threadIdx.x == 0 && to != NULL)
        *to = (float)sum;
    if (threadIdx.x == 0 && to_double != NULL)
        *to_double = sum;
}

static __global__ void not_finite_lanes_kernel(const float *x, size_t count, size_t *partial)
{
    const size_t first =
        join_block<least>(element_not_finite_lane(x, count, cuda_thread(), (size_t)gridDim.x * THREADS));
    if (threadIdx.x == 0)
        partial[blockIdx.x] = first;
}

static __global__ void not_finite_blocks_kernel(const size_t *partial, unsigned count, size_t *to)
{
    const size_t first = join_block<least>(threadIdx.x < count ? partial[threadIdx.x] : SIZE_MAX);
    if (threadIdx.x == 0)
        *to = first;
}

/* Four elements a lane, as long as there are blocks. */
static unsigned reduce_blocks(size_t count)
{
    const size_t blocks = (count + 4 * THREADS - 1) / (4 * THREADS), blocks_max = REDUCE_BLOCKS_MAX;
    return (unsigned)(blocks < blocks_max ? blocks : blocks_max);
}
static_assert(REDUCE_BLOCKS_MAX <= THREADS, "one block joins the blocks' results");
static_assert(sizeof(size_t) == sizeof(double), "both kinds of partial results share a buffer");

static enum status sum_to(struct cuda *cuda, enum element_term term, const float *x, const float *c,
                          size_t count, double scale, float *to, double *to_double,
                          const struct tensor *about, struct error *error)
{
    const unsigned blocks = reduce_blocks(count);
    sum_lanes_kernel<<<blocks, THREADS, 0, cuda->stream>>>(term, x, c, count, cuda->partial);
    LAUNCH_TRY(about, "sum of lanes");
    sum_blocks_kernel<<<1, THREADS, 0, cuda->stream>>>(cuda->partial, blocks, scale, to, to_double);
    LAUNCH_TRY(about, "sum of blocks");
    return STATUS_OK;
}

enum status cuda_sum(struct cuda *cuda, enum element_term term, const float *x, const float *c, size_t count,
                     double scale, float *to, const struct tensor *about, struct error *error)
{
    return sum_to(cuda, term, x, c, count, scale, to, NULL, about, error);
}

/* The one number in cuda->result, to the host. */
static enum status fetch(struct cuda *cuda, void *to, size_t bytes, const struct tensor *about,
                         struct error *error)
{
    CUDA_TRY(about, cudaMemcpyAsync, cuda->result_host, cuda->result, bytes, cudaMemcpyDeviceToHost,
             cuda->stream);
    TRY(cuda_wait(cuda, about, error));
    memcpy(to, cuda->result_host, bytes);
    return STATUS_OK;
}

static enum status cuda_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                                   struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    TRY(sum_to(cuda, ELEMENT_SQUARE, cuda_floats(tensor), NULL, cuda_elements(tensor), 1, NULL,
               (double *)cuda->result, tensor, error));
    return fetch(cuda, sum, sizeof *sum, tensor, error);
}

static enum status cuda_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                         struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(tensor);
    const unsigned blocks = reduce_blocks(count);
    size_t *partial = (size_t *)cuda->partial;
    not_finite_lanes_kernel<<<blocks, THREADS, 0, cuda->stream>>>(cuda_floats(tensor), count, partial);
    LAUNCH_TRY(tensor, "search in lanes");
    not_finite_blocks_kernel<<<1, THREADS, 0, cuda->stream>>>(partial, blocks, (size_t *)cuda->result);
    LAUNCH_TRY(tensor, "search in blocks");
    return fetch(cuda, index, sizeof *index, tensor, error);
}

/* ---- optimizers ---- */

static __global__ void sgd_kernel(size_t count, float lr, float momentum, bool first, float *p,
                                  const float *g, float *v)
{
    const size_t i = cuda_thread();
    if (i < count)
        element_sgd(lr, momentum, first, p + i, g[i], v != NULL ? v + i : NULL);
}

static enum status cuda_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                            struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                            struct error *error)
{
    const size_t count = cuda_elements(parameters);
    sgd_kernel<<<cuda_blocks(count), THREADS, 0, cuda_of(backend)->stream>>>(
        count, (float)settings->lr, (float)settings->momentum, step == 1, cuda_floats(parameters),
        cuda_floats(gradient), momentum != NULL ? cuda_floats(momentum) : NULL);
    LAUNCH_TRY(parameters, "sgd");
    return STATUS_OK;
}

static __global__ void adam_kernel(size_t count, struct adam_factors factors, float *p, float *m, float *v,
                                   const float *g)
{
    const size_t i = cuda_thread();
    if (i < count)
        element_adam(&factors, p + i, m + i, v + i, g[i]);
}

static enum status cuda_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                             struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                             struct tensor *second, struct error *error)
{
    const size_t count = cuda_elements(parameters);
    struct adam_factors factors;
    adam_factors(settings, step, &factors);
    adam_kernel<<<cuda_blocks(count), THREADS, 0, cuda_of(backend)->stream>>>(
        count, factors, cuda_floats(parameters), cuda_floats(first), cuda_floats(second),
        cuda_floats(gradient));
    LAUNCH_TRY(parameters, "adam");
    return STATUS_OK;
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
