/* Element-wise passes and sums over flat arrays, one table per instruction set. The CPU backend spreads them
 * over its threads.
 *
 * Elements are independent in a pass, so an array may be cut anywhere and every set gives the same bits. Sums
 * run in 16 lanes of doubles (element i in lane i mod 16, ascending) that are added in ascending order at the
 * end: the same bits on every set too. Arrays do not overlap. Any alignment. Pure functions. */
#ifndef KERNELS_LANES_ELEMENT_LANES_H
#define KERNELS_LANES_ELEMENT_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct element_sgd {
    float lr, momentum;
    bool first; /* v = g instead of momentum v + g */
};

struct element_lanes {
    void (*add)(float *y, const float *a, const float *b, size_t count);
    void (*add_relu)(float *y, const float *a, const float *b, size_t count); /* max(0, a + b); a NaN stays */
    void (*relu)(float *y, const float *x, size_t count);                     /* max(0, x); a NaN stays */
    void (*mask)(float *dx, const float *y, const float *dy, size_t count);   /* dy where y > 0, else 0 */
    void (*accumulate)(float *to, const float *from, size_t count);
    void (*fill)(float *x, float value, size_t count);
    void (*scale)(float *x, float factor, size_t count);
    void (*multiply)(float *y, const float *x, float factor, size_t count); /* y = factor x */
    void (*sgd)(const struct element_sgd *settings, float *p, const float *g, float *v, size_t count);
    void (*sgd_plain)(float lr, float *p, const float *g, size_t count); /* p -= lr g */
    /* b is not read by the first two */
    double (*square_sum)(const float *a, const float *b, size_t count);
    double (*sum)(const float *a, const float *b, size_t count);
    double (*dot)(const float *a, const float *b, size_t count);
    double (*square_distance)(const float *a, const float *b, size_t count); /* sum of (a - b)^2 */
    void (*difference)(float *y, const float *a, const float *b, float factor,
                       size_t count);                                   /* factor (a - b) */
    size_t (*first_not_finite)(const float *x, size_t count);           /* its index, or `count` */
    void (*add_to_double)(double *to, const float *from, size_t count); /* to += from */
    void (*to_double)(double *to, const float *from, size_t count);
    void (*to_float)(float *to, const double *from, size_t count);
};

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern const struct element_lanes element_lanes_baseline, element_lanes_avx2, element_lanes_avx512;

#endif
