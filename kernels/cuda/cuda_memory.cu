/* Memory: the arenas' chunks, copies to and from the host, operations on a whole tensor, and the
 * optimizers. */
#include "kernels/cuda/cuda_internal.h"

#include <cstdlib>
#include <cstring>
#include <unistd.h>

/* ---- the state ---- */

enum {
    REDUCE_BLOCKS_MAX = 256, /* partial results of a reduction over a whole tensor */
    STAGING_BYTES = 1 << 20, /* of one buffer */
    STAGING_BUFFERS = 4,
    DELIVERIES_MAX = 64,
};

/* A buffer on the way to the device and back. */
struct staging {
    char *memory;     /* (STAGING_BYTES) pinned */
    cudaEvent_t left; /* recorded when the next buffer comes into use */
};

/* What the next wait copies from a staging buffer to the caller's memory. */
struct delivery {
    const void *staged;
    void *to;
    size_t bytes; /* staged */
    bool widens;  /* floats to doubles */
};

/* Host memory that copies go to and come from without staging. */
struct pin {
    struct pin *next;
    char *begin; /* whole pages */
    size_t bytes;
};

struct cuda_memory {
    double *partial; /* (REDUCE_BLOCKS_MAX) on the device */
    struct staging staging[STAGING_BUFFERS];
    uint32_t staging_now; /* the buffer in use */
    size_t staging_used;  /* bytes of it */
    struct delivery deliveries[DELIVERIES_MAX];
    uint32_t delivery_count;
    struct pin *pins;
    bool copies; /* a copy from or to the callers' memory may be under way */
};

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

/* ---- to the host and back ----
 *
 * A copy from or to pinned memory is one asynchronous copy. Any other copy is staged. Copies fill a staging
 * buffer one behind the other; when one does not fit, the next buffer's turn comes. So an upload waits only
 * if its buffer is still in use. The next wait delivers what is staged for the host. */

static const struct pin *pin_of(const struct cuda *cuda, const void *memory, size_t bytes)
{
    const char *at = (const char *)memory;
    const struct pin *pin = cuda->memory->pins;
    while (pin != NULL && (at < pin->begin || at + bytes > pin->begin + pin->bytes))
        pin = pin->next;
    return pin;
}

static enum status cuda_pin(struct backend *backend, const void *memory, size_t bytes, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    if (pin_of(cuda, memory, bytes) != NULL)
        return STATUS_OK;
    struct pin *pin = (struct pin *)malloc(sizeof *pin);
    if (pin == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to pin memory");
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)memory / page * page;
    pin->begin = (char *)begin;
    pin->bytes = ((uintptr_t)memory + bytes - begin + page - 1) / page * page;
    pin->next = cuda->memory->pins;
    const cudaError_t code = cudaHostRegister(pin->begin, pin->bytes, cudaHostRegisterDefault);
    if (code != cudaSuccess) {
        cudaGetLastError(); // clears the error, so that the next call does not return it
        free(pin);
        return error_set(error, STATUS_UNAVAILABLE, "CUDA: cudaHostRegister of %zu bytes failed: %s", bytes,
                         cudaGetErrorString(code));
    }
    cuda->memory->pins = pin;
    return STATUS_OK;
}

static void deliver(const struct delivery *delivery)
{
    const float *staged = (const float *)delivery->staged;
    if (delivery->widens)
        for (size_t i = 0; i < delivery->bytes / sizeof(float); i++)
            ((double *)delivery->to)[i] = (double)staged[i];
    else
        memcpy(delivery->to, staged, delivery->bytes);
}

enum status cuda_wait(struct cuda *cuda, const struct tensor *about, struct error *error)
{
    struct cuda_memory *memory = cuda->memory;
    const uint32_t count = memory->delivery_count;
    memory->delivery_count = 0;
    CUDA_TRY(about, cudaStreamSynchronize, cuda->stream);
    memory->staging_used = 0;
    memory->copies = false;
    for (uint32_t i = 0; i < count; i++)
        deliver(&memory->deliveries[i]);
    return STATUS_OK;
}

static enum status cuda_wait_for_copies(struct backend *backend, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    return cuda->memory->copies ? cuda_wait(cuda, NULL, error) : STATUS_OK;
}

