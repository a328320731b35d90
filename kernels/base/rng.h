/* Random numbers by position: a draw is a function of (seed, stream, counter), independent of the order of
 * calls.
 *
 * The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11),
 * through Random123's header. The 64-bit job seed is the key; the 128-bit counter is
 *
 *     word 0: stream << 24 | block     word 1: environment or element     word 2: step     word 3: episode
 *
 * so that every process and device that computes a draw gets the same bits. Pure functions. */
#ifndef KERNELS_BASE_RNG_H
#define KERNELS_BASE_RNG_H

#include <stdint.h>

/* The purpose of a draw. The numbers are part of every recorded result: add, never renumber. */
enum rng_stream {
    RNG_INIT = 1,  /* parameters: element, -, parameter index in word 3; block 0, or 1 (normal.h) for what is
                      made orthogonal (kernels/policy/orthogonal.h) */
    RNG_RESET = 2, /* an environment's first state */
    RNG_DROPOUT = 3,   /* 16 bits per unit */
    RNG_ACTION = 4,    /* block c: word 0 is the uniform of a row's Categorical c. Or, block b: a row's normal
                          draws 4 b … + 3, as kernels/lanes/normal.h makes them of a block. Of a policy that
                          learns from a replay buffer: worker/model/q_learning.c */
    RNG_SHUFFLE = 5,   /* an epoch's order of samples */
    RNG_AUGMENT = 6,   /* a sample's mirror and crop */
    RNG_DATA = 7,      /* synthetic images and labels */
    RNG_NOISE = 8,     /* state-dependent exploration (kernels/policy/dense.h) */
    RNG_REPLAY = 9,    /* which rows of a replay buffer are learned from (worker/replay/replay.h) */
    RNG_LEARNING = 10, /* a gradient step's noise: normal draws, with step 0 of the actions at its
                          observations, 1 at the next ones; word 3 is the gradient step */
};

enum { RNG_STREAM_SHIFT = 24, RNG_BLOCK_MAX = (1 << RNG_STREAM_SHIFT) - 1 };

/* The coordinates of one row, which key all of its draws. */
struct rng_key {
    uint64_t seed;
    uint32_t environment;
    uint32_t step;
    uint32_t episode;
};

/* Four independent words: block `block` of `stream` at `key`. */
void rng_block(const struct rng_key *key, enum rng_stream stream, uint32_t block, uint32_t words[4]);

/* Uniform in [0, 1) with 53 bits, from two words. */
static inline double rng_uniform_double(uint32_t high, uint32_t low)
{
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

/* Uniform in [0, 1) with 24 bits, from one word; exact in float32. */
static inline float rng_uniform_float(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* Uniform in [0, bound), from two words: the upper half of their 128-bit product with it. No value is
 * favoured by more than bound / 2^64, and none takes a second draw. 0 for a bound of 0. */
static inline uint64_t rng_below(uint32_t high, uint32_t low, uint64_t bound)
{
    return (uint64_t)((unsigned __int128)((uint64_t)high << 32 | low) * bound >> 64);
}

/* Element `element` of the first values of trained parameter number `parameter`: uniform in ±bound, from word
 * 0 of block 0 of RNG_INIT. */
float rng_initial_uniform(uint64_t seed, uint32_t parameter, uint32_t element, double bound);

/* A draw of normal(0, deviation), from four words: with u of words 0 and 1 and v of words 2 and 3,
 * deviation sqrt(-2 ln(1 - u)) cos(2 pi v), in double (Box and Muller, Annals of Mathematical Statistics 29,
 * 1958). Where there are many to be drawn at once: kernels/lanes/normal.h. */
double rng_normal(const uint32_t words[4], double deviation);

#endif
