/* Which sample stands where in an epoch, and how chance crops and mirrors it: the loader's formulas
 * (loader.h) as pure functions. */
#ifndef WORKER_DATA_SAMPLING_H
#define WORKER_DATA_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

/* Epoch `epoch`'s permutation of [0, count): for i = count - 1 down to 1, place i is exchanged with place
 * rng_below(two words, i + 1). The words are 2 (i mod 2) and the next one of stream RNG_SHUFFLE's block `lap`
 * (loader.h) with word 1 = floor(i / 2), word 2 = the epoch's lower and word 3 its upper 32 bits. */
void sampling_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t epoch, uint32_t lap);

/* Where a trainer's batch begins: the epoch, and the first of `batch` places of its permutation. */
struct sampling_place {
    uint64_t epoch;
    uint32_t first;
};

/* Steps of an epoch: floor(count / (trainers * batch)). */
uint32_t sampling_epoch_steps(uint32_t count, uint32_t trainers, uint32_t batch);

/* The place of trainer `trainer` at `step`. Asserts that an epoch has at least one step. */
struct sampling_place sampling_place(uint64_t step, uint32_t trainer, uint32_t trainers, uint32_t batch,
                                     uint32_t count);

/* A random view of an image: a crop that begins at (y, x) of the image with its margin, then a mirror. */
struct sampling_view {
    uint32_t y, x; /* in [0, 2 * crop] */
    bool mirror;
};

/* From block `lap` of stream RNG_AUGMENT with word 1 = the sample, word 2 = the epoch's lower and word 3 its
 * upper 32 bits. Word 0 mirrors the image if it is 2^31 or more and `flip` is set. Words 1 and 2 give y and
 * x: the upper half of their 64-bit product with 2 crop + 1. Word 3 is not used. */
struct sampling_view sampling_view(uint64_t seed, uint32_t sample, uint64_t epoch, uint32_t lap,
                                   uint32_t crop, bool flip);

#endif
