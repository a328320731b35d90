/* Many normal draws at once: the tutorial's random images, which a trainer draws anew at each step.
 *
 * Each block of the generator (kernels/base/rng.h) gives four numbers: from words 0 and 1, and from words 2
 * and 3, the pair r cos(a), r sin(a) of Box and Muller (Annals of Mathematical Statistics 29, 1958) with
 *
 *     r = sqrt(-2 ln(u)), u = (floor(first word / 2) + 1/2) / 2^31     a = 2 pi (second word) / 2^32
 *
 * in float32, by the operations in kernels/lanes/normal_lanes.c, each exact or correctly rounded. They differ
 * from the formula by less than 1e-6 r + 6e-8 / r, the latter from rounding u, and have the same bits on
 * every instruction set and with every C library. Draws go in groups of 64: number 64 g + 16 k + l is number
 * k of block 16 g + l, in the order words 0 and 1's cosine and sine, words 2 and 3's cosine and sine. Pure
 * functions; any thread. */
#ifndef KERNELS_LANES_NORMAL_H
#define KERNELS_LANES_NORMAL_H

#include "kernels/base/rng.h"

enum { NORMAL_GROUP = 64 };

/* Draws 64 group … + 63 of the blocks whose word 0 is `word`. Any alignment. */
typedef void normal_group(float out[NORMAL_GROUP], const struct rng_key *key, uint32_t word, uint32_t group);

/* Indexed by enum isa (kernels/lanes/isa.h). */
extern normal_group normal_group_baseline, normal_group_avx2, normal_group_avx512;

/* The one that this processor computes with: isa_or_baseline's. */
normal_group *normal_choose(void);

/* The first `count` (at most 2^34) draws of normal(0, 1) that have this key, stream and block. `key`'s
 * environment is not read: it counts the blocks, from 0. */
void normal_fill(normal_group *draw, float *out, uint64_t count, const struct rng_key *key,
                 enum rng_stream stream, uint32_t block);

/* The same draws, from number `begin` on. */
void normal_fill_from(normal_group *draw, float *out, uint64_t begin, uint64_t count,
                      const struct rng_key *key, enum rng_stream stream, uint32_t block);

#endif
