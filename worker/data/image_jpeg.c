/* Decodes JPEG with libjpeg-turbo; any thread.
 *
 * The library reports an error by a function that must not return, so decoding runs under one setjmp, in
 * image_decode_jpeg, and everything that must survive the jump lives in `struct reading`. */
#include "worker/data/image.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

struct reading {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr manager;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    char text[JMSG_LENGTH_MAX];
};

__attribute__((noreturn)) static void jpeg_fail(j_common_ptr jpeg)
{
    struct reading *reading = jpeg->client_data;
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
    struct reading *reading = jpeg->client_data;
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

static enum status jpeg_decode(struct reading *reading, struct image *image, const uint8_t *bytes,
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

enum status image_decode_jpeg(struct image *image, const uint8_t *bytes, size_t count, struct error *error)
{
    struct reading reading = {.progress.progress_monitor = count_scans};
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
