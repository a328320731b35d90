/* The returns of episodes that span rollouts, against sums by hand. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/episode_returns.h"

#include <stdlib.h>

enum { ENDS = ENVIRONMENT_TERMINATED, CUT = ENVIRONMENT_TRUNCATED, BROKE = ENVIRONMENT_FAILED };

static struct episode_returns returns;
static struct rollout *rollout;

static void setup(void)
{
    rollout = rollout_make(2, 4);
    ck_assert_int_eq(episode_returns_open(&returns, 2, NULL), STATUS_OK);
}

static void teardown(void)
{
    episode_returns_close(&returns);
    rollout_free(rollout);
}

/* Takes a rollout of reward 1 per step in which the columns' steps have these flags. */
static double take(const uint8_t first[4], const uint8_t second[4], bool least, uint64_t ended)
{
    double reward;
    rollout_fill(rollout, 0, first, 4);
    rollout_fill(rollout, 1, second, 4);
    ck_assert_uint_eq(episode_returns_take(&returns, rollout, least, &reward), ended);
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
    episode_returns_forget(&returns, 1, 1);
    ck_assert_double_eq(take((uint8_t[]){0, 0, 0, ENDS}, (uint8_t[]){0, 0, 0, ENDS}, false, 2),
                        (8.0 + 4.0) / 2);
}
END_TEST

START_TEST(bytes_bring_them_back)
{
    static const uint8_t none[4];
    struct episode_returns again, wider;
    const size_t length = episode_returns_bytes(&returns);
    char *bytes = malloc(length);
    take((uint8_t[]){0, ENDS, 0, 0}, none, false, 1);
    episode_returns_write(&returns, bytes);
    ck_assert_int_eq(episode_returns_open(&again, 2, NULL), STATUS_OK);
    ck_assert_int_eq(episode_returns_open(&wider, 3, NULL), STATUS_OK);
    ck_assert_uint_eq(episode_returns_read(&again, bytes, length - 1), 0);
    ck_assert_uint_eq(episode_returns_read(&again, bytes, length), length);
    ck_assert_uint_eq(episode_returns_read(&wider, bytes, length), length);
    ck_assert_double_eq(wider.so_far[1], 4);
    ck_assert_double_eq(wider.so_far[2], 0);
    ck_assert_uint_eq(again.episodes, 1);
    ck_assert_double_eq(again.latest, 2);
    ck_assert_double_eq(again.so_far[0], 2);
    ck_assert_double_eq(again.so_far[1], 4);
    episode_returns_close(&again);
    episode_returns_close(&wider);
    free(bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("episode returns");
    TCase *sums = tcase_create("returns");
    tcase_add_checked_fixture(sums, setup, teardown);
    tcase_add_test(sums, sums_go_on_over_rollouts);
    tcase_add_test(sums, the_least_of_them);
    tcase_add_test(sums, what_failed_counts_for_nothing);
    tcase_add_test(sums, forgotten_columns_begin_anew);
    tcase_add_test(sums, bytes_bring_them_back);
    suite_add_tcase(suite, sums);
    return suite_run(suite);
}
