/* Normal draws, one function per instruction set. The same bits on every set. Pure functions. */
#ifndef KERNELS_LANES_NORMAL_LANES_H
#define KERNELS_LANES_NORMAL_LANES_H

#include "kernels/base/rng.h"

enum { NORMAL_GROUP = 64 };

struct normal_lanes {
    /* Draws 64 group … + 63 (kernels/lanes/normal.h), of the blocks whose word 0 is `word`. Any alignment. */
    void (*group)(float out[NORMAL_GROUP], const struct rng_key *key, uint32_t word, uint32_t group);
};

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern const struct normal_lanes normal_lanes_baseline, normal_lanes_avx2, normal_lanes_avx512;

#endif
