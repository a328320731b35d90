/* Element-wise passes and sums over flat arrays, one table per instruction set. The CPU backend spreads them
 * over its threads.
 *
 * Elements are independent in a pass, so an array may be cut anywhere and every set gives the same bits. Sums
 * run in 16 lanes of doubles (element i in lane i mod 16, ascending) that are added in ascending order at the
 * end: the same bits on every set too. Arrays do not overlap, but for a pass in place. Any alignment. Pure
 * functions. */
#ifndef KERNELS_LANES_ELEMENT_LANES_H
#define KERNELS_LANES_ELEMENT_LANES_H

#include <stddef.h>
#include <stdint.h>

/* The arrays of a pass; it reads those that its formula names. */
struct elements {
    float *to;
    const float *a, *b;
    const double *wide;
    float factor;
};

/* Elements [first, first + count). */
typedef void element_pass(const struct elements *arrays, size_t first, size_t count);

/* The sum of a term over two arrays. */
typedef double element_sum(const float *a, const float *b, size_t count);

struct element_lanes {
    element_pass *add;                                                  /* a + b */
    element_pass *add_relu;                                             /* max(0, a + b); a NaN stays */
    element_pass *relu;                                                 /* max(0, a); a NaN stays */
    element_pass *mask;                                                 /* b where a > 0, else 0 */
    element_pass *tanh;                                                 /* tanh(a); a NaN stays */
    element_pass *tanh_slope;                                           /* b (1 - a^2) */
    element_pass *accumulate;                                           /* to + a */
    element_pass *fill;                                                 /* factor */
    element_pass *scale;                                                /* factor to */
    element_pass *multiply;                                             /* factor a */
    element_pass *difference;                                           /* factor (a - b) */
    element_pass *copy;                                                 /* a */
    element_pass *narrow;                                               /* wide */
    element_sum *square_sum;                                            /* of a^2; b is not read */
    element_sum *sum;                                                   /* of a; b is not read */
    element_sum *dot;                                                   /* of a b */
    element_sum *square_distance;                                       /* of (a - b)^2 */
    size_t (*first_not_finite)(const float *x, size_t count);           /* its index, or `count` */
    void (*add_to_double)(double *to, const float *from, size_t count); /* to += from */
    void (*to_double)(double *to, const float *from, size_t count);
};

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern const struct element_lanes element_lanes_baseline, element_lanes_avx2, element_lanes_avx512;

#endif
