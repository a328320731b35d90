/* The room of the GPU backend: a plug-in over CUDA and cuDNN, and the only files that include their headers.
 * This header is shared by its files and private to them; the room includes kernels/ and kernels/base/, and
 * nothing includes it.
 *
 * A backend is one CUDA stream on the first device with one cuDNN handle, and everything runs in that one
 * order: memory may be released, and the workspace used again, as soon as the operation that reads it is
 * queued.
 *
 * All tensors are canonical (NCHW, row-major): the layout is always NULL. cuDNN's objects for a shape
 * (descriptors, algorithm, sizes of scratch memory) are made once and kept as a "plan" under that shape. All
 * scratch memory is one buffer that grows to the need of the largest plan.
 *
 * A function that can fail takes `struct error *error`; the macros below return from it. It is C++ only as
 * far as CUDA's compiler demands. */
#ifndef KERNELS_CUDA_CUDA_INTERNAL_H
#define KERNELS_CUDA_CUDA_INTERNAL_H

#include <cuda_runtime.h>
#include <cudnn.h>

extern "C" {
#include "kernels/adam.h"
#include "kernels/kernels.h"
}

#include "kernels/cuda/elements.h"

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

/* After a <<<launch>>>; `name` is the kernel's. */
#define LAUNCH_TRY(about, name)                                                                              \
    do {                                                                                                     \
        cudaError_t try_code = cudaGetLastError();                                                           \
        if (try_code != cudaSuccess)                                                                         \
            return cuda_failed(error, "launch of " name, try_code, about);                                   \
    } while (0)

/* ---- the backend's state ---- */

/* What a shape needs, under what it is for. Each file embeds it first in a struct of its own. */
struct plan_key {
    uint32_t kind;
    uint32_t size[15]; /* unused ones are 0 */
};
enum plan_kind { PLAN_CONVOLUTION = 1, PLAN_BATCH_NORM, PLAN_POOL, PLAN_LSTM, PLAN_LOG_SOFTMAX, PLAN_FLAT };

struct plan {
    struct plan_key key;
    void (*destroy)(struct plan *plan); /* frees descriptors and the struct */
    uint64_t used;                      /* when last, in look-ups */
    struct plan *next;
};

enum {
    PLAN_BUCKETS = 256,
    PLANS_MAX = 1024,           /* shapes that are remembered; then the one unused for longest goes */
    REDUCE_BLOCKS_MAX = 256,    /* partial results of a reduction over a whole tensor */
    STAGING_BYTES = 1 << 20,    /* pinned: conversions on the way to the device and back */
    RESULT_BYTES = 64,          /* pinned: a number on its way to the host */
    THREADS = 256,              /* of a block of ours, if nothing else is said */
    COMPUTE_CAPABILITY_MIN = 8, /* major: what the Makefile compiles for */
};

struct cuda {
    cudaStream_t stream;
    cudnnHandle_t cudnn;
    cudnnActivationDescriptor_t relu;       /* a NaN stays */
    cudnnActivationDescriptor_t relu_plain; /* for fused calls that know only this one */
    cudnnActivationDescriptor_t identity;
    cudnnOpTensorDescriptor_t add;
    cudnnDropoutDescriptor_t no_dropout; /* the LSTM asks for one */

    void *workspace; /* (workspace_bytes) scratch of the operation that runs */
    size_t workspace_bytes;
    double *partial; /* (REDUCE_BLOCKS_MAX) on the device */
    void *result;    /* (RESULT_BYTES) on the device, and pinned on the host */
    void *result_host;
    void *staging;

    struct plan *plans[PLAN_BUCKETS];
    uint32_t plan_count;
    uint64_t lookups;
};

static inline struct cuda *cuda_of(struct backend *backend)
{
    return (struct cuda *)backend->state;
}

/* cuDNN's factors are host floats for float tensors. */
static const float ONE = 1, ZERO = 0;

/* ---- cuda_backend.cu ---- */

/* The plan under `key`, or NULL. */
struct plan *cuda_plan_find(struct cuda *cuda, const struct plan_key *key);

/* Keeps a plan, whose destroy is set, under `key`. */
void cuda_plan_keep(struct cuda *cuda, const struct plan_key *key, struct plan *plan);

