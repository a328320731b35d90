/* The curve and the marks of a run (daemon/watch/run_status.h): what stays of a long curve, what a death
 * takes back, and that all of it is JSON. */
#include "daemon/watch/run_status.h"
#include "test/workplace.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct run_history history;

static void clear(void)
{
    history = (struct run_history){0};
}

static void add_value(uint64_t number, double value)
{
    static struct control_message record;
    record.kind = CONTROL_EPISODE;
    record.body.episode = (struct control_episode){.episode = number, .running_reward = value};
    run_history_add(&history, &record);
}

static void add(uint64_t first, uint64_t last)
{
    for (uint64_t number = first; number <= last; number++)
        add_value(number, (double)number / 2);
}

static cJSON *parsed(void (*write)(FILE *out, bool is_first), bool is_first)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    write(out, is_first);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_ptr_null(strchr(text, '\n')); // it would end an event's line
    cJSON *json = cJSON_ParseWithOpts(text, NULL, true);
    ck_assert_msg(json != NULL, "no JSON: %.200s", text);
    free(text);
    return json;
}

static void write_points(FILE *out, bool is_first)
{
    run_history_write_points(&history, is_first, out);
}

static void write_marks(FILE *out, bool is_first)
{
    (void)is_first;
    run_history_write_marks(&history, out);
}

static double item_number(const cJSON *array, int i)
{
    return cJSON_GetArrayItem(cJSON_GetArrayItem(array, i), 0)->valuedouble;
}

static const cJSON *item_value(const cJSON *array, int i)
{
    return cJSON_GetArrayItem(cJSON_GetArrayItem(array, i), 1);
}

/* Each point is behind the one before it, and its value is its own number's. */
static void expect_curve(const cJSON *points)
{
    double before = -1;
    const cJSON *point;
    cJSON_ArrayForEach(point, points)
    {
        const double number = cJSON_GetArrayItem(point, 0)->valuedouble;
        ck_assert(number > before);
        ck_assert_double_eq_tol(cJSON_GetArrayItem(point, 1)->valuedouble, number / 2, number * 1e-8);
        before = number;
    }
}

/* ---- the curve ---- */

START_TEST(nothing_is_an_empty_array)
{
    cJSON *points = parsed(write_points, true), *marks = parsed(write_marks, true);
    ck_assert(cJSON_IsArray(points) && cJSON_IsArray(marks));
    ck_assert_int_eq(cJSON_GetArraySize(points) + cJSON_GetArraySize(marks), 0);
    cJSON_Delete(points);
    cJSON_Delete(marks);
}
END_TEST

START_TEST(a_long_curve_keeps_its_first_and_newest_point)
{
    static const uint64_t lengths[] = {1, 2, HISTORY_POINTS, HISTORY_POINTS + 1, 100003};
    add(1, lengths[_i]);
    cJSON *points = parsed(write_points, true);
    const int count = cJSON_GetArraySize(points);
    ck_assert_int_le(count, HISTORY_POINTS + 1);
    if (lengths[_i] >= HISTORY_POINTS)
        ck_assert_int_ge(count, HISTORY_POINTS / 2);
    ck_assert_double_eq(item_number(points, 0), 1);
    ck_assert_double_eq(item_number(points, count - 1), (double)lengths[_i]);
    expect_curve(points);
    cJSON_Delete(points);
}
END_TEST

START_TEST(who_was_told_gets_the_rest)
{
    add(1, 100);
    history.told = 97;
    cJSON *points = parsed(write_points, false);
    ck_assert_int_eq(cJSON_GetArraySize(points), 3);
    ck_assert_double_eq(item_number(points, 0), 98);
    cJSON_Delete(points);
    add(101, 100003);
    history.told = 100002;
    points = parsed(write_points, false);
    ck_assert_int_eq(cJSON_GetArraySize(points), 1); // no point of its own at this stride, but the newest
    ck_assert_double_eq(item_number(points, 0), 100003);
    cJSON_Delete(points);
}
END_TEST

START_TEST(a_death_takes_the_curve_back)
{
    static const uint64_t lengths[] = {100, 100000};
    const uint64_t resumed = lengths[_i] / 2, newest = resumed + 5;
    add(1, lengths[_i]);
    add(resumed, newest);
    cJSON *points = parsed(write_points, true);
    ck_assert_double_eq(item_number(points, 0), 1);
    ck_assert_double_eq(item_number(points, cJSON_GetArraySize(points) - 1), (double)newest);
    expect_curve(points);
    cJSON_Delete(points);
}
END_TEST

