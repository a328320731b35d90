/* One range of a parameter server's update (struct sgd_round in kernels/backend.h), one function per
 * instruction set. The CPU backend spreads ranges over its threads.
 *
 * Elements are independent and all go through the same operations, so an array may be cut at any multiple of
 * 16 and every set gives the same bits. Pure functions. */
#ifndef KERNELS_LANES_SGD_ROUND_LANES_H
#define KERNELS_LANES_SGD_ROUND_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sgd_round_lanes {
    float lr, momentum;
    bool first; /* velocity is not read */
    uint32_t contributions;
    const float *const *gradients;
    const float *parameters, *velocity;
    float *parameters_out, *velocity_out; /* aligned to 64 bytes; velocity_out NULL: no momentum */
};

/* Elements [first, first + count); `first` is a multiple of 16. Returns struct sgd_round's not_finite for
 * them. What it wrote can be seen by other threads when it returns. */
typedef uint32_t sgd_round_lanes_update(const struct sgd_round_lanes *arrays, size_t first, size_t count);

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern sgd_round_lanes_update sgd_round_lanes_update_baseline, sgd_round_lanes_update_avx2,
    sgd_round_lanes_update_avx512;

#endif
