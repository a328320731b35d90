/* Returns and the order of rows, against values worked out by hand and by the tutorial's rules. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/returns.h"

#include <check.h>
#include <math.h>

static void expect(const struct rollout *rollout, uint32_t from, const double *wanted, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(fabs((double)rollout->coefficients[from + i] - wanted[i]) < 1e-6,
                      "coefficient %u: %g, not %g", from + i, (double)rollout->coefficients[from + i],
                      wanted[i]);
}

static void expect_order(const struct rollout *rollout, const uint32_t *wanted, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_eq(rollout->order[i], wanted[i]);
}

START_TEST(rows_are_ordered_by_environment_then_step)
{
    struct rollout *rollout = rollout_make(2, 3);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 1}, 2);
    rollout_fill(rollout, 1, (const uint8_t[]){0, 0, 1}, 3);
    struct returns_config config = {.gamma = 1, .scale = 1};
    ck_assert_uint_eq(returns_coefficients(rollout, &config), 5);
    expect_order(rollout, (const uint32_t[]){0, 2, 1, 3, 5}, 5);
    ck_assert_uint_eq(rollout_rows(rollout), 5);
    rollout_free(rollout);
}
END_TEST

START_TEST(returns_are_discounted_and_end_with_a_segment)
{
    struct rollout *rollout = rollout_make(1, 5);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 1, 0, 0}, 5);
    struct returns_config config = {.gamma = 0.5, .scale = 1};
    returns_coefficients(rollout, &config);
    expect(rollout, 0, (const double[]){1.75, 1.5, 1, 1.5, 1}, 5);
    rollout_free(rollout);
}
END_TEST

START_TEST(one_environment_does_not_leak_into_the_next)
{
    struct rollout *rollout = rollout_make(2, 2);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0}, 2);
    rollout_fill(rollout, 1, (const uint8_t[]){0, 0}, 2);
    struct returns_config config = {.gamma = 1, .scale = 0.5};
    returns_coefficients(rollout, &config);
    expect(rollout, 0, (const double[]){1, 0.5, 1, 0.5}, 4);
    rollout_free(rollout);
}
END_TEST

/* Returns 3, 2, 1: mean 2, unbiased deviation 1, to which the tutorial adds float32's epsilon. */
START_TEST(normalizing_uses_the_unbiased_deviation)
{
    struct rollout *rollout = rollout_make(1, 3);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 1}, 3);
    struct returns_config config = {.gamma = 1, .normalize = true, .scale = 1};
    returns_coefficients(rollout, &config);
    expect(rollout, 0, (const double[]){1, 0, -1}, 3);
    rollout_free(rollout);
}
END_TEST

START_TEST(a_single_row_has_no_deviation_and_counts_nothing)
{
    struct rollout *rollout = rollout_make(1, 3);
    rollout_fill(rollout, 0, (const uint8_t[]){1}, 1);
    struct returns_config config = {.gamma = 1, .normalize = true, .scale = 1};
    ck_assert_uint_eq(returns_coefficients(rollout, &config), 1);
    ck_assert(rollout->coefficients[0] == 0);
    rollout_free(rollout);
}
END_TEST

/* Segments of 2, 2 and 1 rows; the environment failed in the second. */
START_TEST(a_segment_that_failed_is_not_learned_from)
{
    struct rollout *rollout = rollout_make(1, 5);
    rollout_fill(rollout, 0, (const uint8_t[]){0, ENVIRONMENT_TERMINATED, 0, ENVIRONMENT_FAILED, 0}, 5);
    struct returns_config config = {.gamma = 1, .scale = 1};
    ck_assert_uint_eq(returns_coefficients(rollout, &config), 3);
    expect(rollout, 0, (const double[]){2, 1, 1}, 3);
    expect_order(rollout, (const uint32_t[]){0, 1, 4}, 3);
    rollout_free(rollout);
}
END_TEST

/* Of two agents the second one ends at step 0, and the environment at step 2. */
START_TEST(an_absent_agent_is_not_learned_from)
{
    enum { ENDS = ENVIRONMENT_TERMINATED, GONE = ENVIRONMENT_ABSENT };
    const struct rollout_config config = {
        .environments = 1, .agents = 2, .steps_max = 4, .observation_bytes = 4, .action_bytes = 4};
    const struct returns_config plain = {.gamma = 1, .scale = 1};
    struct rollout *rollout;
    ck_assert_int_eq(rollout_new(&rollout, &config, NULL), STATUS_OK);
    rollout_begin(rollout, 1);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, ENDS, 0}, 4);
    rollout_fill(rollout, 1, (const uint8_t[]){ENDS | GONE, GONE, GONE, 0}, 4);
    ck_assert_uint_eq(returns_coefficients(rollout, &plain), 6);
    expect(rollout, 0, (const double[]){3, 2, 1, 1, 1, 1}, 6);
    expect_order(rollout, (const uint32_t[]){0, 2, 4, 6, 1, 7}, 6);
    rollout_free(rollout);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("returns");
    TCase *returns = tcase_create("returns");
    tcase_add_test(returns, rows_are_ordered_by_environment_then_step);
    tcase_add_test(returns, returns_are_discounted_and_end_with_a_segment);
    tcase_add_test(returns, one_environment_does_not_leak_into_the_next);
    tcase_add_test(returns, normalizing_uses_the_unbiased_deviation);
    tcase_add_test(returns, a_single_row_has_no_deviation_and_counts_nothing);
    tcase_add_test(returns, a_segment_that_failed_is_not_learned_from);
    tcase_add_test(returns, an_absent_agent_is_not_learned_from);
    suite_add_tcase(suite, returns);
    return suite_run(suite);
}
