/* What episodes come to: the means of metrics, in a fixed order; returns over rollouts, against sums by hand;
 * the window of recent episodes, in the order of their ends. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/episodes.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { ENDS = ENVIRONMENT_TERMINATED, CUT = ENVIRONMENT_TRUNCATED, BROKE = ENVIRONMENT_FAILED };

/* ---- metrics ---- */

static const char *const names[] = {"is_success", "distance"};
static struct episode_metrics metrics;
static struct control_metrics means;

static void add(uint32_t column, float success, float distance)
{
    const float values[2] = {success, distance};
    char bytes[1 + sizeof values]; /* at an odd address */
    memcpy(bytes + 1, values, sizeof values);
    episode_metrics_add(&metrics, column, (const void *)(bytes + 1));
}

static void setup_metrics(void)
{
    const struct environment_spec spec = {.metric_count = 2, .metrics = names};
    struct error error;
    ck_assert_int_eq(episode_metrics_open(&metrics, &spec, 4, &error), STATUS_OK);
    add(2, 1, 8);
    add(0, 0, 2);
    add(2, 1, 0.5f);
    add(3, 0, 1);
}

static void teardown_metrics(void)
{
    episode_metrics_close(&metrics);
}

START_TEST(means_are_over_the_episodes_that_ended)
{
    episode_metrics_mean(&metrics, 0, 4, &means);
    ck_assert_uint_eq(means.count, 2);
    ck_assert_str_eq(means.of[0].name, "is_success");
    ck_assert_str_eq(means.of[1].name, "distance");
    ck_assert_double_eq(means.of[0].mean, 0.5);
    ck_assert_double_eq(means.of[1].mean, 11.5 / 4);
}
END_TEST

START_TEST(columns_are_chosen)
{
    episode_metrics_mean(&metrics, 2, 1, &means);
    ck_assert_double_eq(means.of[0].mean, 1);
    ck_assert_double_eq(means.of[1].mean, 4.25);
    episode_metrics_mean(&metrics, 1, 1, &means);
    ck_assert(isnan(means.of[0].mean) && isnan(means.of[1].mean));
}
END_TEST

START_TEST(cleared_columns_are_forgotten)
{
    episode_metrics_clear(&metrics, 1, 2);
    episode_metrics_mean(&metrics, 0, 4, &means);
    ck_assert_double_eq(means.of[0].mean, 0);
    ck_assert_double_eq(means.of[1].mean, 1.5);
}
END_TEST

/* 2^-53 is lost when it is added to 1; the sum of two is not. */
START_TEST(columns_are_added_in_ascending_order)
{
    episode_metrics_clear(&metrics, 0, 4);
    add(3, 0, 1);
    add(0, 0, 0x1p-53f);
    add(1, 0, 0x1p-53f);
    episode_metrics_mean(&metrics, 0, 4, &means);
    ck_assert_double_eq(means.of[1].mean, (0x1p-53 + 0x1p-53 + 1) / 3);
    ck_assert_double_ne(means.of[1].mean, 1.0 / 3);
}
END_TEST

/* ---- returns ---- */

static struct episodes returns;
static struct rollout *two;

static void setup_returns(void)
{
    two = rollout_make(2, 4);
    ck_assert_int_eq(episodes_open(&returns, 2, 0, NULL), STATUS_OK);
}

static void teardown_returns(void)
{
    episodes_close(&returns);
    rollout_free(two);
}

/* Takes a rollout of reward 1 per step in which the columns' steps have these flags. */
static double take(const uint8_t first[4], const uint8_t second[4], bool least, uint64_t ended)
{
    double reward;
    rollout_fill(two, 0, first, 4);
    rollout_fill(two, 1, second, 4);
    ck_assert_uint_eq(episodes_take(&returns, two, least, &reward), ended);
    return reward;
}

