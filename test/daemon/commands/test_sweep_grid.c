/* The runs of a sweep and their names, and the median stopping rule. */
#include "daemon/commands/sweep_grid.h"
#include "daemon/commands/sweep_rule.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sweep_grid grid;
static struct error error;

static enum status read_overs(const char *a, const char *b)
{
    const char *const overs[] = {a, b};
    return sweep_grid_read(&grid, overs, b != NULL ? 2 : 1, &error);
}

static void named(size_t run, const char *expected)
{
    char name[SWEEP_NAME_BYTES];
    sweep_grid_name(&grid, run, name);
    ck_assert_str_eq(name, expected);
}

START_TEST(the_product_of_all_values)
{
    ck_assert_msg(read_overs("/optimizer/lr=0.001,1e-2", "/seed=-1..1") == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(grid.runs, 6);
    named(0, "lr=0.001,seed=-1");
    named(1, "lr=0.001,seed=0");
    named(2, "lr=0.001,seed=1");
    named(5, "lr=1e-2,seed=1");
    char *override = sweep_grid_override(&grid, 5, 0);
    ck_assert_str_eq(override, "/optimizer/lr=1e-2");
    ck_assert_str_eq(sweep_grid_value(&grid, 4, 1), "0");
    free(override);
    sweep_grid_fini(&grid);
}
END_TEST

START_TEST(values_are_json)
{
    ck_assert_msg(read_overs("/policy/hidden=[64,64],32,\"a,\\\"b\",{\"c\":[1,2]},null",
                             "/algorithm={\"name\":\"ppo\",\"n_epochs\":4}") == STATUS_OK,
                  "%s", error.text);
    ck_assert_uint_eq(grid.runs, 5);
    ck_assert_str_eq(sweep_grid_value(&grid, 0, 0), "[64,64]");
    ck_assert_str_eq(sweep_grid_value(&grid, 2, 0), "\"a,\\\"b\"");
    named(0, "hidden=64+64,algorithm=name_ppo+n_epochs_4");
    named(2, "hidden=a+_b,algorithm=name_ppo+n_epochs_4");
    sweep_grid_fini(&grid);
}
END_TEST

START_TEST(pointers_that_end_alike)
{
    ck_assert_int_eq(read_overs("/observers/count=1..3,8", "/server/count=1"), STATUS_OK);
    ck_assert_uint_eq(grid.runs, 4);
    named(3, "observers.count=8,server.count=1");
    sweep_grid_fini(&grid);
}
END_TEST

/* A text that is almost a range is a value. */
START_TEST(ranges)
{
    ck_assert_int_eq(read_overs("/a=1..,..2,1...3,1..2x,7..7", NULL), STATUS_OK);
    ck_assert_uint_eq(grid.runs, 5);
    ck_assert_str_eq(sweep_grid_value(&grid, 4, 0), "7");
    sweep_grid_fini(&grid);
}
END_TEST

START_TEST(what_is_wrong_is_named)
{
    static const struct {
        const char *a, *b, *words;
    } cases[] = {
        {"seed=1", NULL, "--over seed=1: expected /POINTER=VALUES"},
        {"/seed", NULL, "expected /POINTER=VALUES"},
        {"/seed=", NULL, "--over /seed: a value is empty"},
        {"/seed=1,,2", NULL, "--over /seed: a value is empty"},
        {"/seed=1,", NULL, "--over /seed: a value is empty"},
        {"/seed=5..1", NULL, "--over /seed: 5..1 has no value"},
        {"/seed=1..3,2", NULL, "--over /seed: the value 2 is given twice"},
        {"/seed=1", "/seed=2", "--over /seed is given twice"},
        {"/seed=1..5000", NULL, "--over /seed: expected at most 4096 values"},
        {"/seed=1..100", "/a=1..100", "the product has more than 4096 runs"},
        {"/name=a b,a_b", NULL, "one name with a b and with a_b"},
        {"/name=\"a\",a", NULL, "one name with \"a\" and with a"},
    };
    char long_value[300] = "/name=";
    memset(long_value + 6, 'x', sizeof long_value - 7);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_int_eq(read_overs(cases[i].a, cases[i].b), STATUS_INVALID);
        ck_assert_msg(strstr(error.text, cases[i].words) != NULL, "%s", error.text);
        sweep_grid_fini(&grid);
    }
    ck_assert_int_eq(read_overs(long_value, NULL), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "has 298 bytes: expected at most 200"));
    sweep_grid_fini(&grid);
}
END_TEST

