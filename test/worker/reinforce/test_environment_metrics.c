/* The means of metrics: over the episodes that ended, in a fixed order. */
#include "test/workplace.h"
#include "worker/reinforce/environment_metrics.h"

#include <check.h>
#include <math.h>

static const char *const names[] = {"is_success", "distance"};
static struct environment_metrics metrics;
static struct control_metrics means;

static void add(uint32_t column, float success, float distance)
{
    const float values[2] = {success, distance};
    char bytes[1 + sizeof values]; /* at an odd address */
    memcpy(bytes + 1, values, sizeof values);
    environment_metrics_add(&metrics, column, (const void *)(bytes + 1));
}

static void setup(void)
{
    const struct environment_spec spec = {.metric_count = 2, .metrics = names};
    struct error error;
    ck_assert_int_eq(environment_metrics_open(&metrics, &spec, 4, &error), STATUS_OK);
    add(2, 1, 8);
    add(0, 0, 2);
    add(2, 1, 0.5f);
    add(3, 0, 1);
}

static void teardown(void)
{
    environment_metrics_close(&metrics);
}

START_TEST(means_are_over_the_episodes_that_ended)
{
    environment_metrics_mean(&metrics, 0, 4, &means);
    ck_assert_uint_eq(means.count, 2);
    ck_assert_str_eq(means.of[0].name, "is_success");
    ck_assert_str_eq(means.of[1].name, "distance");
    ck_assert_double_eq(means.of[0].mean, 0.5);
    ck_assert_double_eq(means.of[1].mean, 11.5 / 4);
}
END_TEST

START_TEST(columns_are_chosen)
{
    environment_metrics_mean(&metrics, 2, 1, &means);
    ck_assert_double_eq(means.of[0].mean, 1);
    ck_assert_double_eq(means.of[1].mean, 4.25);
    environment_metrics_mean(&metrics, 1, 1, &means);
    ck_assert(isnan(means.of[0].mean) && isnan(means.of[1].mean));
}
END_TEST

START_TEST(cleared_columns_are_forgotten)
{
    environment_metrics_clear(&metrics, 1, 2);
    environment_metrics_mean(&metrics, 0, 4, &means);
    ck_assert_double_eq(means.of[0].mean, 0);
    ck_assert_double_eq(means.of[1].mean, 1.5);
}
END_TEST

/* 2^-53 is lost when it is added to 1; the sum of two is not. */
START_TEST(columns_are_added_in_ascending_order)
{
    environment_metrics_clear(&metrics, 0, 4);
    add(3, 0, 1);
    add(0, 0, 0x1p-53f);
    add(1, 0, 0x1p-53f);
    environment_metrics_mean(&metrics, 0, 4, &means);
    ck_assert_double_eq(means.of[1].mean, (0x1p-53 + 0x1p-53 + 1) / 3);
    ck_assert_double_ne(means.of[1].mean, 1.0 / 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environment_metrics");
    TCase *all = tcase_create("means");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, means_are_over_the_episodes_that_ended);
    tcase_add_test(all, columns_are_chosen);
    tcase_add_test(all, cleared_columns_are_forgotten);
    tcase_add_test(all, columns_are_added_in_ascending_order);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
