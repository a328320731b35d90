/* Decoding: every kind of JPEG and PNG against its recorded pixels, and files that are none. */
#include "test/worker/data/golden_images.h"
#include "test/workplace.h"
#include "worker/data/image.h"

#include <stdlib.h>

START_TEST(every_kind_decodes_to_its_pixels)
{
    struct golden_image golden = {0};
    struct image image = {0};
    unsigned kinds = 0;
    FILE *file = golden_images_open();
    for (; golden_images_next(file, &golden); kinds++) {
        struct error error = {0};
        enum status status = image_decode(&image, golden.file, golden.file_bytes, &error);
        ck_assert_msg(status == STATUS_OK, "%s: %s", golden.name, error.text);
        ck_assert_msg(image.width == golden.width && image.height == golden.height &&
                          image.channels == golden.channels,
                      "%s: %u x %u x %u", golden.name, image.width, image.height, image.channels);
        for (unsigned i = 0; i < golden.width * golden.height * golden.channels; i++)
            ck_assert_msg(abs(image.pixels[i] - golden.pixels[i]) <= (int)golden.bound,
                          "%s: byte %u is %d, expected %d", golden.name, i, image.pixels[i],
                          golden.pixels[i]);
    }
    fclose(file);
    image_fini(&image);
    ck_assert_uint_eq(kinds, 23);
}
END_TEST

static enum status decode(const uint8_t *bytes, size_t count, struct error *error)
{
    struct image image = {0};
    *error = (struct error){0};
    uint8_t *copy = malloc(count + 1); // of its own, so that a sanitizer sees what is read behind it
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, bytes, count);
    enum status status = image_decode(&image, copy, count, error);
    free(copy);
    image_fini(&image);
    return status;
}

/* Not a byte of a file can be missing at its end. */
START_TEST(a_file_cut_anywhere_is_corrupt)
{
    struct golden_image golden = {0};
    FILE *file = golden_images_open();
    while (golden_images_next(file, &golden))
        for (size_t count = 0; count < golden.file_bytes; count++) {
            struct error error;
            ck_assert_msg(decode(golden.file, count, &error) == STATUS_CORRUPT, "%s cut to %zu bytes",
                          golden.name, count);
            ck_assert_str_ne(error.text, "");
        }
    fclose(file);
}
END_TEST

/* A flipped bit is found by PNG's check sums wherever it matters; a JPEG may decode to something else.
 * Neither does more than say so. */
START_TEST(a_flipped_bit_is_survived)
{
    static const char *const names[] = {"progressive.jpg", "cmyk.jpg", "color8-interlaced.png"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct golden_image golden = golden_image(names[n]);
        for (size_t i = 0; i < golden.file_bytes; i++) {
            struct error error;
            golden.file[i] ^= (uint8_t)(1 << i % 8);
            enum status status = decode(golden.file, golden.file_bytes, &error);
            golden.file[i] ^= (uint8_t)(1 << i % 8);
            ck_assert_int_eq(status == STATUS_OK, error.text[0] == '\0');
            ck_assert(status == STATUS_OK || status == STATUS_CORRUPT);
        }
    }
}
END_TEST

START_TEST(what_is_no_image_is_said_to_be_none)
{
    static const char *const files[] = {"", "\xff", "\xff\xd8", "GIF89a", "\x89PNG\r\n\x1a", "hello, world"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct error error;
        ck_assert_int_eq(decode((const uint8_t *)files[i], strlen(files[i]), &error), STATUS_CORRUPT);
        ck_assert_str_eq(error.text, "neither a JPEG nor a PNG file");
    }
}
END_TEST

/* ---- sizes ---- */

