/* The room of the GPU backend: a plug-in over CUDA and cuDNN. No other room includes their headers. This
 * header is private to the room, which includes kernels/ and kernels/base/.
 *
 *     device      the GPU that struct backend_settings says
 *     stream      the queue of the device's work; a backend has one
 *     plan        cuDNN's objects for one shape, made once and kept
 *     workspace   the one buffer of scratch memory that all plans share
 *     launch      a policy's layers on a slab of rows, started by one call
 *     graph       a captured sequence of kernels, which a launch replays
 *     pinned      host memory that the device copies from and to by itself
 *     to stage    to copy by way of a pinned buffer of the backend's own
 *
 * A backend is one CUDA stream on its device with one cuDNN handle. Every operation is queued on that
 * stream, and operations run in the order of their calls. So memory may be released, and the workspace used
 * again, as soon as the operation that reads it is queued. CUDA keeps the current device by thread, so the
 * thread that opens a backend makes all of its calls.
 *
 * All tensors are canonical (NCHW, row-major): the layout is always NULL. cuDNN's objects for a shape are
 * made once and kept as a plan under that shape. All scratch memory of cuDNN is one buffer that grows to the
 * need of the largest plan.
 *
 * A function that can fail takes `struct error *error`; the macros below return from it. It is C++ only as
 * far as CUDA's compiler demands.
 *
 * Nothing is contracted to an fma (-fmad=false), and division and square root are correctly rounded. So
 * draws, Adam, SGD and sums in equal order have the CPU's bits; expf, logf and tanhf are CUDA's own. A lane
 * is one of the threads that share a sum: it takes every lanes-th term, ascending, and the lanes are added in
 * a tree. */
#ifndef KERNELS_CUDA_CUDA_INTERNAL_H
#define KERNELS_CUDA_CUDA_INTERNAL_H

#include <cuda_runtime.h>
#include <cudnn.h>

extern "C" {
#include "kernels/adam.h"
#include "kernels/kernels.h"
}

#include "kernels/base/rng.h"

#include <Random123/philox.h>
#include <cmath>

/* ---- failures: a sentence that names the call and the shape ---- */

enum status cuda_failed(struct error *error, const char *call, cudaError_t code, const struct tensor *about);
enum status cudnn_failed(struct error *error, const char *call, cudnnStatus_t code,
                         const struct tensor *about);

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        enum status try_status = (call);                                                                     \
        if (try_status != STATUS_OK)                                                                         \
            return try_status;                                                                               \
    } while (0)

