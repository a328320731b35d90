/* Adam's update of a range of parameters, one function per instruction set; kernels/adam.h has the formula.
 *
 * Elements are independent and all go through the same operations, none of them contracted: an array may be
 * cut anywhere, and every set gives the same bits. Any alignment. Pure functions. */
#ifndef KERNELS_LANES_ADAM_LANES_H
#define KERNELS_LANES_ADAM_LANES_H

#include <stddef.h>

/* The constants of one step, the same for every element. */
struct adam_factors {
    float step_size, root_correction; /* lr / (1 - b1^t), sqrt(1 - b2^t) */
    float keep_m, add_m, keep_v, add_v, epsilon;
};

typedef void adam_lanes_update(const struct adam_factors *factors, float *parameters, float *first,
                               float *second, const float *gradient, size_t count);

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern adam_lanes_update adam_lanes_update_baseline, adam_lanes_update_avx2, adam_lanes_update_avx512;

#endif
