/* Returns, rewards and the order of rows, against values worked out by hand and by the tutorial's rules. */
#include "test/workplace.h"
#include "worker/reinforce/rollout.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static struct rollout *make(uint32_t environments, uint32_t steps)
{
    struct rollout *rollout;
    ck_assert_int_eq(rollout_new(&rollout, environments, steps, 4, 8, NULL), STATUS_OK);
    rollout_begin(rollout, 1);
    return rollout;
}

/* Gives the environment `steps` rows with reward 1 and the flags `ends` (0: none) after each. */
static void fill(struct rollout *rollout, uint32_t environment, const uint8_t *ends, uint32_t steps)
{
    rollout->lengths[environment] = steps;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t row = rollout_row(rollout, step, environment);
        rollout->rewards[row] = 1;
        rollout->flags[row] = ends[step];
    }
}

static void expect(const struct rollout *rollout, uint32_t from, const double *wanted, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(fabs((double)rollout->coefficients[from + i] - wanted[i]) < 1e-6,
                      "coefficient %u: %g, not %g", from + i, (double)rollout->coefficients[from + i],
                      wanted[i]);
}

START_TEST(rows_are_ordered_by_environment_then_step)
{
    struct rollout *rollout = make(2, 3);
    fill(rollout, 0, (const uint8_t[]){0, 1}, 2);
    fill(rollout, 1, (const uint8_t[]){0, 0, 1}, 3);
    struct rollout_returns returns = {.gamma = 1, .scale = 1};
    ck_assert_uint_eq(rollout_coefficients(rollout, &returns), 5);
    const uint32_t wanted[] = {0, 2, 1, 3, 5};
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(rollout->order[i], wanted[i]);
    ck_assert_uint_eq(rollout_rows(rollout), 5);
    rollout_free(rollout);
}
END_TEST

START_TEST(returns_are_discounted_and_end_with_a_segment)
{
    struct rollout *rollout = make(1, 5);
    fill(rollout, 0, (const uint8_t[]){0, 0, 1, 0, 0}, 5);
    struct rollout_returns returns = {.gamma = 0.5, .scale = 1};
    rollout_coefficients(rollout, &returns);
    expect(rollout, 0, (const double[]){1.75, 1.5, 1, 1.5, 1}, 5);
    rollout_free(rollout);
}
END_TEST

START_TEST(one_environment_does_not_leak_into_the_next)
{
    struct rollout *rollout = make(2, 2);
    fill(rollout, 0, (const uint8_t[]){0, 0}, 2);
    fill(rollout, 1, (const uint8_t[]){0, 0}, 2);
    struct rollout_returns returns = {.gamma = 1, .scale = 0.5};
    rollout_coefficients(rollout, &returns);
    expect(rollout, 0, (const double[]){1, 0.5, 1, 0.5}, 4);
    rollout_free(rollout);
}
END_TEST

/* Returns 3, 2, 1: mean 2, unbiased deviation 1, to which the tutorial adds float32's epsilon. */
START_TEST(normalizing_uses_the_unbiased_deviation)
{
    struct rollout *rollout = make(1, 3);
    fill(rollout, 0, (const uint8_t[]){0, 0, 1}, 3);
    struct rollout_returns returns = {.gamma = 1, .normalize = true, .scale = 1};
    rollout_coefficients(rollout, &returns);
    expect(rollout, 0, (const double[]){1, 0, -1}, 3);
    rollout_free(rollout);
}
END_TEST

START_TEST(a_single_row_has_no_deviation_and_counts_nothing)
{
    struct rollout *rollout = make(1, 3);
    fill(rollout, 0, (const uint8_t[]){1}, 1);
    struct rollout_returns returns = {.gamma = 1, .normalize = true, .scale = 1};
    ck_assert_uint_eq(rollout_coefficients(rollout, &returns), 1);
    ck_assert(rollout->coefficients[0] == 0);
    rollout_free(rollout);
}
END_TEST

START_TEST(rewards_are_those_of_the_first_segment)
{
    struct rollout *rollout = make(3, 5);
    fill(rollout, 0, (const uint8_t[]){0, 0, 1, 0, 0}, 5);
    fill(rollout, 1, (const uint8_t[]){0, 0, 0, 0, 0}, 5);
    fill(rollout, 2, (const uint8_t[]){0, 1, 0, 0, 1}, 5);
    ck_assert_double_eq(rollout_reward_min(rollout), 2);
    ck_assert_double_eq_tol(rollout_reward_mean(rollout), 10.0 / 3, 1e-12);
    rollout_free(rollout);
}
END_TEST

START_TEST(too_many_rows_are_refused_by_name)
{
    struct rollout *rollout;
    struct error error = {0};
    ck_assert_int_eq(rollout_new(&rollout, 16384, 100000, 4, 8, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "1638400000"));
    ck_assert_int_eq(rollout_new(&rollout, 0, 10, 4, 8, &error), STATUS_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rollout");
    TCase *returns = tcase_create("returns");
    tcase_add_test(returns, rows_are_ordered_by_environment_then_step);
    tcase_add_test(returns, returns_are_discounted_and_end_with_a_segment);
    tcase_add_test(returns, one_environment_does_not_leak_into_the_next);
    tcase_add_test(returns, normalizing_uses_the_unbiased_deviation);
    tcase_add_test(returns, a_single_row_has_no_deviation_and_counts_nothing);
    tcase_add_test(returns, rewards_are_those_of_the_first_segment);
    tcase_add_test(returns, too_many_rows_are_refused_by_name);
    suite_add_tcase(suite, returns);
    return suite_run(suite);
}
