/* The choice of the decoder by a file's first bytes; any thread. */
#include "worker/data/image.h"

#include <string.h>

enum status image_decode(struct image *image, const uint8_t *bytes, size_t count, struct error *error)
{
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff}, png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (count >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return image_decode_jpeg(image, bytes, count, error);
    if (count >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return image_decode_png(image, bytes, count, error);
    return error_set(error, STATUS_CORRUPT, "neither a JPEG nor a PNG file");
}
