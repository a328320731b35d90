/* A rollout's rewards, against values worked out by hand, and the limit of its rows. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"

#include <check.h>
#include <string.h>

START_TEST(rewards_are_those_of_the_first_segment)
{
    struct rollout *rollout = rollout_make(3, 5);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 1, 0, 0}, 5);
    rollout_fill(rollout, 1, (const uint8_t[]){0, 0, 0, 0, 0}, 5);
    rollout_fill(rollout, 2, (const uint8_t[]){0, 1, 0, 0, 1}, 5);
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
    TCase *rollout = tcase_create("rollout");
    tcase_add_test(rollout, rewards_are_those_of_the_first_segment);
    tcase_add_test(rollout, too_many_rows_are_refused_by_name);
    suite_add_tcase(suite, rollout);
    return suite_run(suite);
}
