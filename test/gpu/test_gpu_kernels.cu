/* The kernels of test_gpu.c (test_gpu_kernels.h), compiled as kernels/cuda/ is. */
#include <cuda_runtime.h>

extern "C" {
#include "test/gpu/test_gpu_kernels.h"
}

static __device__ unsigned thread_of_all()
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

static __global__ void fill_kernel(float *to, float value)
{
    to[thread_of_all()] = value;
}

void queue_fill(float *to, unsigned blocks, float value, cudaStream_t stream)
{
    CUDA_LAUNCH(fill_kernel, blocks, BLOCK_THREADS, stream, to, value);
}

template <class Work> static __global__ void each_kernel(Work work)
{
    work(thread_of_all());
}

void queue_add_one(float *to, const float *from, unsigned blocks, cudaStream_t stream)
{
    const float one = 1;
    CUDA_LAUNCH(each_kernel, blocks, BLOCK_THREADS, stream,
                [=] __device__(unsigned i) { to[i] = from[i] + one; });
}

struct plus {
    static __device__ float of(float a, float b)
    {
        return a + b;
    }
};

template <class Join, class Value> static __device__ Value join_block(Value value)
{
    __shared__ Value tree[BLOCK_THREADS];
    tree[threadIdx.x] = value;
    for (unsigned half = BLOCK_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            tree[threadIdx.x] = Join::of(tree[threadIdx.x], tree[threadIdx.x + half]);
    }
    __syncthreads();
    return tree[0];
}

template <class Join, class Value> static __global__ void join_kernel(Value *to, const Value *from)
{
    const Value sum = join_block<Join>(from[thread_of_all()]);
    if (threadIdx.x == 0)
        to[blockIdx.x] = sum;
}

void queue_sums(float *to, const float *from, unsigned blocks, cudaStream_t stream)
{
    CUDA_LAUNCH((join_kernel<plus, float>), blocks, BLOCK_THREADS, stream, to, from);
}

static __global__ void places_kernel(int *to)
{
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    to[i] = (int)i;
}

void queue_places(int *to, dim3 grid, dim3 block, cudaStream_t stream)
{
    CUDA_LAUNCH(places_kernel, grid, block, stream, to);
}

static __global__ void denormal_kernel(float *to, float denormal)
{
    const volatile float half = denormal / 2;
    *to = half * 2;
}

void queue_denormal(float *to, float denormal, cudaStream_t stream)
{
    CUDA_LAUNCH(denormal_kernel, 1, 1, stream, to, denormal);
}

static __global__ void nothing_kernel(int unused)
{
    (void)unused;
}

void queue_nothing(dim3 grid, dim3 block, cudaStream_t stream)
{
    CUDA_LAUNCH(nothing_kernel, grid, block, stream, 0);
}

/* ---- barriers ---- */

static __global__ void barrier_in_branch_kernel(float *data)
{
    data[threadIdx.x] = 1;
    if (threadIdx.x < 7)
        __syncthreads();
}

void queue_barrier_in_branch(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(barrier_in_branch_kernel, 1, BLOCK_THREADS, stream, data);
}

static __global__ void barrier_after_return_kernel(float *data)
{
    __syncthreads();
    if (threadIdx.x == 3)
        return;
    data[threadIdx.x] = 1;
    __syncthreads();
}

void queue_barrier_after_return(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(barrier_after_return_kernel, 1, BLOCK_THREADS, stream, data);
}

static __global__ void different_barriers_kernel(float *data)
{
    if (threadIdx.x % 2 == 0) {
        __syncthreads();
        data[threadIdx.x] = 1;
    } else {
        __syncthreads();
        data[threadIdx.x] = 2;
    }
}

void queue_different_barriers(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(different_barriers_kernel, 1, BLOCK_THREADS, stream, data);
}

/* ---- races ---- */

static __global__ void missing_barrier_kernel(float *data)
{
    __shared__ float held[BLOCK_THREADS];
    held[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = held[BLOCK_THREADS - 1 - threadIdx.x];
    data[threadIdx.x] += data[(threadIdx.x + 1) % BLOCK_THREADS];
}

void queue_missing_barrier(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(missing_barrier_kernel, 1, BLOCK_THREADS, stream, data);
}

static __global__ void write_of_all_kernel(float *data)
{
    data[5] = 1;
}

void queue_write_of_all(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(write_of_all_kernel, 1, BLOCK_THREADS, stream, data);
}

static __global__ void read_behind_reads_kernel(float *data)
{
    data[BLOCK_THREADS + threadIdx.x] = data[0];
    if (threadIdx.x == BLOCK_THREADS / 2)
        data[0] = 1;
}

void queue_read_behind_reads(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(read_behind_reads_kernel, 1, BLOCK_THREADS, stream, data);
}

static __global__ void blocks_in_one_place_kernel(float *data)
{
    data[threadIdx.x] = (float)blockIdx.x;
}

void queue_blocks_in_one_place(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(blocks_in_one_place_kernel, 2, BLOCK_THREADS, stream, data);
}

static __global__ void blocks_without_order_kernel(float *data)
{
    const unsigned half = BLOCK_THREADS / 2;
    data[blockIdx.x * half + threadIdx.x] = data[(1 - blockIdx.x) * half + threadIdx.x];
}

void queue_blocks_without_order(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(blocks_without_order_kernel, 2, BLOCK_THREADS / 2, stream, data);
}

static __global__ void shared_without_value_kernel(float *data)
{
    __shared__ float held[BLOCK_THREADS];
    if (threadIdx.x > 0)
        held[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = held[BLOCK_THREADS - 1 - threadIdx.x];
}

void queue_shared_without_value(float *data, cudaStream_t stream)
{
    CUDA_LAUNCH(shared_without_value_kernel, 1, BLOCK_THREADS, stream, data);
}

/* ---- wild accesses ---- */

static __global__ void one_too_many_kernel(float *data, unsigned count)
{
    const unsigned i = thread_of_all();
    if (i <= count)
        data[i] = 0;
}

void queue_one_too_many(float *data, unsigned count, cudaStream_t stream)
{
    CUDA_LAUNCH(one_too_many_kernel, count / BLOCK_THREADS + 1, BLOCK_THREADS, stream, data, count);
}

static __global__ void one_before_kernel(const float *data, float *to)
{
    *to = data[-1];
}

void queue_one_before(const float *data, float *to, cudaStream_t stream)
{
    CUDA_LAUNCH(one_before_kernel, 1, 1, stream, data, to);
}

static __global__ void host_write_kernel(float *host)
{
    *host = 1;
}

void queue_host_write(float *host, cudaStream_t stream)
{
    CUDA_LAUNCH(host_write_kernel, 1, 1, stream, host);
}
