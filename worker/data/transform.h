/* Transforms a decoded image into what a model sees: fitted to size, in the model's channels, cropped,
 * mirrored, normalized. One thread at a time per transform. Allocates only for an image larger than all
 * before it. */
#ifndef WORKER_DATA_TRANSFORM_H
#define WORKER_DATA_TRANSFORM_H

#include "worker/data/image.h"
#include "worker/job/job.h"

#include <stdbool.h>

struct transform;

/* A view of an image: a crop that begins at (y, x) of the image with its margin, then a mirror. */
struct transform_view {
    uint32_t y, x; /* in [0, 2 * crop] */
    bool mirror;
};

/* Draws a view from block `lap` (loader.h) of stream RNG_AUGMENT with word 1 = the sample, word 2 = the
 * epoch's lower and word 3 its upper 32 bits. Word 0 mirrors the image if it is 2^31 or more and `flip` is
 * set. Words 1 and 2 give y and x: the upper half of their 64-bit product with 2 crop + 1. Word 3 is not
 * used. Pure. */
struct transform_view transform_draw_view(uint64_t seed, uint32_t sample, uint64_t epoch, uint32_t lap,
                                          uint32_t crop, bool flip);

/* Takes /data/size, fit, channels, mean and std from the job. `crop` is the width of the margin that views
 * may reach into. STATUS_NO_MEMORY. */
enum status transform_new(struct transform **out, const struct job *job, uint32_t crop, struct error *error);
void transform_free(struct transform *transform);

/* The floats of one transformed image: channels * size * size. */
size_t transform_elements(const struct transform *transform);

/* In float32, in this order:
 *
 *   fit       pad: the image in the middle (of an odd rest, the larger half is below and to the right), zeros
 *             around it, and what is beyond the size cut off. resize: each axis on its own; with
 *             s = from / to and m = max(1, s), output i's weight for input j is
 *             max(0, 1 - |j + 1/2 - s (i + 1/2)| / m), divided by the sum of its weights (PyTorch's
 *             interpolate with mode bilinear, antialias and align_corners=False); sides are not kept in
 *             proportion
 *   channels  1 to 3: three times the same; 3 to 1: 0.299 R + 0.587 G + 0.114 B
 *   view      a margin of `crop` zeros around, size x size of it beginning at (view.y, view.x), mirrored left
 *             to right
 *   normalize (pixel / 255 - mean) / std
 *
 * `out`: (channels, size, size). STATUS_NO_MEMORY: no room for an image larger than those before. */
enum status transform_apply(struct transform *transform, const struct image *image,
                            const struct transform_view *view, float *out, struct error *error);

#endif
