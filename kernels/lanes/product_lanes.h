/* Products of two matrices, one function per instruction set: the dense layers' forward and backward.
 *
 *     c[r][n] = begin[n] + a[r][0] b[0][n] + a[r][1] b[1][n] + …
 *
 * Each element of c is one chain of fused multiply-adds in float32, k ascending, and nothing else: it depends
 * on its own row of a and column of b alone. How a product is cut into rows, columns or ranges of k (with `c`
 * as the next range's begin) changes no bit; neither does the instruction set, or whether a or b is called
 * the left one.
 *
 * Columns come in blocks of 16: b, begin and c have room for whole blocks, and the caller ignores the columns
 * beyond the matrix. Up to 8 columns, a policy's head, cost half a block. Rows of c that
 * share a cache set slow the product down: product_stride gives a distance at which they do not. Pure
 * functions. */
#ifndef KERNELS_LANES_PRODUCT_LANES_H
#define KERNELS_LANES_PRODUCT_LANES_H

#include <stddef.h>
#include <stdint.h>

enum { PRODUCT_BLOCK = 16 };

/* Distances are in floats. Either a_row or a_depth is 1. */
struct product {
    uint32_t rows, depth, columns; /* of c; numbers of k */
    const float *a;                /* a[r][k] at a[r * a_row + k * a_depth] */
    size_t a_row, a_depth;
    const float *b; /* columns 16 n … + 15 of b[k] at b + k * b_depth + n * b_block */
    size_t b_depth, b_block;
    const float *begin; /* (blocks * 16); NULL: c's own values */
    float *c;           /* columns 16 n … + 15 of c[r] at c + r * c_row + n * 16 */
    size_t c_row;
};

/* Blocks of 16 columns that hold `width`. */
static inline uint32_t product_blocks(uint32_t width)
{
    return (width + PRODUCT_BLOCK - 1) / PRODUCT_BLOCK;
}

/* Floats between rows of `width`: an odd number of cache lines. */
static inline size_t product_stride(uint32_t width)
{
    return (size_t)(product_blocks(width) | 1) * PRODUCT_BLOCK;
}

typedef void product_function(const struct product *product);

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern product_function product_baseline, product_avx2, product_avx512;

#endif
