/* The norm of a flat array; gradients are clipped by their norm. */
#ifndef KERNELS_NORM_H
#define KERNELS_NORM_H

#include <stddef.h>

/* sqrt(sum of x^2) in double: NaN or infinite exactly where an element is. Squares are summed in 16 lanes,
 * which are added in ascending order: the same bits on every instruction set. Pure function. */
double norm_of(const float *x, size_t count);

#endif