/* Takes `bytes`, at most STAGING_BYTES, of a staging buffer. */
static enum status stage(struct cuda *cuda, size_t bytes, void **out, const struct tensor *about,
                         struct error *error)
{
    struct cuda_memory *memory = cuda->memory;
    if (memory->staging_used + bytes > STAGING_BYTES && memory->delivery_count > 0)
        TRY(cuda_wait(cuda, about, error));
    if (memory->staging_used + bytes > STAGING_BYTES) {
        CUDA_TRY(about, cudaEventRecord, memory->staging[memory->staging_now].left, cuda->stream);
        memory->staging_now = (memory->staging_now + 1) % STAGING_BUFFERS;
        CUDA_TRY(about, cudaEventSynchronize, memory->staging[memory->staging_now].left);
        memory->staging_used = 0;
    }
    *out = memory->staging[memory->staging_now].memory + memory->staging_used;
    memory->staging_used += (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    return STATUS_OK;
}

static enum status cuda_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                               struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(to), piece = STAGING_BYTES / sizeof(float);
    if (dtype != DTYPE_F64 && pin_of(cuda, from, count * sizeof(float)) != NULL) {
        cuda->memory->copies = true;
        CUDA_TRY(to, cudaMemcpyAsync, to->data, from, count * sizeof(float), cudaMemcpyHostToDevice,
                 cuda->stream);
        return STATUS_OK;
    }
    for (size_t begin = 0; begin < count; begin += piece) {
        const size_t now = count - begin < piece ? count - begin : piece;
        void *staged;
        TRY(stage(cuda, now * sizeof(float), &staged, to, error));
        if (dtype == DTYPE_F64)
            for (size_t i = 0; i < now; i++)
                ((float *)staged)[i] = (float)((const double *)from)[begin + i];
        else
            memcpy(staged, (const float *)from + begin, now * sizeof(float));
        CUDA_TRY(to, cudaMemcpyAsync, cuda_floats(to) + begin, staged, now * sizeof(float),
                 cudaMemcpyHostToDevice, cuda->stream);
    }
    return STATUS_OK;
}

/* Queues a copy of at most STAGING_BYTES that the next wait delivers. */
static enum status fetch(struct cuda *cuda, const void *from, size_t bytes, bool widens, void *to,
                         const struct tensor *about, struct error *error)
{
    struct cuda_memory *memory = cuda->memory;
    void *staged;
    if (memory->delivery_count == DELIVERIES_MAX)
        TRY(cuda_wait(cuda, about, error));
    TRY(stage(cuda, bytes, &staged, about, error));
    CUDA_TRY(about, cudaMemcpyAsync, staged, from, bytes, cudaMemcpyDeviceToHost, cuda->stream);
    memory->deliveries[memory->delivery_count++] = {staged, to, bytes, widens};
    memory->copies = true;
    return STATUS_OK;
}

static enum status cuda_download_later(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                       void *to, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(from), piece = STAGING_BYTES / sizeof(float);
    const size_t step = dtype_bytes(dtype);
    if (dtype != DTYPE_F64 && pin_of(cuda, to, count * sizeof(float)) != NULL) {
        cuda->memory->copies = true;
        CUDA_TRY(from, cudaMemcpyAsync, to, from->data, count * sizeof(float), cudaMemcpyDeviceToHost,
                 cuda->stream);
        return STATUS_OK;
    }
    for (size_t begin = 0; begin < count; begin += piece) {
        const size_t now = count - begin < piece ? count - begin : piece;
        TRY(fetch(cuda, cuda_floats(from) + begin, now * sizeof(float), dtype == DTYPE_F64,
                  (char *)to + begin * step, from, error));
    }
    return STATUS_OK;
}

static enum status cuda_download(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                 void *to, struct error *error)
{
    TRY(cuda_download_later(backend, from, dtype, to, error));
    return cuda_wait(cuda_of(backend), from, error);
}

/* ---- open, close ---- */

