/* A stand-in for a GPU: CUDA's runtime API on the host, stricter than the real one. The .cu files of
 * kernels/cuda/ are compiled by g++ (include/cuda_runtime.h) and linked with these files.
 *
 *     device memory  pages that the host cannot touch, except while queued work runs
 *     work           a kernel, copy or fill in a stream's queue; it runs late, on the host's own thread
 *     drain          running a stream's work: at a wait, or at a seeded moment within another call
 *     misuse         what a real GPU may leave unnoticed; it ends the process with one line on stderr
 *     fault          an error code that a test makes the n-th call of a function return
 *
 * What is checked:
 *   - The host touches device memory; work touches memory outside of a live allocation, or freed memory.
 *   - A copy whose pointers do not fit its direction; pinned memory that is freed while a queued copy uses
 * it; registered memory that the host frees first.
 *   - A barrier that not all threads of a block reach, or that threads reach in different lines.
 *   - In the build without sanitizers: races between threads or blocks of a kernel, __shared__ memory that is
 *     read before it is written, kernels that touch host memory.
 *   - Calls that a capture forbids, by CUDA's own errors; CUDA in a process forked from the one that began
 * it.
 *   - What is alive at an exit that reports success, or after a fault.
 * Fresh and freed memory holds NaNs (bytes 0xff). A seed chooses the order of blocks and threads and when
 * work runs, so a run repeats by its seed.
 *
 * Environment: GPU_SEED=N; GPU_FAULT=function:nth:code; GPU_COUNTS=1 (at exit prints the counts to stderr; a
 * value with a slash is a file to append to); GPU_MEMORY_MIB=N (of the device, 8192); GPU_CAPABILITY=N
 * (its major compute capability, 9); GPU_BACKTRACE=1 (misuse prints its callers).
 *
 * Every call of the API holds one lock, so several threads may call it. */
#ifndef TEST_GPU_GPU_H
#define TEST_GPU_GPU_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- for the stand-ins of CUDA's libraries ---- */

/* Queues work on a stream, or records it while the stream captures. `args` is copied. run(args) is called
 * later, with all device memory open; it calls nothing of CUDA. `name` must live as long as the process. */
cudaError_t gpu_queue(cudaStream_t stream, const char *name, void (*run)(void *args), const void *args,
                      size_t bytes);

/* Whether [at, at + bytes) lies within one live allocation of device memory. */
bool gpu_is_device(const void *at, size_t bytes);

/* Whether [at, at + bytes) lies within one live allocation or registration of pinned host memory. */
bool gpu_is_pinned(const void *at, size_t bytes);

/* Belongs at the entry of every API function: counts the call, and returns the armed fault's code, or 0. */
int gpu_enter(const char *function);

/* Prints "gpu: …" and aborts. */
void gpu_misuse(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Counts the live objects of a kind: +1 and -1. At a successful exit a number above 0 is misuse. `kind` must
 * live as long as the process. */
void gpu_alive(const char *kind, int change);

/* ---- for tests; the plug-in exports these ---- */

#pragma GCC visibility push(default)

/* Begins a new sequence of random choices. */
void gpu_seed(uint64_t seed);

/* Makes the nth call of `function` from now on (1: the next) return `code`. A function that waits or frees
 * does so before it fails. Launches are calls of "cudaLaunchKernel". */
void gpu_arm(const char *function, unsigned nth, int code);
/* Disarms, and clears the errors that stay until a process ends. */
void gpu_disarm(void);
/* Whether the armed fault has happened. */
bool gpu_fault_happened(void);

/* Calls of a function so far. */
uint64_t gpu_calls(const char *function);
/* Names the functions that were called, by a number from 0, in no order. NULL: no more. */
const char *gpu_called(unsigned number);

/* Live objects of all kinds. */
uint64_t gpu_alive_count(void);

struct gpu_counts {
    uint64_t launches, graph_launches; /* by the host */
    /* work that ran, that of graphs included */
    uint64_t kernels;
    uint64_t to_device, to_device_bytes;
    uint64_t to_host, to_host_bytes;
    uint64_t within_device, within_device_bytes;
    uint64_t fills;
    /* calls that wait for the device: synchronizations, synchronous copies, frees */
    uint64_t waits;
    uint64_t allocations, pinned_allocations;
};
void gpu_counts(struct gpu_counts *out);

#pragma GCC visibility pop

/* ---- for kernels (include/cuda_runtime.h) ---- */

struct gpu_place {
    uint3 thread, block;
    dim3 threads, blocks;
};
extern struct gpu_place gpu_place;

/* Queues a kernel. body(args) is one thread's work. An error is cudaGetLastError's. */
void gpu_launch(cudaStream_t stream, const char *name, dim3 grid, dim3 block, void (*body)(const void *args),
                const void *args, size_t bytes);

/* __syncthreads() in a line of a file. */
void gpu_barrier(const char *file, int line);

#endif