/* ---- the rule ---- */

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

/* The peers' means up to x = 10 are 5.5 * slope; the median of 1, 2 and 4 is 11. */
START_TEST(the_rule)
{
    struct curve curves[4];
    const struct {
        double slope;
        unsigned last;
        uint64_t grace;
        bool less, stops;
    } cases[] = {{1.0, 10, 5, false, true},  {1.2, 10, 5, false, false}, {1.0, 10, 11, false, false},
                 {1.0, 10, 10, false, true}, {12, 10, 5, true, true},    {1.0, 10, 5, true, false},
                 {-5, 30, 5, false, false},  {-5, 20, 5, false, true},   {1.0, 0, 0, false, false}};
    for (unsigned i = 0; i < 3; i++)
        fill(&curves[i], 1 << i, 20 + i);
    const struct sweep_peer peers[] = {{&curves[0], false}, {&curves[1], false}, {&curves[2], false}};
    double scratch[3];
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fill(&curves[3], cases[i].slope, cases[i].last);
        const bool stops = sweep_rule_stops(&curves[3], cases[i].grace, peers, 3, cases[i].less, scratch);
        ck_assert_msg(stops == cases[i].stops, "case %u", i);
        curve_fini(&curves[3]);
    }
    for (unsigned i = 0; i < 3; i++)
        curve_fini(&curves[i]);
}
END_TEST

/* Peers that have not got so far do not count, but those that have ended do. */
START_TEST(which_peers_count)
{
    struct curve curves[4];
    double scratch[3];
    for (unsigned i = 0; i < 3; i++)
        fill(&curves[i], 10, 8);
    fill(&curves[3], 1, 10);
    struct sweep_peer peers[] = {{&curves[0], true}, {&curves[1], true}, {&curves[2], false}};
    ck_assert(!sweep_rule_stops(&curves[3], 5, peers, 3, false, scratch));
    peers[2].has_ended = true;
    ck_assert(sweep_rule_stops(&curves[3], 5, peers, 3, false, scratch));
    ck_assert(!sweep_rule_stops(&curves[3], 5, peers, 2, false, scratch));
    for (unsigned i = 0; i < 4; i++)
        curve_fini(&curves[i]);
}
END_TEST

START_TEST(the_grace_is_a_fifth_of_the_limit)
{
    struct job job = {.kind = JOB_REINFORCE};
    ck_assert_uint_eq(sweep_rule_grace(&job, 0), SWEEP_GRACE_UNLIMITED);
    job.stop.has_episodes = true;
    job.stop.episodes = 200;
    ck_assert_uint_eq(sweep_rule_grace(&job, 0), 40);
    job.stop.episodes = 10;
    ck_assert_uint_eq(sweep_rule_grace(&job, 0), SWEEP_GRACE_MIN);
    job.algorithm.name = JOB_ALGORITHM_PPO;
    job.observers.count = 2;
    job.observers.environments = 4;
    job.rollout.steps = 10;
    job.stop.steps = 80000;
    ck_assert_uint_eq(sweep_rule_grace(&job, 0), 200);
    job.observers.count = 0; /* the agent steps them */
    ck_assert_uint_eq(sweep_rule_grace(&job, 0), 400);
    job.kind = JOB_PARAMETER_SERVER;
    job.stop.has_epochs = true;
    job.stop.epochs = 2;
    ck_assert_uint_eq(sweep_rule_grace(&job, 100), 40);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sweep_grid");
    TCase *tcase = tcase_create("sweep_grid");
    tcase_add_test(tcase, the_product_of_all_values);
    tcase_add_test(tcase, values_are_json);
    tcase_add_test(tcase, pointers_that_end_alike);
    tcase_add_test(tcase, ranges);
    tcase_add_test(tcase, what_is_wrong_is_named);
    tcase_add_test(tcase, the_rule);
    tcase_add_test(tcase, which_peers_count);
    tcase_add_test(tcase, the_grace_is_a_fifth_of_the_limit);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
