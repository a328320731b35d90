/* The tutorial's random data. It has no files and no samples to read one by one: the loader asks for whole
 * batches. Pure functions; any thread. */
#ifndef WORKER_DATA_DATA_SYNTHETIC_H
#define WORKER_DATA_DATA_SYNTHETIC_H

#include <stddef.h>
#include <stdint.h>

/* The images of one trainer's step, `count` floats. Elements 2 i and 2 i + 1 are the normal pair (rng.h) of
 * the block with word 1 = i, word 2 = the step's lower 32 bits, word 3 = the trainer, and as its number the
 * step's bits from 32 on, of which there are at most 23. */
void data_synthetic_images(float *images, size_t count, uint64_t seed, uint64_t step, uint32_t trainer);

/* A trainer's labels, the same in all its batches: label i is rng_below(words 0 and 1, classes) of block
 * RNG_BLOCK_MAX with word 1 = i, word 2 = 0, word 3 = the trainer. */
void data_synthetic_labels(int32_t *labels, uint32_t count, uint64_t seed, uint32_t trainer,
                           uint32_t classes);

#endif
