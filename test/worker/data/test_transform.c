/* The transforms of an image: resizing is compared with PyTorch's, every other transform with exact
 * values. */
#include "test/workplace.h"
#include "worker/data/image.h"
#include "worker/data/transform.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIZE_MAX_HERE = 32, ELEMENTS_MAX = 3 * SIZE_MAX_HERE * SIZE_MAX_HERE };

static const struct transform_view whole = {0};
static struct job job;
static struct image image;
static float out[ELEMENTS_MAX];

static void set_up(void)
{
    job = (struct job){.data = {.size = 4,
                                .channels = 1,
                                .mean = {.count = 1, .value = {0}},
                                .std = {.count = 1, .value = {1.0 / 255}}}};
}

static void tear_down(void)
{
    image_fini(&image);
}

/* The byte that test/golden/resize.py has at (y, x, c). */
static uint8_t byte_at(uint32_t y, uint32_t x, uint32_t c)
{
    return (uint8_t)(37 * x + 101 * y + 53 * c + 7 * x * y);
}

static void make_image(uint32_t width, uint32_t height, uint32_t channels)
{
    struct error error;
    uint8_t *pixel;
    ck_assert_int_eq(image_reshape(&image, width, height, channels, &error), STATUS_OK);
    pixel = image.pixels;
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++)
            for (uint32_t c = 0; c < channels; c++)
                *pixel++ = byte_at(y, x, c);
}

/* Through one transform each, or through `kept`. */
static void apply(struct transform *kept, uint32_t crop, const struct transform_view *view)
{
    struct error error;
    struct transform *transform = kept;
    if (kept == NULL)
        ck_assert_int_eq(transform_new(&transform, &job, crop, &error), STATUS_OK);
    ck_assert_uint_le(transform_elements(transform), ELEMENTS_MAX);
    ck_assert_int_eq(transform_apply(transform, &image, view, out, &error), STATUS_OK);
    if (kept == NULL)
        transform_free(transform);
}

/* Whether out is `expected` bytes, which a deviation of 1/255 and no mean leave as they were. */
static void expect(const uint8_t *expected, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(fabsf(out[i] - expected[i]) <= 1e-5f * 255, "element %zu: got %g, expected %u", i,
                      (double)out[i], expected[i]);
}

/* ---- fit ---- */

START_TEST(padding_puts_the_image_in_the_middle)
{
    uint8_t wanted[16] = {0};
    make_image(3, 2, 1);
    for (uint32_t y = 0; y < 2; y++)
        for (uint32_t x = 0; x < 3; x++)
            wanted[(y + 1) * 4 + x] = byte_at(y, x, 0);
    apply(NULL, 0, &whole);
    expect(wanted, 16);
}
END_TEST

START_TEST(padding_cuts_off_what_is_beyond)
{
    uint8_t wanted[3 * 16];
    job.data.channels = 3;
    make_image(7, 6, 3);
    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t y = 0; y < 4; y++)
            for (uint32_t x = 0; x < 4; x++)
                wanted[(c * 4 + y) * 4 + x] = byte_at(y + 1, x + 1, c);
    apply(NULL, 0, &whole);
    expect(wanted, sizeof wanted);
}
END_TEST

/* Within 5e-4 of 255: both add at most a few dozen float32 products, in another order and with weights that
 * are rounded at another point. One transform for all, so that one image's weights do not serve the next. */
START_TEST(resizing_equals_pytorchs)
{
    char versions[256];
    unsigned width, height, channels, size, cases = 0;
    FILE *file = fopen("test/golden/resize.txt", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(versions, sizeof versions, file));
    job.data.fit = JOB_FIT_RESIZE;
    for (; fscanf(file, "%u %u %u %u", &width, &height, &channels, &size) == 4; cases++) {
        job.data.size = size;
        job.data.channels = channels;
        make_image(width, height, channels);
        apply(NULL, 0, &whole);
        for (unsigned i = 0; i < channels * size * size; i++) {
            double expected;
            ck_assert_int_eq(fscanf(file, "%lf", &expected), 1);
            ck_assert_msg(fabs((double)out[i] - expected) <= 5e-4,
                          "%u x %u x %u to %u, element %u: got %.9g, expected %.9g", width, height, channels,
                          size, i, (double)out[i], expected);
        }
    }
    fclose(file);
    ck_assert_uint_eq(cases, 8);
}
END_TEST

/* A transform keeps the weights of the last image's sides; other sides need others. */
START_TEST(one_transform_resizes_images_of_any_size)
{
    static const struct {
        uint32_t width, height;
    } sizes[] = {{9, 5}, {9, 20}, {3, 20}, {9, 5}};
    struct transform *kept;
    struct error error;
    job.data.fit = JOB_FIT_RESIZE;
    ck_assert_int_eq(transform_new(&kept, &job, 0, &error), STATUS_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        float fresh[16];
        make_image(sizes[i].width, sizes[i].height, 1);
        apply(NULL, 0, &whole);
        memcpy(fresh, out, sizeof fresh);
        apply(kept, 0, &whole);
        ck_assert_mem_eq(fresh, out, sizeof fresh);
    }
    transform_free(kept);
}
END_TEST

START_TEST(an_image_of_the_right_size_stays_as_it_is)
{
    uint8_t wanted[16];
    job.data.fit = _i == 0 ? JOB_FIT_PAD : JOB_FIT_RESIZE;
    make_image(4, 4, 1);
    memcpy(wanted, image.pixels, sizeof wanted);
    apply(NULL, 0, &whole);
    expect(wanted, sizeof wanted);
}
END_TEST

/* ---- channels ---- */