START_TEST(sums_go_on_over_rollouts)
{
    static const uint8_t none[4];
    ck_assert_double_eq(take(none, none, false, 0), 4);
    ck_assert_double_eq(take((uint8_t[]){0, ENDS, 0, 0}, none, false, 1), 6);
    ck_assert_double_eq(take(none, none, false, 0), 6); /* the latest */
    ck_assert_double_eq(take((uint8_t[]){CUT, 0, ENDS, 0}, (uint8_t[]){0, 0, 0, ENDS}, false, 3),
                        (7.0 + 2.0 + 16.0) / 3);
}
END_TEST

START_TEST(the_least_of_them)
{
    ck_assert_double_eq(take((uint8_t[]){0, 0, ENDS, 0}, (uint8_t[]){0, ENDS, 0, CUT}, true, 3), 2);
}
END_TEST

START_TEST(what_failed_counts_for_nothing)
{
    ck_assert_double_eq(take((uint8_t[]){0, BROKE, 0, ENDS}, (uint8_t[]){0, 0, 0, BROKE}, false, 1), 2);
}
END_TEST

START_TEST(forgotten_columns_begin_anew)
{
    static const uint8_t none[4];
    take(none, none, false, 0);
    episodes_forget(&returns, 1, 1);
    ck_assert_double_eq(take((uint8_t[]){0, 0, 0, ENDS}, (uint8_t[]){0, 0, 0, ENDS}, false, 2),
                        (8.0 + 4.0) / 2);
}
END_TEST

START_TEST(bytes_bring_them_back)
{
    static const uint8_t none[4];
    struct episodes again, wider;
    const size_t length = episodes_save(&returns, NULL);
    char *bytes = malloc(length);
    take((uint8_t[]){0, ENDS, 0, 0}, none, false, 1);
    episodes_save(&returns, bytes);
    ck_assert_int_eq(episodes_open(&again, 2, 0, NULL), STATUS_OK);
    ck_assert_int_eq(episodes_open(&wider, 3, 0, NULL), STATUS_OK);
    ck_assert_uint_eq(episodes_load(&again, bytes, length - 1), 0);
    ck_assert_uint_eq(episodes_load(&again, bytes, length), length);
    ck_assert_uint_eq(episodes_load(&wider, bytes, length), length);
    ck_assert_double_eq(wider.so_far[1].reward, 4);
    ck_assert_double_eq(wider.so_far[2].reward, 0);
    ck_assert_uint_eq(again.ended, 1);
    ck_assert_double_eq(again.latest, 2);
    ck_assert_double_eq(again.so_far[0].reward, 2);
    ck_assert_double_eq(again.so_far[1].reward, 4);
    episodes_close(&again);
    episodes_close(&wider);
    free(bytes);
}
END_TEST

/* ---- recent episodes ---- */

static void expect_means(const struct episodes *recent, double reward, double length)
{
    double got[2];
    episodes_mean(recent, &got[0], &got[1]);
    ck_assert_double_eq_tol(got[0], reward, 1e-9);
    ck_assert_double_eq_tol(got[1], length, 1e-9);
}

START_TEST(an_episode_spans_rollouts)
{
    struct rollout *rollout = rollout_make(2, 3);
    struct episodes recent;
    double nothing[2], reward;
    ck_assert_int_eq(episodes_open(&recent, 2, 100, NULL), STATUS_OK);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 0}, 3);
    rollout_fill(rollout, 1, (const uint8_t[]){0, ENVIRONMENT_FAILED, 0}, 3);
    episodes_take(&recent, rollout, false, &reward);
    episodes_mean(&recent, &nothing[0], &nothing[1]);
    ck_assert(isnan(nothing[0]) && isnan(nothing[1]) && recent.ended == 0);
    rollout_fill(rollout, 0, (const uint8_t[]){0, ENVIRONMENT_TERMINATED, 0}, 3);
    rollout_fill(rollout, 1, (const uint8_t[]){ENVIRONMENT_TRUNCATED, 0, 0}, 3);
    rollout->rewards[rollout_row(rollout, 0, 1)] = 5;
    episodes_take(&recent, rollout, false, &reward);
    ck_assert_uint_eq(recent.ended, 2);
    expect_means(&recent, (5 + 6) / 2.0, (5 + 2) / 2.0);
    episodes_forget(&recent, 0, 2);
    rollout_fill(rollout, 0, (const uint8_t[]){ENVIRONMENT_TERMINATED, 0, 0}, 3);
    episodes_take(&recent, rollout, false, &reward);
    expect_means(&recent, (5 + 6 + 1 + 5) / 4.0, (5 + 2 + 1 + 1) / 4.0); /* column 1 has ended once more */
    episodes_close(&recent);
    rollout_free(rollout);
}
END_TEST

