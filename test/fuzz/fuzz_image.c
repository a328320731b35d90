/* Fuzzes the decoders of images with any bytes as a file.
 *
 * Holds three promises: what is accepted has pixels of the shape that it says, all of them readable, within
 * the limits; what is refused is refused as corrupt, with a word why; and the same bytes decode to the same
 * pixels again, into an image that held another. */
#include "worker/data/image.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static size_t bytes_of(const struct image *image)
{
    return (size_t)image->width * image->height * image->channels;
}

static void check_accepted(const struct image *image)
{
    require(image->width > 0 && image->width <= IMAGE_SIDE_MAX);
    require(image->height > 0 && image->height <= IMAGE_SIDE_MAX);
    require(image->channels == 1 || image->channels == 3);
    require(bytes_of(image) <= IMAGE_BYTES_MAX && bytes_of(image) <= image->capacity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct image first = {0}, again = {0};
    struct error error = {0};
    enum status status = image_decode(&first, data, size, &error);
    require(status == STATUS_OK || status == STATUS_CORRUPT);
    require((status == STATUS_OK) == (error.text[0] == '\0'));
    if (status == STATUS_OK) {
        check_accepted(&first);
        require(image_reshape(&again, 5, 5, 3, &error) == STATUS_OK);
        require(image_decode(&again, data, size, &error) == STATUS_OK);
        require(bytes_of(&first) == bytes_of(&again));
        require(memcmp(first.pixels, again.pixels, bytes_of(&first)) == 0);
    }
    image_fini(&first);
    image_fini(&again);
    return 0;
}
