/* Curves: which lines of a log make points, and that a long log is thinned by the rule of curve.h. */
#include "daemon/commands/curve.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct curve curve;
static struct error error;

static void begin(const char *x, const char *y)
{
    curve_init(&curve, (struct curve_keys){x, y});
}

static void take(const char *line)
{
    ck_assert_int_eq(curve_take(&curve, line, &error), STATUS_OK);
}

static void has(uint32_t i, double x, double y)
{
    ck_assert_uint_lt(i, curve.count);
    ck_assert_msg(curve.points[i].x == x && curve.points[i].y == y, "point %u: %g %g", i, curve.points[i].x,
                  curve.points[i].y);
}

START_TEST(numbers_by_name)
{
    begin("episode", "eval.mean_reward");
    take("{\"episode\":1,\"reward\":2,\"timing\":{\"unix_s\":5}}");
    take(
        "{\"episode\":2,\"reward\":2,\"eval\":{\"std\":[1,{\"a\":2}],\"mean_reward\":-3.5e1},\"timing\":{}}");
    take("{\"episode\":3,\"x\":\"}\\\",{\",\"eval\":{\"mean_reward\":null},\"timing\":{}}");
    take("{\"episode\":4,\"x\":\"}\\\",{\",\"eval.mean_reward\":7,\"timing\":{}}");
    take("{\"episode\":5,\"eval\":{\"mean_reward\":\"12\"},\"timing\":{}}");
    ck_assert_uint_eq(curve.count, 2);
    has(0, 2, -35);
    has(1, 4, 7);
    curve_fini(&curve);
}
END_TEST

START_TEST(events_and_wrong_lines_make_no_points)
{
    begin("episode", "reward");
    take("{\"event\":\"start\",\"episode\":3,\"reward\":3,\"timing\":{}}");
    ck_assert_str_eq(curve.event, "start");
    take("{\"episode\":1,\"reward\":2,\"timing\":{}}");
    ck_assert_str_eq(curve.event, "");
    take("");
    take("nonsense");
    take("{\"episode\":2,\"rew");
    take("{\"event\":\"solved\",\"timing\":{}}");
    ck_assert_str_eq(curve.event, "solved");
    ck_assert_uint_eq(curve.count, 1);
    ck_assert_uint_eq(curve.wrong, 3);
    ck_assert_uint_eq(curve.first_wrong, 3);
    curve_fini(&curve);
}
END_TEST

/* An epoch's line has a loss, too, the mean over its updates. */
START_TEST(epochs_beside_updates)
{
    static const char *const lines[] = {
        "{\"update\":1,\"loss\":4,\"samples\":8,\"timing\":{}}",
        "{\"update\":2,\"loss\":2,\"samples\":8,\"timing\":{}}",
        "{\"epoch\":1,\"update\":2,\"loss\":3,\"accuracy\":0.5,\"timing\":{}}"};
    static const struct {
        struct curve_keys keys;
        uint32_t count;
        double x, y; /* of the last point */
    } cases[] = {{{"update", "loss"}, 2, 2, 2},
                 {{"update", "accuracy"}, 1, 2, 0.5},
                 {{"epoch", "loss"}, 1, 1, 3},
                 {{"steps", "loss"}, 2, 16, 2}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        curve_init(&curve, cases[i].keys);
        for (unsigned line = 0; line < 3; line++)
            take(lines[line]);
        ck_assert_uint_eq(curve.count, cases[i].count);
        has(curve.count - 1, cases[i].x, cases[i].y);
        curve_fini(&curve);
    }
}
END_TEST

START_TEST(steps_and_seconds)
{
    begin("steps", "reward");
    take("{\"episode\":1,\"reward\":2,\"env_steps\":10,\"timing\":{}}");
    take("{\"episode\":2,\"reward\":null,\"env_steps\":10,\"timing\":{}}");
    take("{\"episode\":3,\"reward\":4,\"env_steps\":10,\"timing\":{}}");
    has(0, 10, 2);
    has(1, 30, 4);
    take("{\"episode\":4,\"reward\":5,\"env_steps\":10,\"total_timesteps\":100,\"timing\":{}}");
    has(2, 100, 5);
    curve_fini(&curve);
    begin("seconds", "reward");
    take("{\"event\":\"start\",\"timing\":{\"unix_s\":1000.5}}");
    take("{\"episode\":1,\"reward\":2,\"timing\":{\"unix_s\":1002}}");
    has(0, 1.5, 2);
    curve_fini(&curve);
}
END_TEST