enum { WINDOW = 100 };

START_TEST(a_window_is_kept)
{
    struct rollout *rollout = rollout_make(1, 1);
    struct episodes recent, again;
    double reward;
    ck_assert_int_eq(episodes_open(&recent, 1, WINDOW, NULL), STATUS_OK);
    rollout_fill(rollout, 0, (const uint8_t[]){ENVIRONMENT_TERMINATED}, 1);
    for (int i = 0; i < 250; i++) {
        rollout->rewards[0] = (float)i;
        episodes_take(&recent, rollout, false, &reward);
    }
    expect_means(&recent, 199.5, 1);
    const size_t length = episodes_save_window(&recent, NULL);
    char *bytes = malloc(length);
    episodes_save_window(&recent, bytes);
    ck_assert_int_eq(episodes_open(&again, 2, WINDOW, NULL), STATUS_OK);
    ck_assert_uint_eq(episodes_load_window(&again, bytes, length - 1), 0);
    ck_assert_uint_eq(episodes_load_window(&again, bytes, length), length);
    expect_means(&again, 199.5, 1);
    episodes_close(&again);
    ck_assert_int_eq(episodes_open(&again, 1, WINDOW - 1, NULL), STATUS_OK);
    ck_assert_uint_eq(episodes_load_window(&again, bytes, length), 0);
    episodes_close(&again);
    ck_assert_int_eq(episodes_open(&again, 1, WINDOW, NULL), STATUS_OK);
    ck_assert_uint_eq(episodes_load_window(&again, bytes, length), length);
    episodes_take(&again, rollout, false, &reward);
    episodes_take(&recent, rollout, false, &reward);
    expect_means(&again, (199.5 * 100 - 150 + 249) / 100, 1);
    ck_assert_uint_eq(again.ended, 251);
    free(bytes);
    episodes_close(&again);
    episodes_close(&recent);
    rollout_free(rollout);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("episodes");
    TCase *metric_means = tcase_create("metrics"), *sums = tcase_create("returns"),
          *recent = tcase_create("recent");
    tcase_add_checked_fixture(metric_means, setup_metrics, teardown_metrics);
    tcase_add_test(metric_means, means_are_over_the_episodes_that_ended);
    tcase_add_test(metric_means, columns_are_chosen);
    tcase_add_test(metric_means, cleared_columns_are_forgotten);
    tcase_add_test(metric_means, columns_are_added_in_ascending_order);
    suite_add_tcase(suite, metric_means);
    tcase_add_checked_fixture(sums, setup_returns, teardown_returns);
    tcase_add_test(sums, sums_go_on_over_rollouts);
    tcase_add_test(sums, the_least_of_them);
    tcase_add_test(sums, what_failed_counts_for_nothing);
    tcase_add_test(sums, forgotten_columns_begin_anew);
    tcase_add_test(sums, bytes_bring_them_back);
    suite_add_tcase(suite, sums);
    tcase_add_test(recent, an_episode_spans_rollouts);
    tcase_add_test(recent, a_window_is_kept);
    suite_add_tcase(suite, recent);
    return suite_run(suite);
}