/* A zeroed plan struct of `bytes`, or NULL. */
struct plan *cuda_plan_new(size_t bytes, void (*destroy)(struct plan *plan));

/* Makes the workspace at least `bytes` large. Waits for the device where it has to grow. */
enum status cuda_workspace(struct cuda *cuda, size_t bytes, struct error *error);

/* A descriptor of a dense 4-d float tensor. */
enum status cuda_describe(cudnnTensorDescriptor_t *out, uint32_t n, uint32_t c, uint32_t h, uint32_t w,
                          const struct tensor *about, struct error *error);

/* Waits for all that is queued. */
enum status cuda_wait(struct cuda *cuda, const struct tensor *about, struct error *error);

/* ---- cuda_memory.cu ---- */

extern const struct arena_source cuda_source; /* context: struct cuda */

/* A block for an output that has none yet. */
enum status cuda_output(struct op_call *call, struct tensor *tensor, struct error *error);

/* Scratch that lives until the end of the call, or that a backward will read. `about` names it in a failure.
 */
enum status cuda_scratch(struct op_call *call, size_t bytes, void **out, const struct tensor *about,
                         struct error *error);
enum status cuda_saved(struct op_call *call, uint32_t index, size_t bytes, struct error *error);

/* to = sum of the terms (elements.h) times `scale`, on the device; c may be NULL. The order depends on
 * `count` alone. */
enum status cuda_sum(struct cuda *cuda, enum element_term term, const float *x, const float *c, size_t count,
                     double scale, float *to, const struct tensor *about, struct error *error);

/* ---- small things ---- */

static inline float *cuda_floats(const struct tensor *tensor)
{
    return (float *)tensor->data;
}

static inline int32_t *cuda_ints(const struct tensor *tensor)
{
    return (int32_t *)tensor->data;
}

static inline size_t cuda_elements(const struct tensor *tensor)
{
    return shape_elements(&tensor->shape);
}

/* Blocks for `count` threads. */
static inline unsigned cuda_blocks(size_t count)
{
    return (unsigned)((count + THREADS - 1) / THREADS);
}

#ifdef __CUDACC__
static __device__ inline size_t cuda_thread(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
#endif

/* to_i = relu's gradient of dy by its output y; cuda_norm.cu. */
enum status cuda_relu_backward(struct cuda *cuda, size_t count, const float *y, const float *dy, float *to,
                               const struct tensor *about, struct error *error);

/* y = max(0, y) in place; cuda_norm.cu. */
enum status cuda_relu_in_place(struct cuda *cuda, const struct tensor *y, struct error *error);

/* ---- the table's functions ---- */

typedef enum status cuda_operation(struct backend *backend, struct op_call *call, struct error *error);

cuda_operation cuda_linear, cuda_linear_backward, cuda_conv2d, cuda_conv2d_backward;        /* cuda_conv.cu */
cuda_operation cuda_batch_norm, cuda_batch_norm_backward, cuda_relu, cuda_relu_op_backward; /* cuda_norm.cu */
cuda_operation cuda_add, cuda_add_backward, cuda_log_softmax, cuda_log_softmax_backward;    /* cuda_norm.cu */
cuda_operation cuda_max_pool, cuda_max_pool_backward, cuda_avg_pool,
    cuda_avg_pool_backward;                   /* cuda_pool.cu */
cuda_operation cuda_lstm, cuda_lstm_backward; /* cuda_lstm.cu */
cuda_operation cuda_reshape, cuda_reshape_backward, cuda_dropout,
    cuda_dropout_backward;                              /* cuda_elements.cu */
cuda_operation cuda_embedding, cuda_embedding_backward; /* cuda_elements.cu */
cuda_operation cuda_mse, cuda_mse_backward, cuda_cross_entropy,
    cuda_cross_entropy_backward;                                    /* cuda_loss.cu */
cuda_operation cuda_log_probability, cuda_log_probability_backward; /* cuda_loss.cu */
cuda_operation cuda_sum_op, cuda_sum_op_backward;                   /* cuda_loss.cu */

void cuda_memory_slots(struct backend_ops *ops);
void cuda_policy_slots(struct backend_ops *ops);

#endif
