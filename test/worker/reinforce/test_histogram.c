/* Percentiles within the promised 1/16, at every size of value. */
#include "test/workplace.h"
#include "worker/reinforce/histogram.h"

#include <check.h>
#include <stdlib.h>

static struct histogram histogram;

START_TEST(small_values_are_exact)
{
    histogram = (struct histogram){0};
    ck_assert_uint_eq(histogram_percentile(&histogram, 0.5), 0);
    for (uint64_t value = 1; value <= 20; value++)
        histogram_add(&histogram, value);
    ck_assert_uint_eq(histogram_percentile(&histogram, 0.5), 10);
    ck_assert_uint_eq(histogram_percentile(&histogram, 0.99), 20);
    ck_assert_uint_eq(histogram_percentile(&histogram, 0.01), 1);
}
END_TEST

START_TEST(every_size_is_within_a_sixteenth_and_never_understated)
{
    for (uint64_t value = 1; value < UINT32_MAX; value = value * 17 / 16 + 1) {
        histogram = (struct histogram){0};
        histogram_add(&histogram, value);
        uint64_t told = histogram_percentile(&histogram, 1);
        ck_assert_uint_ge(told, value);
        ck_assert_uint_le(told, value + value / 16 + 1);
    }
}
END_TEST

START_TEST(huge_values_count_as_the_largest)
{
    histogram = (struct histogram){0};
    histogram_add(&histogram, UINT64_MAX);
    histogram_add(&histogram, 3);
    ck_assert_uint_eq(histogram_percentile(&histogram, 0.5), 3);
    ck_assert_uint_eq(histogram_percentile(&histogram, 1), UINT32_MAX);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("histogram");
    TCase *percentiles = tcase_create("percentiles");
    tcase_add_test(percentiles, small_values_are_exact);
    tcase_add_test(percentiles, every_size_is_within_a_sixteenth_and_never_understated);
    tcase_add_test(percentiles, huge_values_count_as_the_largest);
    suite_add_tcase(suite, percentiles);
    return suite_run(suite);
}
