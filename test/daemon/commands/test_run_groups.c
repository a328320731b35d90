/* Groups of runs that differ in /seed alone, their labels, and the median and band over a group. */
#include "daemon/commands/curve_band.h"
#include "daemon/commands/run_groups.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { RUNS_MAX = 8 };

static struct run_groups groups;
static struct error error;

static void make(const char *const *jobs, size_t count)
{
    static const char *const names[RUNS_MAX] = {"r/0", "r/1", "r/2", "r/3", "r/4", "r/5", "r/6", "r/7"};
    const enum status status = run_groups_make(&groups, jobs, names, count, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

START_TEST(seeds_are_one_group)
{
    static const char *const jobs[] = {"{\"name\":\"a\",\"seed\":1,\"optimizer\":{\"lr\":0.001}}",
                                       "{\"name\":\"a\",\"seed\":1,\"optimizer\":{\"lr\":0.01}}",
                                       "{\"name\":\"a\",\"seed\":2,\"optimizer\":{\"lr\":0.001}}",
                                       "{\"name\":\"a\",\"seed\":3,\"optimizer\":{\"lr\":0.001}}"};
    make(jobs, 4);
    ck_assert_uint_eq(groups.count, 2);
    ck_assert_str_eq(groups.groups[0].label, "lr 0.001, 3 seeds");
    ck_assert_str_eq(groups.groups[1].label, "lr 0.01");
    ck_assert(groups.groups[1].first == 1 && groups.group_of[3] == 0);
    run_groups_fini(&groups);
}
END_TEST

START_TEST(labels)
{
    static const struct {
        const char *jobs[3];
        const char *labels[2];
    } cases[] = {
        {{"{\"seed\":1}", "{\"seed\":2}"}, {"r/0, 2 seeds"}},
        {{"{\"seed\":1}", "{\"seed\":1}"}, {"r/0, 2 runs"}},
        {{"{\"seed\":1}"}, {"r/0"}},
        {{"{\"a\":{\"count\":1},\"b\":{\"count\":2}}", "{\"a\":{\"count\":2},\"b\":{\"count\":1}}"},
         {"/a/count 1, /b/count 2", "/a/count 2, /b/count 1"}},
        {{"{\"model\":{\"hidden\":[64,64],\"name\":\"x\"}}", "{\"model\":{\"hidden\":32,\"name\":\"y\"}}"},
         {"hidden [64,64], name x", "hidden 32, name y"}},
        {{"{\"kind\":\"k\",\"clip\":0.2}", "{\"kind\":\"k\"}"}, {"clip 0.2", "r/1"}},
        {{"{\"b\":1,\"c\":2}", "{\"c\":2,\"b\":1}"}, {"r/0", "r/1"}},
        {{"{\"t\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"u\":"
          "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\","
          "\"v\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
          "{\"t\":1,\"u\":2,\"v\":3}"},
         {"r/0", "t 1, u 2, v 3"}},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t count = 0;
        while (count < 3 && cases[i].jobs[count] != NULL)
            count++;
        make(cases[i].jobs, count);
        for (size_t g = 0; g < groups.count; g++)
            ck_assert_str_eq(groups.groups[g].label, cases[i].labels[g]);
        run_groups_fini(&groups);
    }
}
END_TEST

START_TEST(a_text_that_is_no_job)
{
    static const char *const jobs[] = {"{\"a\":"}, *const names[] = {"r"};
    ck_assert_int_eq(run_groups_make(&groups, jobs, names, 1, &error), STATUS_INVALID);
    run_groups_fini(&groups);
}
END_TEST

START_TEST(medians)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, one[] = {7};
    ck_assert(median_of(odd, 3) == 2 && median_of(even, 4) == 2.5 && median_of(one, 1) == 7);
}
END_TEST

/* y = slope * x at each x of 1..last */
static void fill(struct curve *curve, double slope, unsigned last)
{
    curve_init(curve, (struct curve_keys){"episode", "reward"});
    for (unsigned x = 1; x <= last; x++) {
        char line[96];
        snprintf(line, sizeof line, "{\"episode\":%u,\"reward\":%.17g,\"timing\":{}}", x, slope * x);
        ck_assert_int_eq(curve_take(curve, line, &error), STATUS_OK);
    }
}

/* Four curves, of which one reaches 100, one 60, and two 50. */
START_TEST(a_band_ends_with_half_of_its_curves)
{
    struct curve curves[4];
    const struct curve *of[] = {&curves[0], &curves[1], &curves[2], &curves[3]};
    struct band_point points[BAND_POINTS];
    double scratch[4];
    fill(&curves[0], 1, 100);
    fill(&curves[1], 2, 50);
    fill(&curves[2], 3, 60);
    fill(&curves[3], 10, 50);
    const size_t count = curve_band(points, of, 4, scratch);
    ck_assert_uint_gt(count, 250);
    ck_assert_uint_lt(count, BAND_POINTS);
    for (size_t i = 0; i < count; i++) {
        const double x = points[i].x;
        ck_assert(x >= 1 && x <= 60);
        ck_assert_double_eq_tol(points[i].low, x, 1e-9);
        ck_assert_double_eq_tol(points[i].high, x <= 50 ? 10 * x : 3 * x, 1e-9);
        ck_assert_double_eq_tol(points[i].median, x <= 50 ? 2.5 * x : 2 * x, 1e-9);
    }
    ck_assert_double_gt(points[count - 1].x, 59.7);
    for (unsigned i = 0; i < 4; i++)
        curve_fini(&curves[i]);
}
END_TEST

START_TEST(a_band_of_one_point)
{
    struct curve curve;
    const struct curve *of[] = {&curve};
    struct band_point points[BAND_POINTS];
    double scratch[1];
    fill(&curve, 3, 1);
    ck_assert_uint_eq(curve_band(points, of, 1, scratch), 1);
    ck_assert(points[0].x == 1 && points[0].median == 3);
    curve_fini(&curve);
    ck_assert_uint_eq(curve_band(points, of, 1, scratch), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_groups");
    TCase *tcase = tcase_create("run_groups");
    tcase_add_test(tcase, seeds_are_one_group);
    tcase_add_test(tcase, labels);
    tcase_add_test(tcase, a_text_that_is_no_job);
    tcase_add_test(tcase, medians);
    tcase_add_test(tcase, a_band_ends_with_half_of_its_curves);
    tcase_add_test(tcase, a_band_of_one_point);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
