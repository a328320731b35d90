/* A backend of the operations that kernels/cuda/ computes with kernels of its own, on the CPU: every thread's
 * function (kernels/cuda/elements.h), one thread after the other. */
#ifndef TEST_KERNELS_CUDA_ELEMENTS_BACKEND_H
#define TEST_KERNELS_CUDA_ELEMENTS_BACKEND_H

#include "kernels/kernels.h"

extern const struct backend_ops elements_ops;

/* The sum of a term (enum element_term) in 256 lanes and a tree. */
double elements_sum(int term, const float *x, const float *c, size_t count);

/* Sorts keys, a power of two of at least 2, by the steps of the GPU's sort with a smaller tile. */
void elements_sort(uint64_t *keys, size_t padded);

#endif
