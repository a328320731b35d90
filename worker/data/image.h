/* Image files decoded into 8-bit gray or RGB.
 *
 * JPEG goes through libjpeg-turbo, PNG through libpng; the first bytes of a file decide, not its name. Other
 * formats of pixels are converted: palettes are looked up, 16 bits become 8 (x * 255 / 65535, rounded), fewer
 * than 8 bits are stretched, alpha and transparent colors are dropped (the color underneath stays), CMYK
 * becomes (255 - C)(255 - K) / 255 and so on (inverted first where Adobe's marker says so). Color profiles,
 * gamma and the EXIF orientation are not applied: a photograph stored on its side stays on its side. The
 * libraries' warnings are silent, except those that mean lost pixels, which are errors here. */
#ifndef WORKER_DATA_IMAGE_H
#define WORKER_DATA_IMAGE_H

#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    IMAGE_SIDE_MAX = 16384,
    IMAGE_BYTES_MAX = 64 << 20, /* decoded */
    IMAGE_JPEG_SCANS_MAX = 100, /* of a progressive JPEG; each costs a pass over the whole image */
};

/* One decoded image: 8-bit, interleaved (height, width, channels). A zeroed struct is an empty image.
 * `pixels` belongs to the image, grows as needed and is reused by the next image that is decoded into the
 * struct. */
struct image {
    uint32_t width, height, channels; /* channels: 1 or 3 */
    uint8_t *pixels;
    size_t capacity; /* bytes allocated at `pixels` */
};
void image_fini(struct image *image);

/* Gives the image this shape and room for its pixels, which are not initialized. STATUS_CORRUPT: a side or
 * the size in bytes exceeds the limits above; nothing was allocated. STATUS_NO_MEMORY. */
enum status image_reshape(struct image *image, uint32_t width, uint32_t height, uint32_t channels,
                          struct error *error);

/* Decodes the whole contents of a file. STATUS_CORRUPT: the text gives the reason; the caller adds the file's
 * name. STATUS_NO_MEMORY. After a failure the image's pixels are undefined. Any thread. */
enum status image_decode(struct image *image, const uint8_t *bytes, size_t count, struct error *error);

#endif
