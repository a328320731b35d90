/* Rates at the begin, within, at and behind a job's steps. */
#include "test/workplace.h"
#include "worker/reinforce/schedules.h"

#include <check.h>

static struct job job = {.stop.steps = 1000,
                         .optimizer.lr = 0.5,
                         .algorithm = {.name = JOB_ALGORITHM_DQN, .clip_range = 0.25},
                         .replay = {.exploration_initial_eps = 1,
                                    .exploration_final_eps = 0.5,
                                    .exploration_fraction = 0.5,
                                    .beta = 0.5}};

START_TEST(a_constant_rate_stays)
{
    ck_assert_double_eq(schedules_learning_rate(&job, 0), 0.5);
    ck_assert_double_eq(schedules_learning_rate(&job, 750), 0.5);
    ck_assert_double_eq(schedules_clip_range(&job, 2000), 0.25);
}
END_TEST

START_TEST(a_linear_rate_falls_to_nothing)
{
    struct job linear = job;
    linear.algorithm.learning_rate_schedule = linear.algorithm.clip_range_schedule = JOB_SCHEDULE_LINEAR;
    ck_assert_double_eq(schedules_learning_rate(&linear, 0), 0.5);
    ck_assert_double_eq(schedules_learning_rate(&linear, 750), 0.125);
    ck_assert_double_eq(schedules_clip_range(&linear, 500), 0.125);
    ck_assert_double_eq(schedules_learning_rate(&linear, 1000), 0);
    ck_assert_double_eq(schedules_clip_range(&linear, 2000), 0);
}
END_TEST

START_TEST(exploration_falls_within_its_share_of_the_steps)
{
    ck_assert_double_eq(schedules_exploration_rate(&job, 0), 1);
    ck_assert_double_eq(schedules_exploration_rate(&job, 250), 0.75);
    ck_assert_double_eq(schedules_exploration_rate(&job, 500), 0.5);
    ck_assert_double_eq(schedules_exploration_rate(&job, 2000), 0.5);
    struct job other = job;
    other.algorithm.name = JOB_ALGORITHM_SAC;
    ck_assert_double_eq(schedules_exploration_rate(&other, 0), 0);
}
END_TEST

START_TEST(beta_rises_to_one)
{
    ck_assert_double_eq(schedules_beta(&job, 0), 0.5);
    ck_assert_double_eq(schedules_beta(&job, 500), 0.75);
    ck_assert_double_eq(schedules_beta(&job, 3000), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedules");
    TCase *tests = tcase_create("schedules");
    tcase_add_test(tests, a_constant_rate_stays);
    tcase_add_test(tests, a_linear_rate_falls_to_nothing);
    tcase_add_test(tests, exploration_falls_within_its_share_of_the_steps);
    tcase_add_test(tests, beta_rises_to_one);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
