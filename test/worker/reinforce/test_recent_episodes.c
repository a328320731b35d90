/* The last episodes: over rollouts, in the order of their ends, and through a checkpoint's bytes. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/recent_episodes.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static void expect_means(const struct recent_episodes *recent, double reward, double length)
{
    double got[2];
    recent_episodes_mean(recent, &got[0], &got[1]);
    ck_assert_double_eq_tol(got[0], reward, 1e-9);
    ck_assert_double_eq_tol(got[1], length, 1e-9);
}

START_TEST(an_episode_spans_rollouts)
{
    struct rollout *rollout = rollout_make(2, 3);
    struct recent_episodes recent;
    double nothing[2];
    ck_assert_int_eq(recent_episodes_open(&recent, 2, 100, NULL), STATUS_OK);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 0}, 3);
    rollout_fill(rollout, 1, (const uint8_t[]){0, ENVIRONMENT_FAILED, 0}, 3);
    recent_episodes_take(&recent, rollout);
    recent_episodes_mean(&recent, &nothing[0], &nothing[1]);
    ck_assert(isnan(nothing[0]) && isnan(nothing[1]) && recent.ended == 0);
    rollout_fill(rollout, 0, (const uint8_t[]){0, ENVIRONMENT_TERMINATED, 0}, 3);
    rollout_fill(rollout, 1, (const uint8_t[]){ENVIRONMENT_TRUNCATED, 0, 0}, 3);
    rollout->rewards[rollout_row(rollout, 0, 1)] = 5;
    recent_episodes_take(&recent, rollout);
    ck_assert_uint_eq(recent.ended, 2);
    expect_means(&recent, (5 + 6) / 2.0, (5 + 2) / 2.0);
    recent_episodes_forget(&recent, 0, 2);
    rollout_fill(rollout, 0, (const uint8_t[]){ENVIRONMENT_TERMINATED, 0, 0}, 3);
    recent_episodes_take(&recent, rollout);
    expect_means(&recent, (5 + 6 + 1 + 5) / 4.0, (5 + 2 + 1 + 1) / 4.0); /* column 1 has ended once more */
    recent_episodes_close(&recent);
    rollout_free(rollout);
}
END_TEST

enum { WINDOW = 100 };

START_TEST(a_window_is_kept)
{
    struct rollout *rollout = rollout_make(1, 1);
    struct recent_episodes recent, again;
    ck_assert_int_eq(recent_episodes_open(&recent, 1, WINDOW, NULL), STATUS_OK);
    rollout_fill(rollout, 0, (const uint8_t[]){ENVIRONMENT_TERMINATED}, 1);
    for (int i = 0; i < 250; i++) {
        rollout->rewards[0] = (float)i;
        recent_episodes_take(&recent, rollout);
    }
    expect_means(&recent, 199.5, 1);
    const size_t length = recent_episodes_bytes(&recent);
    char *bytes = malloc(length);
    recent_episodes_write(&recent, bytes);
    ck_assert_int_eq(recent_episodes_open(&again, 2, WINDOW, NULL), STATUS_OK);
    ck_assert_uint_eq(recent_episodes_read(&again, bytes, length - 1), 0);
    ck_assert_uint_eq(recent_episodes_read(&again, bytes, length), length);
    expect_means(&again, 199.5, 1);
    recent_episodes_close(&again);
    ck_assert_int_eq(recent_episodes_open(&again, 1, WINDOW - 1, NULL), STATUS_OK);
    ck_assert_uint_eq(recent_episodes_read(&again, bytes, length), 0);
    recent_episodes_close(&again);
    ck_assert_int_eq(recent_episodes_open(&again, 1, WINDOW, NULL), STATUS_OK);
    ck_assert_uint_eq(recent_episodes_read(&again, bytes, length), length);
    recent_episodes_take(&again, rollout);
    recent_episodes_take(&recent, rollout);
    expect_means(&again, (199.5 * 100 - 150 + 249) / 100, 1);
    ck_assert_uint_eq(again.ended, 251);
    free(bytes);
    recent_episodes_close(&again);
    recent_episodes_close(&recent);
    rollout_free(rollout);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recent_episodes");
    TCase *core = tcase_create("core");
    tcase_add_test(core, an_episode_spans_rollouts);
    tcase_add_test(core, a_window_is_kept);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
