/* The memory of an image, and the choice of a decoder by a file's first bytes. Any thread. */
#include "worker/data/image.h"

#include <stdlib.h>
#include <string.h>

void image_fini(struct image *image)
{
    free(image->pixels);
    *image = (struct image){0};
}

enum status image_reshape(struct image *image, uint32_t width, uint32_t height, uint32_t channels,
                          struct error *error)
{
    if (width == 0 || height == 0 || width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX)
        return error_set(error, STATUS_CORRUPT, "expected sides of 1..%d pixels, got %u x %u", IMAGE_SIDE_MAX,
                         width, height);
    const size_t bytes = (size_t)width * height * channels;
    if (bytes > IMAGE_BYTES_MAX)
        return error_set(error, STATUS_CORRUPT, "%u x %u pixels of %u bytes are more than %d bytes", width,
                         height, channels, IMAGE_BYTES_MAX);
    if (bytes > image->capacity) {
        uint8_t *pixels = realloc(image->pixels, bytes);
        if (pixels == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for an image of %zu bytes", bytes);
        image->pixels = pixels;
        image->capacity = bytes;
    }
    image->width = width;
    image->height = height;
    image->channels = channels;
    return STATUS_OK;
}

enum status image_decode(struct image *image, const uint8_t *bytes, size_t count, struct error *error)
{
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff}, png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (count >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return image_decode_jpeg(image, bytes, count, error);
    if (count >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return image_decode_png(image, bytes, count, error);
    return error_set(error, STATUS_CORRUPT, "neither a JPEG nor a PNG file");
}