START_TEST(gray_is_spread_over_three_channels)
{
    uint8_t wanted[3 * 16];
    job.data.channels = 3;
    make_image(4, 4, 1);
    for (int c = 0; c < 3; c++)
        memcpy(wanted + (size_t)16 * c, image.pixels, 16);
    apply(NULL, 0, &whole);
    expect(wanted, sizeof wanted);
}
END_TEST

START_TEST(color_becomes_gray)
{
    make_image(4, 4, 3);
    apply(NULL, 0, &whole);
    for (int i = 0; i < 16; i++) {
        const uint8_t *rgb = image.pixels + (size_t)3 * i;
        ck_assert_double_eq_tol((double)out[i], 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2], 1e-4);
    }
}
END_TEST

/* ---- views ---- */

/* Every place of the crop, mirrored and not: pixel (y, x) is the image's at (y + view.y - crop, …), or 0. */
START_TEST(crops_and_mirrors_are_exact)
{
    enum { CROP = 2, PLACES = 2 * CROP + 1 };
    const bool mirror = _i >= PLACES * PLACES;
    const struct transform_view view = {
        .y = (uint32_t)_i / PLACES % PLACES, .x = (uint32_t)_i % PLACES, .mirror = mirror};
    uint8_t wanted[3 * 16];
    job.data.channels = 3;
    make_image(4, 4, 3);
    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t y = 0; y < 4; y++)
            for (uint32_t x = 0; x < 4; x++) {
                const uint32_t from_y = y + view.y - CROP, from_x = (mirror ? 3 - x : x) + view.x - CROP;
                wanted[(c * 4 + y) * 4 + x] = from_y < 4 && from_x < 4 ? byte_at(from_y, from_x, c) : 0;
            }
    apply(NULL, CROP, &view);
    expect(wanted, sizeof wanted);
}
END_TEST

/* Every place comes up, mirrored and not, and a sample's next epoch is another draw. 10,000 draws: each of 9
 * places and 2 sides within four standard errors (this seed is fixed). */
START_TEST(views_are_drawn_evenly)
{
    enum { DRAWS = 10000, PLACES = 3 };
    unsigned place[PLACES * PLACES] = {0}, mirrored = 0, same = 0, inside = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        struct transform_view view = transform_draw_view(543, i, 0, 0, 1, true),
                              next = transform_draw_view(543, i, 1, 0, 1, true);
        inside += view.y < PLACES && view.x < PLACES;
        place[view.y % PLACES * PLACES + view.x % PLACES]++;
        mirrored += view.mirror;
        same += view.y == next.y && view.x == next.x && view.mirror == next.mirror;
    }
    ck_assert_uint_eq(inside, DRAWS);
    for (int i = 0; i < PLACES * PLACES; i++)
        ck_assert(fabs(place[i] - DRAWS / 9.0) < 4 * sqrt(DRAWS / 9.0));
    ck_assert(fabs(mirrored - DRAWS / 2.0) < 4 * sqrt(DRAWS / 4.0));
    ck_assert(fabs(same - DRAWS / 18.0) < 4 * sqrt(DRAWS / 18.0));
}
END_TEST

START_TEST(without_flip_and_crop_a_view_is_the_image)
{
    for (uint32_t i = 0; i < 100; i++) {
        struct transform_view view = transform_draw_view(1, i, 0, 0, 0, false);
        ck_assert(view.y == 0 && view.x == 0 && !view.mirror);
    }
}
END_TEST

/* ---- normalizing ---- */

/* The same operations in float32, so the same bits. */
START_TEST(each_channel_is_normalized_by_its_own)
{
    job.data.channels = 3;
    job.data.mean = (struct job_channels){.count = 3, .value = {0.485, 0.456, 0.406}};
    job.data.std = (struct job_channels){.count = 3, .value = {0.229, 0.224, 0.225}};
    make_image(4, 4, 3);
    apply(NULL, 0, &whole);
    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t i = 0; i < 16; i++) {
            const float pixel = image.pixels[3 * i + c];
            ck_assert(out[16 * c + i] ==
                      (pixel / 255.0f - (float)job.data.mean.value[c]) / (float)job.data.std.value[c]);
        }
}
END_TEST

START_TEST(padding_comes_before_normalizing)
{
    job.data.mean = (struct job_channels){.count = 1, .value = {0.25}};
    job.data.std = (struct job_channels){.count = 1, .value = {0.5}};
    make_image(2, 2, 1);
    apply(NULL, 1, &(struct transform_view){.y = 2, .x = 2});
    ck_assert(out[15] == -0.5f); // of the margin
    ck_assert(out[2] == -0.5f);  // of the padding
    ck_assert(out[0] == ((float)byte_at(0, 0, 0) / 255.0f - 0.25f) / 0.5f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transform");
    TCase *steps = tcase_create("steps");
    tcase_add_checked_fixture(steps, set_up, tear_down);
    tcase_add_test(steps, padding_puts_the_image_in_the_middle);
    tcase_add_test(steps, padding_cuts_off_what_is_beyond);
    tcase_add_test(steps, resizing_equals_pytorchs);
    tcase_add_test(steps, one_transform_resizes_images_of_any_size);
    tcase_add_loop_test(steps, an_image_of_the_right_size_stays_as_it_is, 0, 2);
    tcase_add_test(steps, gray_is_spread_over_three_channels);
    tcase_add_test(steps, color_becomes_gray);
    tcase_add_loop_test(steps, crops_and_mirrors_are_exact, 0, 50);
    tcase_add_test(steps, views_are_drawn_evenly);
    tcase_add_test(steps, without_flip_and_crop_a_view_is_the_image);
    tcase_add_test(steps, each_channel_is_normalized_by_its_own);
    tcase_add_test(steps, padding_comes_before_normalizing);
    suite_add_tcase(suite, steps);
    return suite_run(suite);
}