/* CUDA_TRY(about, cudaMemsetAsync, data, 0, bytes, stream): `about` is a tensor, or NULL. */
#define CUDA_TRY(about, function, ...)                                                                       \
    do {                                                                                                     \
        cudaError_t try_code = function(__VA_ARGS__);                                                        \
        if (try_code != cudaSuccess)                                                                         \
            return cuda_failed(error, #function, try_code, about);                                           \
    } while (0)

#define CUDNN_TRY(about, function, ...)                                                                      \
    do {                                                                                                     \
        cudnnStatus_t try_code = function(__VA_ARGS__);                                                      \
        if (try_code != CUDNN_STATUS_SUCCESS)                                                                \
            return cudnn_failed(error, #function, try_code, about);                                          \
    } while (0)

/* Queues a kernel, without dynamic shared memory. The build of test/gpu/ defines the macro itself. */
#ifndef CUDA_LAUNCH
#define CUDA_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif

/* ---- plans ---- */

enum plan_kind {
    PLAN_CONVOLUTION = 1, /* also a linear layer */
    PLAN_MAX_POOL,
    PLAN_AVG_POOL,
    PLAN_ROWS, /* log-softmax */
    PLAN_LSTM
};

/* What a pool or a convolution slides over its images. */
struct window {
    uint32_t size[2], out[2]; /* input and output: height, width */
    uint32_t kernel[2], stride[2], padding[2];
};

/* Sizes of images (n, c, size) and of the images computed from them (n, outputs, out). */
struct image_sizes {
    uint32_t n, c, outputs;
    struct window window;
};

struct lstm_sizes {
    uint32_t steps, batch, inputs, hidden;
    uint32_t training; /* 0 or 1 */
    uint32_t gates;    /* LSTM_GATES, or GRU_GATES */
};

/* Keys are compared byte by byte: unused members are 0. */
struct plan_key {
    enum plan_kind kind;
    union {
        struct image_sizes image;
        struct lstm_sizes lstm;
    };
};

/* The three passes of a convolution, and how one of them is computed. */
enum pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER, PASSES };
struct pass_choice {
    int algorithm; /* of cuDNN's enum for the pass */
    size_t bytes;  /* of workspace */
    bool ran;      /* it has run */
};

/* Bytes [from, from + bytes) of an LSTM's or GRU's input `tensor` stand at `to` in cuDNN's buffer of weights.
 */
struct weight_piece {
    uint32_t tensor;
    size_t from, to, bytes;
};
enum { LSTM_GATES = 4, GRU_GATES = 3, WEIGHT_PIECES_MAX = 4 * LSTM_GATES };

/* cuDNN's descriptors and choices for one key. A descriptor that the kind does not need is NULL. */
struct plan {
    struct plan_key key;
    struct plan *next;
    cudnnTensorDescriptor_t x, y;
    cudnnTensorDescriptor_t channels; /* (1, outputs, 1, 1): a convolution's bias */
    /* a convolution's */
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t convolution;
    struct pass_choice choice[PASSES];
    bool separate; /* cuDNN does not fuse the bias for this shape: a kernel of ours adds it */
    /* a pool's */
    cudnnPoolingDescriptor_t pooling;
    /* an LSTM's or GRU's */
    cudnnRNNDescriptor_t rnn;
    cudnnRNNDataDescriptor_t sequences_x, sequences_y;
    cudnnTensorDescriptor_t state;                    /* of h and c alike */
    cudnnTensorDescriptor_t gate_matrix, gate_vector; /* cuDNN describes one gate's weight and bias by them */
    size_t weight_bytes, work_bytes, reserve_bytes;
    uint32_t pieces; /* 0: cuDNN was not asked yet */
    struct weight_piece piece[WEIGHT_PIECES_MAX];
};

/* ---- the backend's state ---- */

enum {
    PLAN_BUCKETS = 256,
    PLANS_MAX = 1024,           /* then all are forgotten: shapes that come and go must not fill the memory */
    THREADS = 256,              /* in a block of our kernels */
    COMPUTE_CAPABILITY_MIN = 8, /* major: what the Makefile compiles for */
};

struct cuda {
    cudaStream_t stream;
    cudnnHandle_t cudnn;
    cudnnActivationDescriptor_t identity;
    cudnnDropoutDescriptor_t no_dropout; /* the LSTM asks for one */

    void *workspace; /* (workspace_bytes) scratch of the operation that runs */
    size_t workspace_bytes;
    struct cuda_memory *memory; /* cuda_memory.cu's own */

    struct plan *plans[PLAN_BUCKETS];
    uint32_t plan_count;
};

static inline struct cuda *cuda_of(struct backend *backend)
{
    return (struct cuda *)backend->state;
}

/* cuDNN's factors are host floats for float tensors. */
static const float ONE = 1, ZERO = 0;

/* ---- cuda_backend.cu ---- */

/* Makes the descriptors that plan->key asks for. */
typedef enum status plan_describe(struct cuda *cuda, struct plan *plan, const struct tensor *about,
                                  struct error *error);

/* The plan under `key`; the first time it is made by `describe`. It lives until the next call of this
 * function. */
enum status cuda_plan(struct cuda *cuda, const struct plan_key *key, plan_describe *describe,
                      const struct tensor *about, struct plan **out, struct error *error);

/* Makes the workspace at least `bytes` large. Waits for the device where it has to grow. */
enum status cuda_workspace(struct cuda *cuda, size_t bytes, struct error *error);

/* A descriptor of a dense 4-d float tensor. */
enum status cuda_describe(cudnnTensorDescriptor_t *out, uint32_t n, uint32_t c, uint32_t h, uint32_t w,
                          const struct tensor *about, struct error *error);

/* ---- cuda_memory.cu ---- */

enum status cuda_memory_open(struct cuda *cuda, struct error *error);
void cuda_memory_close(struct cuda *cuda);

/* Waits for all that is queued. Then what was downloaded is where the caller wants it. */
enum status cuda_wait(struct cuda *cuda, const struct tensor *about, struct error *error);

extern const struct arena_source cuda_source; /* context: struct cuda */

/* A block for an output that has none yet. The table's entrance calls it for all results, but for those that
 * share memory: a reshape's, and an addition's gradients. */
enum status cuda_output(struct op_call *call, struct tensor *tensor, struct error *error);

/* Scratch that lives until the end of the call, or that a backward will read. `about` names it in a failure.
 */
enum status cuda_scratch(struct op_call *call, size_t bytes, void **out, const struct tensor *about,
                         struct error *error);
enum status cuda_saved(struct op_call *call, uint32_t index, size_t bytes, struct error *error);

/* Gives `to` the memory of `from`, which then has one more owner in the arena. */
void cuda_same_memory(struct op_call *call, struct tensor *to, const struct tensor *from);

/* to = sum of the terms times `scale`, on the device; c may be NULL. The order depends on `count` alone. */
enum sum_term {
    SUM_PRODUCT,    /* x c, or x */
    SUM_DIFFERENCE, /* (x - c)^2 */
    SUM_SQUARE,     /* x^2 */
};
enum status cuda_sum(struct cuda *cuda, enum sum_term term, const float *x, const float *c, size_t count,
                     double scale, float *to, const struct tensor *about, struct error *error);

/* ---- small things ---- */

/* NULL of an absent tensor. */
static inline float *cuda_floats(const struct tensor *tensor)
{
    return tensor != NULL ? (float *)tensor->data : NULL;
}

static inline int32_t *cuda_ints(const struct tensor *tensor)
{
    return tensor != NULL ? (int32_t *)tensor->data : NULL;
}

static inline size_t cuda_elements(const struct tensor *tensor)
{
    return shape_elements(&tensor->shape);
}

/* The window of a convolution or a pool. A linear layer's is one pixel. */
struct window cuda_window(const struct op_call *call); /* cuda_pool.cu */

/* ---- kernels ---- */

template <class Work> static __global__ void cuda_each_kernel(size_t count, Work work)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        work(i);
}

