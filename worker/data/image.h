/* Images of files, decoded into 8-bit gray or RGB.
 *
 * JPEG through libjpeg-turbo, PNG through libpng; which of them it is, the bytes say, not the file's name.
 * What is not 8-bit gray or RGB is made so: palettes are looked up, 16 bits become 8 (x * 255 / 65535,
 * rounded), fewer than 8 are stretched, alpha and transparent colors are dropped (the color underneath
 * stays), CMYK becomes (255 - C)(255 - K) / 255 and so on (inverted first where Adobe's marker says so).
 * Color profiles, gamma and the EXIF orientation are not applied: a photograph stored on its side stays so.
 * Warnings of the libraries are silent, but for those that mean lost pixels, which are errors here. */
#ifndef WORKER_DATA_IMAGE_H
#define WORKER_DATA_IMAGE_H

#include "worker/data/dataset.h"

enum {
    IMAGE_SIDE_MAX = 16384,
    IMAGE_BYTES_MAX = 64 << 20, /* decoded */
    IMAGE_JPEG_SCANS_MAX = 100, /* of a progressive JPEG; each costs a pass over the whole image */
};

/* Gives the image this shape and room for its pixels, which are not initialized. STATUS_CORRUPT: a side or
 * the whole is beyond the limits above (nothing was allocated). STATUS_NO_MEMORY. */
enum status image_reshape(struct image *image, uint32_t width, uint32_t height, uint32_t channels,
                          struct error *error);

/* Decodes a whole file. STATUS_CORRUPT: the text says why, without naming the file, of which nothing is known
 * here. STATUS_NO_MEMORY. After a failure the image's pixels mean nothing. Any thread. */
enum status image_decode(struct image *image, const uint8_t *bytes, size_t count, struct error *error);

/* The two halves of it. */
enum status image_decode_jpeg(struct image *image, const uint8_t *bytes, size_t count, struct error *error);
enum status image_decode_png(struct image *image, const uint8_t *bytes, size_t count, struct error *error);

#endif
