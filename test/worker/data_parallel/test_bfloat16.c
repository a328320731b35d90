/* Rounding to bfloat16: to nearest, ties to even; and error feedback, by which nothing is lost over the
 * steps. */
#include "test/workplace.h"
#include "worker/data_parallel/bfloat16.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { ELEMENTS = 1000, STEPS = 50 };

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bits of a float32, and the bfloat16 that they are nearest to. Denormal numbers are 0. */
static const struct {
    uint32_t bits;
    uint16_t nearest;
} roundings[] = {
    {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
    {0x3f817fff, 0x3f81}, {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82}, {0x00000000, 0x0000},
    {0x00008000, 0x0000}, {0x00018000, 0x0000}, {0x3fffffff, 0x4000}, {0x7f7f7fff, 0x7f7f},
    {0x7f7f8000, 0x7f80}, {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
    {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff},
};

START_TEST(values_become_the_nearest)
{
    const float value = float_of(roundings[_i].bits);
    float kept = 0, widened;
    uint16_t rounded;
    bfloat16_round(&rounded, &value, &kept, 1);
    ck_assert_uint_eq(rounded, roundings[_i].nearest);
    bfloat16_widen(&widened, &rounded, 1);
    if (isfinite(widened))
        ck_assert(widened + kept == value);
    else
        ck_assert(kept == 0);
}
END_TEST

static float drawn(uint32_t element, uint32_t step)
{
    uint32_t x = element * 2654435761u ^ (step + 1) * 40503u;
    x = (x ^ x >> 15) * 2246822519u;
    return (float)(int32_t)(x ^ x >> 13) * 0x1p-40f;
}

/* All that was sent, and the error that is kept at last, add up to the sum of all gradients. */
START_TEST(what_is_sent_adds_up_to_the_gradients)
{
    static float values[ELEMENTS], kept[ELEMENTS], widened[ELEMENTS];
    static double sent[ELEMENTS], wanted[ELEMENTS], largest[ELEMENTS];
    static uint16_t rounded[ELEMENTS];
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < ELEMENTS; i++)
            values[i] = drawn(i, step);
        bfloat16_round(rounded, values, kept, ELEMENTS);
        bfloat16_widen(widened, rounded, ELEMENTS);
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            sent[i] += (double)widened[i];
            wanted[i] += (double)values[i];
            largest[i] = fmax(largest[i], fabs((double)values[i]));
        }
    }
    double worst = 0, plain = 0; /* in units of the largest gradient */
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        worst = fmax(worst, fabs(sent[i] + (double)kept[i] - wanted[i]) / largest[i]);
        plain = fmax(plain, fabs(sent[i] - wanted[i]) / largest[i]);
    }
    ck_assert_double_le(worst, STEPS * (double)FLT_EPSILON);
    ck_assert_double_le(plain,
                        0x1p-8); /* without the kept error: half of one last place, whatever the steps */
    ck_assert_double_gt(plain, 0);
}
END_TEST

/* In a message a row may begin at any byte. */
START_TEST(a_row_at_an_odd_address_is_read)
{
    unsigned char bytes[2 * 3 + 1];
    const uint16_t halves[3] = {0x3f80, 0xc000, 0x0001};
    float values[3];
    memcpy(bytes + 1, halves, sizeof halves);
    bfloat16_widen(values, bytes + 1, 3);
    ck_assert(values[0] == 1 && values[1] == -2 && values[2] == float_of(0x00010000));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bfloat16");
    TCase *tcase = tcase_create("bfloat16");
    tcase_add_loop_test(tcase, values_become_the_nearest, 0, sizeof roundings / sizeof roundings[0]);
    tcase_add_test(tcase, what_is_sent_adds_up_to_the_gradients);
    tcase_add_test(tcase, a_row_at_an_odd_address_is_read);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