/* Each point is the mean of `stride` lines, only the last one of fewer. */
START_TEST(a_long_log_is_thinned)
{
    enum { LINES = 10 * CURVE_POINTS_MAX + 3 };
    char line[96];
    uint64_t lines = 0;
    begin("episode", "reward");
    for (unsigned i = 1; i <= LINES; i++) {
        snprintf(line, sizeof line, "{\"episode\":%u,\"reward\":%u,\"timing\":{}}", i, 3 * i);
        take(line);
    }
    ck_assert_uint_eq(curve.stride, 16);
    ck_assert_uint_eq(curve.count, (LINES + 15) / 16);
    for (uint32_t i = 0; i < curve.count; i++) {
        ck_assert(i + 1 == curve.count || curve.points[i].lines == 16);
        ck_assert_double_eq_tol(curve.points[i].y, 3 * curve.points[i].x, 1e-6);
        lines += curve.points[i].lines;
    }
    ck_assert_uint_eq(lines, LINES);
    ck_assert_double_eq_tol(curve.points[0].x, 8.5, 1e-9);
    ck_assert(curve.newest.x == LINES && curve.ascends);
    curve_fini(&curve);
}
END_TEST

START_TEST(values_between_points)
{
    double y;
    begin("episode", "reward");
    ck_assert(!curve_at(&curve, 1, &y));
    take("{\"episode\":2,\"reward\":10,\"timing\":{}}");
    ck_assert(curve_at(&curve, 2, &y) && y == 10);
    take("{\"episode\":4,\"reward\":20,\"timing\":{}}");
    ck_assert(curve_at(&curve, 2, &y) && y == 10);
    ck_assert(curve_at(&curve, 3, &y) && y == 15);
    ck_assert(curve_at(&curve, 4, &y) && y == 20);
    ck_assert(!curve_at(&curve, 1.9, &y) && !curve_at(&curve, 4.1, &y) && !curve_at(&curve, NAN, &y));
    take("{\"episode\":3,\"reward\":20,\"timing\":{}}");
    ck_assert(!curve.ascends && !curve_at(&curve, 3, &y));
    curve_fini(&curve);
}
END_TEST

/* Two episodes can end in one millisecond. */
START_TEST(several_points_at_one_x)
{
    double y;
    begin("seconds", "reward");
    take("{\"episode\":1,\"reward\":1,\"timing\":{\"unix_s\":1000}}");
    take("{\"episode\":2,\"reward\":10,\"timing\":{\"unix_s\":1000}}");
    take("{\"episode\":3,\"reward\":20,\"timing\":{\"unix_s\":1002}}");
    take("{\"episode\":4,\"reward\":30,\"timing\":{\"unix_s\":1002}}");
    ck_assert(curve.ascends);
    ck_assert(curve_at(&curve, 0, &y) && y == 10);
    ck_assert(curve_at(&curve, 1, &y) && y == 15);
    ck_assert(curve_at(&curve, 2, &y) && y == 30);
    curve_fini(&curve);
}
END_TEST

/* A half-written line is taken when it is whole. */
START_TEST(a_growing_file)
{
    char folder[64], path[96];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/episodes.jsonl", folder);
    begin("episode", "reward");
    ck_assert_int_eq(curve_read(&curve, path_of(path), &error), STATUS_NOT_FOUND);
    text_write(path, "");
    ck_assert_int_eq(curve_read(&curve, path_of(path), &error), STATUS_OK);
    text_append(path, "{\"episode\":1,\"reward\":1,\"timing\":{}}\n{\"episode\":2,\"rewa");
    ck_assert_int_eq(curve_read(&curve, path_of(path), &error), STATUS_OK);
    ck_assert_uint_eq(curve.count, 1);
    text_append(path, "rd\":5,\"timing\":{}}\n");
    ck_assert_int_eq(curve_read(&curve, path_of(path), &error), STATUS_OK);
    ck_assert_uint_eq(curve.count, 2);
    text_append(path, "{\"episode\":3,\"reward\":5,\"timing\":{}}\n");
    ck_assert_int_eq(curve_read(&curve, path_of(path), &error), STATUS_OK);
    ck_assert_int_eq(curve_read(&curve, path_of(path), &error), STATUS_OK);
    ck_assert_uint_eq(curve.count, 3);
    has(1, 2, 5);
    has(2, 3, 5);
    curve_fini(&curve);
    folder_remove(folder);
}
END_TEST

START_TEST(a_line_without_end_is_named)
{
    char folder[64], path[96];
    enum { BYTES = 1 << 21 };
    char *text = malloc(BYTES + 1);
    folder_make(folder);
    snprintf(path, sizeof path, "%s/episodes.jsonl", folder);
    ck_assert_ptr_nonnull(text);
    memset(text, '{', BYTES);
    text[BYTES] = '\0';
    text_write(path, text);
    begin("episode", "reward");
    ck_assert_int_eq(curve_read(&curve, path_of(path), &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "episodes.jsonl: line 1 is longer than"));
    curve_fini(&curve);
    free(text);
    folder_remove(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("curve");
    TCase *tcase = tcase_create("curve");
    tcase_add_test(tcase, numbers_by_name);
    tcase_add_test(tcase, events_and_wrong_lines_make_no_points);
    tcase_add_test(tcase, epochs_beside_updates);
    tcase_add_test(tcase, steps_and_seconds);
    tcase_add_test(tcase, a_long_log_is_thinned);
    tcase_add_test(tcase, values_between_points);
    tcase_add_test(tcase, several_points_at_one_x);
    tcase_add_test(tcase, a_growing_file);
    tcase_add_test(tcase, a_line_without_end_is_named);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