enum status cuda_memory_open(struct cuda *cuda, struct error *error)
{
    struct cuda_memory *memory = cuda->memory = (struct cuda_memory *)calloc(1, sizeof *memory);
    if (memory == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for copies to and from a GPU");
    CUDA_TRY(NULL, cudaMalloc, (void **)&memory->partial, REDUCE_BLOCKS_MAX * sizeof *memory->partial);
    for (struct staging &staging : memory->staging) {
        CUDA_TRY(NULL, cudaHostAlloc, (void **)&staging.memory, STAGING_BYTES, cudaHostAllocDefault);
        CUDA_TRY(NULL, cudaEventCreateWithFlags, &staging.left, cudaEventDisableTiming);
    }
    return STATUS_OK;
}

void cuda_memory_close(struct cuda *cuda)
{
    struct cuda_memory *memory = cuda->memory;
    if (memory == NULL)
        return;
    cudaFree(memory->partial);
    for (struct staging &staging : memory->staging) {
        cudaFreeHost(staging.memory);
        if (staging.left != NULL)
            cudaEventDestroy(staging.left);
    }
    while (memory->pins != NULL) {
        struct pin *pin = memory->pins;
        memory->pins = pin->next;
        cudaHostUnregister(pin->begin);
        free(pin);
    }
    free(memory);
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

static enum status cuda_accumulate(struct backend *backend, struct tensor *to, const struct tensor *from,
                                   struct error *error)
{
    float *sum = cuda_floats(to);
    const float *added = cuda_floats(from);
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

struct least {
    static __device__ size_t of(size_t a, size_t b)
    {
        return a < b ? a : b;
    }
};

static_assert((int)REDUCE_BLOCKS_MAX <= (int)THREADS, "one block joins the blocks' results");
static_assert(sizeof(size_t) == sizeof(double), "both kinds of partial results share a buffer");

/* Joins the values lane(lane, lanes) of the lanes; one thread calls finish(result), which may write to
 * cuda->memory->partial. `none` joins with any value to that value. */
template <class Join, class Value, class Lane, class Finish>
static enum status reduce(struct cuda *cuda, size_t count, Value none, const struct tensor *about,
                          struct error *error, Lane lane, Finish finish)
{
    /* Four elements a lane, as long as there are blocks. */
    const size_t wanted = (count + 4 * THREADS - 1) / (4 * THREADS), blocks_max = REDUCE_BLOCKS_MAX;
    const size_t blocks = wanted < blocks_max ? wanted : blocks_max;
    Value *partial = (Value *)cuda->memory->partial;
    TRY(cuda_blocks(cuda, blocks, THREADS, "launch of reduction in lanes", about, error, [=] __device__() {
        const size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x;
        const Value value = join_block<Join, THREADS>((Value)lane(first, blocks * THREADS));
        if (threadIdx.x == 0)
            partial[blockIdx.x] = value;
    }));
    return cuda_blocks(cuda, 1, THREADS, "launch of reduction of blocks", about, error, [=] __device__() {
        const Value value = join_block<Join, THREADS>(threadIdx.x < blocks ? partial[threadIdx.x] : none);
        if (threadIdx.x == 0)
            finish(value);
    });
}

static __device__ double sum_lane(enum sum_term term, const float *x, const float *c, size_t count,
                                  size_t lane, size_t lanes)
{
    double sum = 0;
    for (size_t i = lane; i < count; i += lanes) {
        double value = (double)x[i];
        if (term == SUM_SQUARE)
            value = value * value;
        else if (term == SUM_DIFFERENCE)
            value = (value - (double)c[i]) * (value - (double)c[i]);
        else if (c != NULL)
            value = value * (double)c[i];
        sum += value;
    }
    return sum;
}

enum status cuda_sum(struct cuda *cuda, enum sum_term term, const float *x, const float *c, size_t count,
                     double scale, float *to, const struct tensor *about, struct error *error)
{
    return reduce<plus>(
        cuda, count, 0.0, about, error,
        [=] __device__(size_t lane, size_t lanes) { return sum_lane(term, x, c, count, lane, lanes); },
        [=] __device__(double sum) { *to = (float)(scale * sum); });
}

/* Copies a reduction's result, the first element of cuda->memory->partial, to the host. */
static enum status fetch_result(struct cuda *cuda, void *to, const struct tensor *about, struct error *error)
{
    TRY(fetch(cuda, cuda->memory->partial, sizeof *cuda->memory->partial, false, to, about, error));
    return cuda_wait(cuda, about, error);
}

static enum status cuda_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                                   struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(tensor);
    const float *x = cuda_floats(tensor);
    double *to = cuda->memory->partial;
    TRY(reduce<plus>(
        cuda, count, 0.0, tensor, error,
        [=] __device__(size_t lane, size_t lanes) {
            return sum_lane(SUM_SQUARE, x, NULL, count, lane, lanes);
        },
        [=] __device__(double found) { *to = found; }));
    return fetch_result(cuda, sum, tensor, error);
}

static enum status cuda_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                         struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    const size_t count = cuda_elements(tensor);
    const float *x = cuda_floats(tensor);
    size_t *to = (size_t *)cuda->memory->partial;
    TRY(reduce<least>(
        cuda, count, (size_t)SIZE_MAX, tensor, error,
        [=] __device__(size_t lane, size_t lanes) {
            size_t i = lane;
            while (i < count && fabsf(x[i]) <= 3.40282347e38f)
                i += lanes;
            return i < count ? i : SIZE_MAX;
        },
        [=] __device__(size_t found) { *to = found; }));
    return fetch_result(cuda, index, tensor, error);
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
    return cuda_each(cuda_of(backend), cuda_elements(parameters), "launch of sgd", parameters, error,
                     [=] __device__(size_t i) {
                         float by = g[i];
                         if (v != NULL)
                             by = v[i] = first ? by : keep * v[i] + by;
                         p[i] -= lr * by;
                     });
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
                     [=] __device__(size_t i) {
                         const struct adam_factors *f = &now.factors;
                         m[i] = f->keep_m * m[i] + f->add_m * g[i];
                         v[i] = f->keep_v * v[i] + f->add_v * g[i] * g[i];
                         p[i] -= f->step_size * m[i] / (sqrtf(v[i]) / f->root_correction + f->epsilon);
                     });
}

void cuda_memory_slots(struct backend_ops *ops)
{
    ops->upload = cuda_upload;
    ops->download = cuda_download;
    ops->download_later = cuda_download_later;
    ops->wait = cuda_wait_for_copies;
    ops->pin = cuda_pin;
    ops->fill = cuda_fill;
    ops->accumulate = cuda_accumulate;
    ops->scale = cuda_scale;
    ops->square_sum = cuda_square_sum;
    ops->first_not_finite = cuda_first_not_finite;
    ops->sgd = cuda_sgd;
    ops->adam = cuda_adam;
}
