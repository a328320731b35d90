/* Decodes JPEG with libjpeg-turbo and PNG with libpng; a file's first bytes decide. Any thread.
 *
 * Both libraries report an error by a function that must not return. So decoding runs under one setjmp, and
 * everything that must survive the jump lies in a struct of its own. libpng itself bounds what a chunk of
 * text or a profile may inflate to (8 MB). */
#include "worker/data/image.h"

#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

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

/* ---- JPEG ---- */

struct jpeg_reading {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr manager;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    char text[JMSG_LENGTH_MAX];
};

__attribute__((noreturn)) static void jpeg_fail(j_common_ptr jpeg)
{
    struct jpeg_reading *reading = jpeg->client_data;
    jpeg->err->format_message(jpeg, reading->text);
    longjmp(reading->escape, 1);
}

/* A warning (level -1) about guessed pixels is an error; all other warnings are ignored. */
static void jpeg_hear(j_common_ptr jpeg, int level)
{
    if (level >= 0)
        return;
    switch (jpeg->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
        jpeg_fail(jpeg);
    default:
        break;
    }
}

/* Called while scans are read. Each scan is a pass over the whole image, and a small file can hold very many.
 */
static void count_scans(j_common_ptr jpeg)
{
    struct jpeg_reading *reading = jpeg->client_data;
    if (reading->jpeg.input_scan_number <= IMAGE_JPEG_SCANS_MAX)
        return;
    snprintf(reading->text, sizeof reading->text, "more than %d scans", IMAGE_JPEG_SCANS_MAX);
    longjmp(reading->escape, 1);
}

static void rgb_of_cmyk(uint8_t *rgb, const uint8_t *cmyk, uint32_t width, bool inverted)
{
    const uint8_t flip = inverted ? 0 : 255;
    for (uint32_t x = 0; x < width; x++) {
        const unsigned light = cmyk[4 * x + 3] ^ flip;
        for (uint32_t c = 0; c < 3; c++)
            rgb[3 * x + c] = (uint8_t)(((cmyk[4 * x + c] ^ flip) * light + 127) / 255);
    }
}

static void read_rows(struct jpeg_decompress_struct *jpeg, struct image *image)
{
    const bool cmyk = jpeg->out_color_space == JCS_CMYK;
    const JDIMENSION width = jpeg->output_width;
    JSAMPARRAY row = cmyk ? jpeg->mem->alloc_sarray((j_common_ptr)jpeg, JPOOL_IMAGE, 4 * width, 1) : NULL;
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW to = image->pixels + (size_t)jpeg->output_scanline * width * image->channels;
        jpeg_read_scanlines(jpeg, cmyk ? row : &to, 1);
        if (cmyk)
            rgb_of_cmyk(to, row[0], width, jpeg->saw_Adobe_marker);
    }
}

static enum status jpeg_decode(struct jpeg_reading *reading, struct image *image, const uint8_t *bytes,
                               size_t count, struct error *error)
{
    struct jpeg_decompress_struct *jpeg = &reading->jpeg;
    jpeg->progress = &reading->progress;
    jpeg_mem_src(jpeg, bytes, count);
    jpeg_read_header(jpeg, TRUE);
    const bool gray = jpeg->jpeg_color_space == JCS_GRAYSCALE;
    const bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
    jpeg->out_color_space = gray ? JCS_GRAYSCALE : cmyk ? JCS_CMYK : JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW; // the one whose every version gives the same bits
    enum status status = image_reshape(image, jpeg->image_width, jpeg->image_height, gray ? 1 : 3, error);
    if (status != STATUS_OK)
        return status;
    jpeg_start_decompress(jpeg);
    read_rows(jpeg, image);
    jpeg_finish_decompress(jpeg);
    return STATUS_OK;
}

static enum status image_decode_jpeg(struct image *image, const uint8_t *bytes, size_t count,
                                     struct error *error)
{
    struct jpeg_reading reading = {.progress.progress_monitor = count_scans};
    enum status status;
    reading.jpeg.err = jpeg_std_error(&reading.manager);
    reading.jpeg.client_data = &reading;
    reading.manager.error_exit = jpeg_fail;
    reading.manager.emit_message = jpeg_hear;
    if (setjmp(reading.escape) == 0) {
        jpeg_create_decompress(&reading.jpeg);
        status = jpeg_decode(&reading, image, bytes, count, error);
    } else {
        status = error_set(error,
                           reading.manager.msg_code == JERR_OUT_OF_MEMORY ? STATUS_NO_MEMORY : STATUS_CORRUPT,
                           "%s", reading.text);
    }
    jpeg_destroy_decompress(&reading.jpeg);
    return status;
}

/* ---- PNG ---- */

struct png_reading {
    png_structp png;
    png_infop info;
    const uint8_t *bytes;
    size_t left;
    bool lacks_memory;
    jmp_buf escape;
    char text[100];
};

/* libpng reports a failed allocation as it reports a damaged file; malloc alone sets errno here. */
__attribute__((noreturn)) static void png_fail(png_structp png, png_const_charp text)
{
    struct png_reading *reading = png_get_error_ptr(png);
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
    struct png_reading *reading = png_get_io_ptr(png);
    if (count > reading->left)
        png_error(png, "ends too early");
    memcpy(to, reading->bytes, count);
    reading->bytes += count;
    reading->left -= count;
}

/* Asks for 8-bit gray or RGB, whatever the file holds. Returns the number of channels. */
static uint32_t ask_for_bytes(const struct png_reading *reading)
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

static enum status png_decode(const struct png_reading *reading, struct image *image, struct error *error)
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

static enum status png_prepare(struct png_reading *reading, struct error *error)
{
    reading->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reading, png_fail, png_ignore);
    reading->info = reading->png == NULL ? NULL : png_create_info_struct(reading->png);
    if (reading->info == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to decode an image");
    png_set_read_fn(reading->png, reading, png_take_bytes);
    return STATUS_OK;
}

static enum status image_decode_png(struct image *image, const uint8_t *bytes, size_t count,
                                    struct error *error)
{
    struct png_reading reading = {.bytes = bytes, .left = count};
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

/* ---- either ---- */

enum status image_decode(struct image *image, const uint8_t *bytes, size_t count, struct error *error)
{
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff}, png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (count >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return image_decode_jpeg(image, bytes, count, error);
    if (count >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return image_decode_png(image, bytes, count, error);
    return error_set(error, STATUS_CORRUPT, "neither a JPEG nor a PNG file");
}
