/* The device as one test of cuDNN's stand-in has it: a stream, a handle, memory and tensors that live until
 * the end of the test. Each test program includes this once. */
#ifndef TEST_GPU_CUDNN_FIXTURE_H
#define TEST_GPU_CUDNN_FIXTURE_H

#include "test/gpu/gpu.h"
#include "test/gpu/gpu_cudnn.h"

#include <check.h>
#include <cudnn.h>
#include <math.h>

static cudaStream_t stream;
static cudnnHandle_t cudnn;

enum { OBJECTS_MAX = 64 };
static void *memory[OBJECTS_MAX];
static cudnnTensorDescriptor_t tensors[OBJECTS_MAX];
static size_t memories, tensor_count;

static const float ONE = 1, ZERO = 0;

#define OK(call) ck_assert_int_eq((int)(call), 0)
#define REFUSED(status, call) ck_assert_int_eq((int)(call), (int)(status))

static inline void device_open(void)
{
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudnnCreate(&cudnn));
    OK(cudnnSetStream(cudnn, stream));
    memories = tensor_count = 0;
}

static inline void device_close(void)
{
    gpu_cudnn_refuse(NULL);
    for (size_t i = 0; i < tensor_count; i++)
        OK(cudnnDestroyTensorDescriptor(tensors[i]));
    OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < memories; i++)
        OK(cudaFree(memory[i]));
    OK(cudnnDestroy(cudnn));
    OK(cudaStreamDestroy(stream));
}

/* Device memory that lives until the end of the test. */
static inline float *device_new(size_t count)
{
    ck_assert_uint_lt(memories, OBJECTS_MAX);
    OK(cudaMalloc(&memory[memories], count * sizeof(float)));
    return memory[memories++];
}

static inline void device_write(float *to, const float *from, size_t count)
{
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(to, from, count * sizeof *to, cudaMemcpyHostToDevice));
}

static inline void device_read(float *to, const float *from, size_t count)
{
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(to, from, count * sizeof *to, cudaMemcpyDeviceToHost));
}

static inline float *device_of(const float *from, size_t count)
{
    float *to = device_new(count);
    device_write(to, from, count);
    return to;
}

/* Numbers in -1..1, the same for the same seed. */
static inline void draw(float *to, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        to[i] = (float)(seed >> 8) / (float)(1 << 23) - 1;
    }
}

static inline cudnnTensorDescriptor_t images(int n, int c, int h, int w)
{
    ck_assert_uint_lt(tensor_count, OBJECTS_MAX);
    OK(cudnnCreateTensorDescriptor(&tensors[tensor_count]));
    OK(cudnnSetTensor4dDescriptor(tensors[tensor_count], CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
    return tensors[tensor_count++];
}

static inline double dot(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static inline void assert_near(double a, double b, double bound)
{
    ck_assert_msg(fabs(a - b) <= bound, "%.9g, expected %.9g", a, b);
}

#endif
