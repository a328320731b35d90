/* Decodes PNG with libpng; any thread.
 *
 * The library reports an error by a function that must not return, so decoding runs under one setjmp, in
 * image_decode_png, and everything that must survive the jump lives in `struct reading`. libpng itself bounds
 * what a chunk of text or a profile may inflate to (8 MB). */
#include "worker/data/image.h"

#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { REASON_BYTES = 100 };

struct reading {
    png_structp png;
    png_infop info;
    const uint8_t *bytes;
    size_t left;
    bool lacks_memory;
    jmp_buf escape;
    char text[REASON_BYTES];
};

/* libpng reports a failed allocation as it reports a damaged file; malloc alone sets errno here. */
__attribute__((noreturn)) static void png_fail(png_structp png, png_const_charp text)
{
    struct reading *reading = png_get_error_ptr(png);
    reading->lacks_memory = errno == ENOMEM;
    snprintf(reading->text, sizeof reading->text, "%s", text);
    longjmp(reading->escape, 1);
}

static void png_ignore(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void png_take_bytes(png_structp png, png_bytep to, png_size_t count)
{
    struct reading *reading = png_get_io_ptr(png);
    if (count > reading->left)
        png_error(png, "ends too early");
    memcpy(to, reading->bytes, count);
    reading->bytes += count;
    reading->left -= count;
}

/* Asks for 8-bit gray or RGB, whatever the file holds. Returns the number of channels. */
static uint32_t ask_for_bytes(const struct reading *reading)
{
    const int color = png_get_color_type(reading->png, reading->info);
    if (color == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(reading->png);
    if (color == PNG_COLOR_TYPE_GRAY)
        png_set_expand_gray_1_2_4_to_8(reading->png);
    png_set_scale_16(reading->png);
    png_set_strip_alpha(reading->png);
    return (color & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
}

static enum status png_decode(const struct reading *reading, struct image *image, struct error *error)
{
    png_structp png = reading->png;
    png_read_info(png, reading->info);
    const uint32_t width = png_get_image_width(png, reading->info);
    const uint32_t height = png_get_image_height(png, reading->info);
    enum status status = image_reshape(image, width, height, ask_for_bytes(reading), error);
    if (status != STATUS_OK)
        return status;
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, reading->info);
    const size_t row = (size_t)width * image->channels;
    if (png_get_rowbytes(png, reading->info) != row)
        png_error(png, "an unknown kind of pixel");
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < height; y++)
            png_read_row(png, image->pixels + y * row, NULL);
    png_read_end(png, NULL);
    return STATUS_OK;
}

static enum status png_prepare(struct reading *reading, struct error *error)
{
    reading->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reading, png_fail, png_ignore);
    reading->info = reading->png == NULL ? NULL : png_create_info_struct(reading->png);
    if (reading->info == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to decode an image");
    png_set_read_fn(reading->png, reading, png_take_bytes);
    return STATUS_OK;
}

enum status image_decode_png(struct image *image, const uint8_t *bytes, size_t count, struct error *error)
{
    struct reading reading = {.bytes = bytes, .left = count};
    enum status status;
    errno = 0;
    if (setjmp(reading.escape) == 0) {
        status = png_prepare(&reading, error);
        if (status == STATUS_OK)
            status = png_decode(&reading, image, error);
    } else {
        status =
            error_set(error, reading.lacks_memory ? STATUS_NO_MEMORY : STATUS_CORRUPT, "%s", reading.text);
    }
    png_destroy_read_struct(&reading.png, &reading.info, NULL);
    return status;
}
