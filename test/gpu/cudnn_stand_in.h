/* What the files of cuDNN's stand-in share.
 *
 *     descriptor   cuDNN's object that describes an argument; its struct belongs to cudnn_descriptors.c
 *     value        what a descriptor was set to, copied out of it
 *     region       device memory that a call reads or writes
 *     work         a checked call, queued on the handle's stream; it keeps values and regions, no descriptors
 *     scratch      a region whose bytes have no meaning before and after the call: a workspace
 *     refusal      a status that is not CUDNN_STATUS_SUCCESS, with a sentence for cudnnGetLastErrorString
 *
 * Every API function starts with ENTER, checks its arguments by TRY and REQUIRE, and returns a status. A rule
 * that cuDNN documents gives that status. What a real GPU would leave unnoticed, or report much later, is
 * gpu_misuse: a pointer to other memory than the device's, a region too small, an overlap. */
#ifndef TEST_GPU_CUDNN_STAND_IN_H
#define TEST_GPU_CUDNN_STAND_IN_H

#include <cudnn.h>

#include "kernels/tensor.h"
#include "test/gpu/gpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- checks ---- */

/* Keeps the sentence for cudnnGetLastErrorString and returns `status`. */
__attribute__((format(printf, 3, 4))) cudnnStatus_t cudnn_refusal(cudnnStatus_t status, const char *function,
                                                                  const char *format, ...);

/* As cudnn_refusal, for a fault that a test has armed. The sentence names no function, as a caller should. */
cudnnStatus_t cudnn_fault(int status);

#define ENTER()                                                                                              \
    do {                                                                                                     \
        const int enter_fault = gpu_enter(__func__);                                                         \
        if (enter_fault != 0)                                                                                \
            return cudnn_fault(enter_fault);                                                                 \
    } while (0)

/* ENTER for a call that frees: it frees before it fails. The end returns LEAVE(). */
#define ENTER_FREEING() const int leave_fault = gpu_enter(__func__)
#define LEAVE() (leave_fault != 0 ? cudnn_fault(leave_fault) : CUDNN_STATUS_SUCCESS)

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        const cudnnStatus_t try_status = (call);                                                             \
        if (try_status != CUDNN_STATUS_SUCCESS)                                                              \
            return try_status;                                                                               \
    } while (0)

/* REQUIRE(CUDNN_STATUS_BAD_PARAM, size > 0, "the size is %d, expected at least 1", size); */
#define REQUIRE(status, condition, ...)                                                                      \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return cudnn_refusal(status, __func__, __VA_ARGS__);                                             \
    } while (0)

