/* The tutorial's random data, in whole batches. Pure functions; any thread. */
#ifndef WORKER_DATA_SYNTHETIC_H
#define WORKER_DATA_SYNTHETIC_H

#include "kernels/lanes/normal.h"

/* Draws the images of one trainer's step, `count` floats: the draws (kernels/lanes/normal.h) of stream
 * RNG_DATA with word 2 = the step's lower 32 bits, word 3 = the trainer, and as the block's number the step's
 * bits from 32 on, of which there are at most 23. */
void synthetic_images(normal_group *lanes, float *images, uint64_t count, uint64_t seed, uint64_t step,
                      uint32_t trainer);

/* Draws a trainer's labels, which are the same in all its batches: label i is rng_below(words 0 and 1,
 * classes) of block RNG_BLOCK_MAX with word 1 = i, word 2 = 0, word 3 = the trainer. */
void synthetic_labels(int32_t *labels, uint32_t count, uint64_t seed, uint32_t trainer, uint32_t classes);

#endif