enum { BLOCK_THREADS_MAX = 1024 };

template <class Work>
static __global__ void __launch_bounds__(BLOCK_THREADS_MAX) cuda_blocks_kernel(Work work)
{
    work();
}

/* After a launch; `name` says "launch of …" in a failure. */
static inline enum status cuda_launched(const char *name, const struct tensor *about, struct error *error)
{
    const cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? STATUS_OK : cuda_failed(error, name, code, about);
}

/* Queues work(i) for each i below `count`, which is not 0. `work` is a [=] __device__ function. */
template <class Work>
static enum status cuda_each(struct cuda *cuda, size_t count, const char *name, const struct tensor *about,
                             struct error *error, Work work)
{
    const unsigned blocks = (unsigned)((count + THREADS - 1) / THREADS);
    CUDA_LAUNCH(cuda_each_kernel, blocks, THREADS, cuda->stream, count, work);
    return cuda_launched(name, about, error);
}

/* Queues work() for each thread of so many blocks. */
template <class Work>
static enum status cuda_blocks(struct cuda *cuda, size_t blocks, unsigned threads, const char *name,
                               const struct tensor *about, struct error *error, Work work)
{
    CUDA_LAUNCH(cuda_blocks_kernel, (unsigned)blocks, threads, cuda->stream, work);
    return cuda_launched(name, about, error);
}

/* ---- what several kernels compute ---- */

/* A NaN stays, as PyTorch has it. */
static __device__ inline float device_relu(float x)
{
    return x < 0 ? 0 : x;
}

/* The gradient at 0 is 0; y is relu's output, which is above 0 where its input was. */
static __device__ inline float device_relu_backward(float y, float dy)
{
    return y > 0 ? dy : 0;
}

/* The caller refuses an index that is out of range; the clamp keeps the kernel inside the tensor. */
static __device__ inline uint32_t device_clamp(int32_t index, uint32_t count)
{
    return index < 0 ? 0 : (uint32_t)index < count ? (uint32_t)index : count - 1;
}

/* kernels/base/rng.h's rng_block, where a GPU can call it. word: (environment, step, episode). */
static __device__ inline philox4x32_ctr_t device_philox(uint64_t seed, const uint32_t word[3],
                                                        uint32_t stream, uint32_t block)
{
    philox4x32_ctr_t counter = {{stream << RNG_STREAM_SHIFT | block, word[0], word[1], word[2]}};
    philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    return philox4x32(counter, key);
}

/* Joins the values of the block's threads, a power of two up to LANES, in a tree. A kernel does so once for
 * each type of value. */
template <class Join, unsigned LANES, class Value> static __device__ Value join_block(Value value)
{
    __shared__ Value tree[LANES];
    tree[threadIdx.x] = value;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            tree[threadIdx.x] = Join::of(tree[threadIdx.x], tree[threadIdx.x + half]);
    }
    __syncthreads();
    return tree[0];
}

struct plus {
    static __device__ double of(double a, double b)
    {
        return a + b;
    }
};

/* ---- the table's functions ---- */

typedef enum status cuda_operation(struct backend *backend, struct op_call *call, struct error *error);

cuda_operation cuda_convolution, cuda_convolution_backward;         /* cuda_conv.cu */
cuda_operation cuda_batch_norm, cuda_batch_norm_backward;           /* cuda_norm.cu */
cuda_operation cuda_activation, cuda_activation_backward;           /* cuda_elements.cu */
cuda_operation cuda_add, cuda_add_backward;                         /* cuda_elements.cu */
cuda_operation cuda_pool, cuda_pool_backward;                       /* cuda_pool.cu */
cuda_operation cuda_recurrent, cuda_recurrent_backward;             /* cuda_lstm.cu */
cuda_operation cuda_reshape, cuda_reshape_backward;                 /* cuda_elements.cu */
cuda_operation cuda_dropout, cuda_dropout_backward;                 /* cuda_elements.cu */
cuda_operation cuda_embedding, cuda_embedding_backward;             /* cuda_rows.cu */
cuda_operation cuda_log_softmax, cuda_log_softmax_backward;         /* cuda_rows.cu */
cuda_operation cuda_mse, cuda_mse_backward;                         /* cuda_loss.cu */
cuda_operation cuda_cross_entropy, cuda_cross_entropy_backward;     /* cuda_loss.cu */
cuda_operation cuda_log_probability, cuda_log_probability_backward; /* cuda_rows.cu */
cuda_operation cuda_sum_op, cuda_sum_op_backward;                   /* cuda_loss.cu */

void cuda_memory_slots(struct backend_ops *ops);
void cuda_policy_slots(struct backend_ops *ops);

#endif
