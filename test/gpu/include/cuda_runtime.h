/* Lets g++ compile the .cu files as C++ against the stand-in for a GPU (test/gpu/gpu.h). It stands before the
 * toolkit's header of this name in the include path, and takes the API from the toolkit's own headers.
 *
 * A kernel is a plain function here. gpu_kernel.c calls it once per thread and sets `threadIdx` and the like
 * before. __shared__ variables are static: one block runs at a time. */
#ifndef TEST_GPU_INCLUDE_CUDA_RUNTIME_H
#define TEST_GPU_INCLUDE_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <tuple>
#include <type_traits>

#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#undef __launch_bounds__
#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

extern "C" {
#include "test/gpu/gpu.h"
}

#define threadIdx gpu_place.thread
#define blockIdx gpu_place.block
#define blockDim gpu_place.threads
#define gridDim gpu_place.blocks
#define __syncthreads() gpu_barrier(__FILE__, __LINE__)

template <class... Values> struct gpu_kernel_call {
    void (*kernel)(Values...);
    std::tuple<Values...> values;
};

template <class... Values> static void gpu_kernel_run(const void *call)
{
    const auto *it = (const gpu_kernel_call<Values...> *)call;
    std::apply(it->kernel, it->values);
}

/* The arguments are evaluated and copied now, as CUDA does. */
template <class Kernel, class... Values>
static void gpu_kernel_launch(const char *name, dim3 grid, dim3 block, cudaStream_t stream, Kernel kernel,
                              Values... values)
{
    static_assert((std::is_trivially_copyable<Values>::value && ...), "CUDA copies arguments byte by byte");
    const gpu_kernel_call<Values...> call = {kernel, std::tuple<Values...>(values...)};
    gpu_launch(stream, name, grid, block, gpu_kernel_run<Values...>, &call, sizeof call);
}

#define CUDA_LAUNCH(kernel, grid, block, stream, ...)                                                        \
    gpu_kernel_launch(                                                                                       \
        #kernel, grid, block, stream, [](auto... values) { kernel(values...); }, __VA_ARGS__)

#endif
