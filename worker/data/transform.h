/* Transforms a decoded image into what a model sees: fitted to size, in the model's channels, cropped,
 * mirrored, normalized. One thread at a time per transform. Allocates only for an image larger than all
 * before it. */
#ifndef WORKER_DATA_TRANSFORM_H
#define WORKER_DATA_TRANSFORM_H

#include "worker/data/dataset.h"
#include "worker/data/sampling.h"

struct transform;

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
                            const struct sampling_view *view, float *out, struct error *error);

#endif
