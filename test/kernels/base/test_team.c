/* Teams: every piece is computed once and before team_run returns, for any number of threads and rounds. */
#include "kernels/base/team.h"
#include "test/workplace.h"

#include <check.h>
#include <stdatomic.h>
#include <time.h>

enum { PIECES_MAX = 300 };

struct counts {
    uint32_t times[PIECES_MAX]; // not atomic: the thread sanitizer sees a piece that two threads have
};

static struct team *open_team(uint32_t threads)
{
    struct team *team = NULL;
    struct error error = {0};
    ck_assert_msg(team_new(&team, threads, &error) == STATUS_OK, "%s", error.text);
    return team;
}

static void count(void *context, uint32_t piece)
{
    struct counts *counts = context;
    counts->times[piece]++;
}

START_TEST(every_piece_is_computed_once_in_every_round)
{
    static const uint32_t threads[] = {1, 2, 3, 7};
    static const uint32_t pieces[] = {0, 1, 2, PIECES_MAX};
    struct team *team = open_team(threads[_i]);
    struct counts counts = {0};
    uint32_t expected[PIECES_MAX] = {0};
    for (uint32_t round = 0; round < 400; round++) {
        const uint32_t n = pieces[round % 4];
        team_run(team, n, count, &counts);
        for (uint32_t piece = 0; piece < n; piece++)
            expected[piece]++;
        ck_assert_mem_eq(counts.times, expected, sizeof expected);
    }
    team_free(team);
}
END_TEST

/* Longer than the threads spin, so that each round has to wake them. */
START_TEST(threads_that_sleep_are_woken)
{
    struct team *team = open_team(3);
    struct counts counts = {0};
    for (uint32_t round = 1; round <= 20; round++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        team_run(team, PIECES_MAX, count, &counts);
        for (uint32_t piece = 0; piece < PIECES_MAX; piece++)
            ck_assert_uint_eq(counts.times[piece], round);
    }
    team_free(team);
}
END_TEST

/* Returns when every piece has begun: fewer threads than pieces would wait forever. */
static void meet(void *context, uint32_t piece)
{
    atomic_uint *begun = context;
    (void)piece;
    atomic_fetch_add(begun, 1);
    while (atomic_load(begun) < 4)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

START_TEST(all_threads_compute_at_the_same_time)
{
    struct team *team = open_team(4);
    atomic_uint begun = 0;
    team_run(team, 4, meet, &begun);
    ck_assert_uint_eq(atomic_load(&begun), 4);
    team_free(team);
}
END_TEST

START_TEST(a_team_without_work_ends)
{
    team_free(open_team(3));
    team_free(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("team");
    TCase *cases = tcase_create("team");
    tcase_add_loop_test(cases, every_piece_is_computed_once_in_every_round, 0, 4);
    tcase_add_test(cases, threads_that_sleep_are_woken);
    tcase_add_test(cases, all_threads_compute_at_the_same_time);
    tcase_add_test(cases, a_team_without_work_ends);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