static uint32_t crc_of(const uint8_t *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

static void put_word(uint8_t *to, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(word >> (24 - 8 * i));
}

/* Its header says another size; nothing else changes. */
static void resize_png(struct golden_image *golden, uint32_t width, uint32_t height)
{
    put_word(golden->file + 16, width);
    put_word(golden->file + 20, height);
    put_word(golden->file + 29, crc_of(golden->file + 12, 17));
}

static void resize_jpeg(struct golden_image *golden, uint16_t width, uint16_t height)
{
    uint8_t *at = memmem(golden->file, golden->file_bytes, "\xff\xc0", 2);
    ck_assert_ptr_nonnull(at);
    at[5] = (uint8_t)(height >> 8);
    at[6] = (uint8_t)height;
    at[7] = (uint8_t)(width >> 8);
    at[8] = (uint8_t)width;
}

static const struct {
    uint32_t width, height;
    const char *text;
} too_large[] = {{16385, 1, "expected sides of 1..16384 pixels, got 16385 x 1"},
                 {1, 65000, "expected sides of 1..16384 pixels, got 1 x 65000"},
                 {16384, 16384, "16384 x 16384 pixels of 3 bytes are more than 67108864 bytes"},
                 {16384, 1366, "16384 x 1366 pixels of 3 bytes are more than 67108864 bytes"}};

START_TEST(a_header_that_promises_too_much_allocates_nothing)
{
    struct golden_image files[] = {golden_image("color8.png"), golden_image("color.jpg")};
    resize_png(&files[0], too_large[_i].width, too_large[_i].height);
    resize_jpeg(&files[1], (uint16_t)too_large[_i].width, (uint16_t)too_large[_i].height);
    for (int i = 0; i < 2; i++) {
        struct image image = {0};
        struct error error = {0};
        ck_assert_int_eq(image_decode(&image, files[i].file, files[i].file_bytes, &error), STATUS_CORRUPT);
        ck_assert_str_eq(error.text, too_large[_i].text);
        ck_assert_ptr_null(image.pixels);
    }
}
END_TEST

/* Room for the largest image is taken once, and smaller ones lie in it. */
START_TEST(pixels_are_kept_from_image_to_image)
{
    struct image image = {0};
    struct error error;
    ck_assert_int_eq(image_reshape(&image, 16384, 4096, 1, &error), STATUS_OK);
    const uint8_t *pixels = image.pixels;
    ck_assert_uint_eq(image.capacity, IMAGE_BYTES_MAX);
    ck_assert_int_eq(image_reshape(&image, 3, 2, 3, &error), STATUS_OK);
    ck_assert_ptr_eq(image.pixels, pixels);
    ck_assert_int_eq(image_reshape(&image, 0, 2, 3, &error), STATUS_CORRUPT);
    image_fini(&image);
    ck_assert_ptr_null(image.pixels);
}
END_TEST

/* ---- scans ---- */

/* The progressive file with its first scan `times` over, which changes no pixel. malloc'ed. */
static uint8_t *repeat_scan(const struct golden_image *golden, size_t times, size_t *bytes)
{
    const uint8_t *begin = memmem(golden->file, golden->file_bytes, "\xff\xda", 2);
    ck_assert_ptr_nonnull(begin);
    const uint8_t *end = begin + 2 + (begin[2] << 8 | begin[3]);
    while (end[0] != 0xff || end[1] == 0)
        end++;
    const size_t before = (size_t)(begin - golden->file), scan = (size_t)(end - begin);
    const size_t after = golden->file_bytes - before - scan;
    uint8_t *file = malloc(before + times * scan + after);
    ck_assert_ptr_nonnull(file);
    memcpy(file, golden->file, before);
    for (size_t i = 0; i < times; i++)
        memcpy(file + before + i * scan, begin, scan);
    memcpy(file + before + times * scan, end, after);
    *bytes = before + times * scan + after;
    return file;
}

START_TEST(very_many_scans_are_refused)
{
    static const struct {
        size_t times;
        enum status status;
    } cases[] = {{1, STATUS_OK}, {50, STATUS_OK}, {200, STATUS_CORRUPT}};
    const struct golden_image golden = golden_image("progressive.jpg");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error;
        size_t bytes;
        uint8_t *file = repeat_scan(&golden, cases[i].times, &bytes);
        ck_assert_int_eq(decode(file, bytes, &error), cases[i].status);
        ck_assert_str_eq(error.text, cases[i].status == STATUS_OK ? "" : "more than 100 scans");
        free(file);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image");
    TCase *decoding = tcase_create("decoding");
    tcase_add_test(decoding, every_kind_decodes_to_its_pixels);
    tcase_add_test(decoding, a_file_cut_anywhere_is_corrupt);
    tcase_add_test(decoding, a_flipped_bit_is_survived);
    tcase_add_test(decoding, what_is_no_image_is_said_to_be_none);
    tcase_add_loop_test(decoding, a_header_that_promises_too_much_allocates_nothing, 0,
                        sizeof too_large / sizeof *too_large);
    tcase_add_test(decoding, pixels_are_kept_from_image_to_image);
    tcase_add_test(decoding, very_many_scans_are_refused);
    suite_add_tcase(suite, decoding);
    return suite_run(suite);
}