#define REQUIRE_POINTER(pointer)                                                                             \
    REQUIRE(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, (pointer) != NULL, "%s is NULL", #pointer)

/* ---- values of descriptors ---- */

struct cudnn_tensor {
    cudnnDataType_t type;
    int rank;
    int size[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX];
};

/* The weight of a convolution: (outputs, inputs, height, width), row-major. */
struct cudnn_filter {
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int size[4];
};

struct cudnn_convolution {
    int padding[2], stride[2], dilation[2];
    cudnnConvolutionMode_t mode;
    cudnnDataType_t type;
    cudnnMathType_t math;
};

struct cudnn_pooling {
    cudnnPoolingMode_t mode;
    cudnnNanPropagation_t nan;
    int window[2], padding[2], stride[2];
};

struct cudnn_activation {
    cudnnActivationMode_t mode;
    cudnnNanPropagation_t nan;
    double coefficient;
};

struct cudnn_rnn {
    cudnnMathType_t math;
    int inputs, hidden;
    int gates; /* 4 of an LSTM, 3 of a GRU */
};

/* Sequences (steps, batch, width), all of one length, packed. */
struct cudnn_sequences {
    int steps, batch, width;
};

/* Each copies the value out of a descriptor. CUDNN_STATUS_BAD_PARAM_NULL_POINTER: `descriptor` is NULL.
 * CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED: the descriptor was never set. A pointer to something else, or to a
 * destroyed descriptor, is misuse. */
cudnnStatus_t cudnn_tensor_of(const char *function, const char *name, cudnnTensorDescriptor_t descriptor,
                              struct cudnn_tensor *out);
cudnnStatus_t cudnn_filter_of(const char *function, cudnnFilterDescriptor_t descriptor,
                              struct cudnn_filter *out);
cudnnStatus_t cudnn_convolution_of(const char *function, cudnnConvolutionDescriptor_t descriptor,
                                   struct cudnn_convolution *out);
cudnnStatus_t cudnn_pooling_of(const char *function, cudnnPoolingDescriptor_t descriptor,
                               struct cudnn_pooling *out);
cudnnStatus_t cudnn_activation_of(const char *function, cudnnActivationDescriptor_t descriptor,
                                  struct cudnn_activation *out);
cudnnStatus_t cudnn_rnn_of(const char *function, cudnnRNNDescriptor_t descriptor, struct cudnn_rnn *out);
cudnnStatus_t cudnn_sequences_of(const char *function, const char *name, cudnnRNNDataDescriptor_t descriptor,
                                 struct cudnn_sequences *out);

/* As cudnn_tensor_of, for (n, c, h, w) of packed floats. CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
 * CUDNN_STATUS_NOT_SUPPORTED_LAYOUT: the stand-in computes nothing else. */
cudnnStatus_t cudnn_images_of(const char *function, const char *name, cudnnTensorDescriptor_t descriptor,
                              struct cudnn_tensor *out);

/* CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH: two tensors differ in a size. */
cudnnStatus_t cudnn_same_sizes(const char *function, const char *name_a, const struct cudnn_tensor *a,
                               const char *name_b, const struct cudnn_tensor *b);

size_t cudnn_elements(const struct cudnn_tensor *tensor);

/* Sets a tensor descriptor to packed floats of 3 dimensions. */
cudnnStatus_t cudnn_describe3(const char *function, const char *name, cudnnTensorDescriptor_t descriptor,
                              int a, int b, int c);

/* ---- work ---- */

enum { CUDNN_REGIONS_MAX = 20 };

enum cudnn_use { CUDNN_READ, CUDNN_WRITTEN, CUDNN_SCRATCH };

struct cudnn_region {
    const char *name;
    void *at;
    size_t bytes;
    enum cudnn_use use;
};

/* The first member of every call's own struct. */
struct cudnn_work {
    const char *function;
    void (*run)(void *work); /* gets the call's own struct */
    cudaStream_t stream;
    const char *in_place; /* name of a read region that may be the written one; NULL: none */
    uint32_t regions;
    struct cudnn_region region[CUDNN_REGIONS_MAX];
};

/* Begins work on the handle's stream. CUDNN_STATUS_BAD_PARAM_NULL_POINTER: no handle. */
cudnnStatus_t cudnn_begin(struct cudnn_work *work, const char *function, cudnnHandle_t handle,
                          void (*run)(void *work));

/* Adds a region of `count` floats. CUDNN_STATUS_BAD_PARAM_NULL_POINTER: `at` is NULL.
 * CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER: `at` is no multiple of 4. */
cudnnStatus_t cudnn_reads(struct cudnn_work *work, const char *name, const void *at, size_t count);
cudnnStatus_t cudnn_writes(struct cudnn_work *work, const char *name, void *at, size_t count);

/* As cudnn_reads and cudnn_writes; NULL is no region. */
cudnnStatus_t cudnn_may_read(struct cudnn_work *work, const char *name, const void *at, size_t count);
cudnnStatus_t cudnn_may_write(struct cudnn_work *work, const char *name, void *at, size_t count);

/* Adds a region of bytes: a workspace, which is filled with NaNs before and after the work.
 * CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT: fewer bytes than `needed`. No bytes need no pointer. */
cudnnStatus_t cudnn_scratch(struct cudnn_work *work, const char *name, void *at, size_t bytes, size_t needed);

/* As cudnn_scratch, for bytes that keep their meaning: a reserve, an RNN's weights. */
cudnnStatus_t cudnn_space(struct cudnn_work *work, const char *name, const void *at, size_t bytes,
                          size_t needed, enum cudnn_use use);

/* Reads a factor in host memory. CUDNN_STATUS_BAD_PARAM_NULL_POINTER. A device pointer is misuse: cuDNN reads
 * the factors of floats on the host. */
cudnnStatus_t cudnn_factor(const char *function, const char *name, const void *at, float *out);

/* Checks that no written region overlaps another, and queues a copy of the call's own struct of `bytes`
 * bytes. CUDNN_STATUS_EXECUTION_FAILED_CUDART: gpu_queue failed. */
cudnnStatus_t cudnn_queue(const struct cudnn_work *work, size_t bytes);

/* ---- arithmetic ---- */

/* `count` doubles on the host: those of `from`, or zeros where it is NULL. Give them to free. */
double *cudnn_doubles(const float *from, size_t count);

/* A tensor of the oracle with such doubles as its data. */
struct tensor cudnn_oracle_tensor(struct shape shape, const float *from);

/* Rounds factors to TF32's 10 bits of mantissa, as a GPU may do with another math type than CUDNN_FMA_MATH.
 */
void cudnn_round_to_tf32(double *value, size_t count);

/* to = factor value + keep to, rounded once; with keep 0 `to` is not read. */
void cudnn_round(float *to, const double *value, size_t count, float factor, float keep);

#endif