START_TEST(after_a_death_readers_get_what_came_again)
{
    add(1, 100);
    history.told = 100;
    add(51, 60);
    add(50, 52);
    cJSON *points = parsed(write_points, false);
    ck_assert_int_eq(cJSON_GetArraySize(points), 3);
    ck_assert_double_eq(item_number(points, 0), 50);
    ck_assert_double_eq(item_number(points, 2), 52);
    cJSON_Delete(points);
}
END_TEST

START_TEST(what_is_no_number_is_null)
{
    static const double strange[] = {NAN, INFINITY, -INFINITY};
    for (unsigned i = 0; i < 3; i++)
        add_value(i + 1, strange[i]);
    add_value(4, -1e308);
    cJSON *points = parsed(write_points, true);
    for (int i = 0; i < 3; i++)
        ck_assert(cJSON_IsNull(item_value(points, i)));
    ck_assert_double_eq(item_value(points, 3)->valuedouble, -1e308);
    cJSON_Delete(points);
}
END_TEST

START_TEST(updates_have_their_loss_and_other_messages_nothing)
{
    static struct control_message record;
    record.kind = CONTROL_UPDATE;
    record.body.update = (struct control_update){.update = 3, .loss = 0.25};
    run_history_add(&history, &record);
    record.kind = CONTROL_EPOCH;
    run_history_add(&history, &record);
    cJSON *points = parsed(write_points, true);
    ck_assert_int_eq(cJSON_GetArraySize(points), 1);
    ck_assert_double_eq(item_number(points, 0), 3);
    ck_assert_double_eq(item_value(points, 0)->valuedouble, 0.25);
    cJSON_Delete(points);
}
END_TEST

/* ---- the marks ---- */

START_TEST(of_many_marks_the_newest_stay)
{
    char text[32];
    for (unsigned i = 1; i <= HISTORY_MARKS + 10; i++) {
        add(i, i);
        snprintf(text, sizeof text, "mark %u", i);
        run_history_mark(&history, text);
    }
    cJSON *marks = parsed(write_marks, true);
    ck_assert_int_eq(cJSON_GetArraySize(marks), HISTORY_MARKS);
    for (int i = 0; i < HISTORY_MARKS; i++) {
        snprintf(text, sizeof text, "mark %d", i + 11);
        ck_assert_double_eq(item_number(marks, i), i + 11);
        ck_assert_str_eq(item_value(marks, i)->valuestring, text);
    }
    cJSON_Delete(marks);
}
END_TEST

START_TEST(a_mark_is_any_text)
{
    static const char strange[] =
        "\"quoted\", back\\slash,\na line\r\n\x01\x1b[31m</script>\tand \xe2\x89\xa4";
    char longer[2 * HISTORY_TEXT_BYTES];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    run_history_mark(&history, strange);
    run_history_mark(&history, longer);
    run_history_mark(&history, "");
    cJSON *marks = parsed(write_marks, true);
    ck_assert_str_eq(item_value(marks, 0)->valuestring, strange);
    ck_assert_uint_eq(strlen(item_value(marks, 1)->valuestring), HISTORY_TEXT_BYTES - 1);
    ck_assert_str_eq(item_value(marks, 2)->valuestring, "");
    cJSON_Delete(marks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_history");
    TCase *tcase = tcase_create("curve");
    tcase_add_checked_fixture(tcase, clear, NULL);
    tcase_add_test(tcase, nothing_is_an_empty_array);
    tcase_add_loop_test(tcase, a_long_curve_keeps_its_first_and_newest_point, 0, 5);
    tcase_add_test(tcase, who_was_told_gets_the_rest);
    tcase_add_loop_test(tcase, a_death_takes_the_curve_back, 0, 2);
    tcase_add_test(tcase, after_a_death_readers_get_what_came_again);
    tcase_add_test(tcase, what_is_no_number_is_null);
    tcase_add_test(tcase, updates_have_their_loss_and_other_messages_nothing);
    tcase_add_test(tcase, of_many_marks_the_newest_stay);
    tcase_add_test(tcase, a_mark_is_any_text);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
