/* Kernels of test_gpu.c: right ones, and ones with one defect each. Every function queues one kernel; its
 * error is cudaGetLastError's. */
#ifndef TEST_GPU_TEST_GPU_KERNELS_H
#define TEST_GPU_TEST_GPU_KERNELS_H

#include <cuda_runtime_api.h>

enum { BLOCK_THREADS = 64 };

/* to[i] = value, by `blocks` blocks. */
void queue_fill(float *to, unsigned blocks, float value, cudaStream_t stream);
/* to[i] = from[i] + 1, by `blocks` blocks: a template with a lambda. */
void queue_add_one(float *to, const float *from, unsigned blocks, cudaStream_t stream);
/* to[block] = sum of the block's BLOCK_THREADS numbers, by a tree in __shared__ memory. */
void queue_sums(float *to, const float *from, unsigned blocks, cudaStream_t stream);
/* to[i] = i, where i counts threads (x first) and blocks. */
void queue_places(int *to, dim3 grid, dim3 block, cudaStream_t stream);
/* *to = denormal / 2 * 2 */
void queue_denormal(float *to, float denormal, cudaStream_t stream);
/* A kernel without a body, of any size. */
void queue_nothing(dim3 grid, dim3 block, cudaStream_t stream);

/* ---- defects: one block, unless said otherwise; `data` has 2 BLOCK_THREADS numbers ---- */

void queue_barrier_in_branch(float *data, cudaStream_t stream);
void queue_barrier_after_return(float *data, cudaStream_t stream);
void queue_different_barriers(float *data, cudaStream_t stream);
void queue_missing_barrier(float *data, cudaStream_t stream);      /* each thread reads its neighbour's */
void queue_write_of_all(float *data, cudaStream_t stream);         /* all threads write one number */
void queue_read_behind_reads(float *data, cudaStream_t stream);    /* all read a number, one writes it */
void queue_blocks_in_one_place(float *data, cudaStream_t stream);  /* two blocks write the same numbers */
void queue_blocks_without_order(float *data, cudaStream_t stream); /* a block reads what another writes */
void queue_shared_without_value(float *data, cudaStream_t stream);
void queue_one_too_many(float *data, unsigned count, cudaStream_t stream); /* writes data[0 … count] */
void queue_one_before(const float *data, float *to, cudaStream_t stream);  /* reads data[-1] */
void queue_host_write(float *host, cudaStream_t stream);

#endif
