/* The lines that a page draws (daemon/log/run_history.h): what stays of a long log, what readers are told,
 * what comes from a file, and that all of it is JSON on one line. */
#include "daemon/log/run_history.h"
#include "test/workplace.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct run_history *history;
static struct error error;
static char file[4200];

static void open_history(void)
{
    workplace_open();
    ck_assert_int_eq(run_history_new(&history, &error), STATUS_OK);
    snprintf(file, sizeof file, "%s/episodes.jsonl", workplace.folder);
}

static void close_history(void)
{
    run_history_free(history);
    workplace_close();
}

static void take(const char *line)
{
    run_history_take(history, line, strlen(line));
}

/* Episodes of 10 steps. Every `evaluated`th has an evaluation; 0: none. */
static void write_episodes(FILE *out, uint64_t first, uint64_t last, uint64_t evaluated)
{
    for (uint64_t number = first; number <= last; number++) {
        fprintf(out, "{\"episode\":%" PRIu64 ",\"reward\":1,\"env_steps\":10", number);
        if (evaluated > 0 && number % evaluated == 0)
            fputs(",\"eval\":{\"mean_reward\":2}", out);
        fputs(",\"timing\":{\"unix_s\":5}}\n", out);
    }
}

static void take_episodes(uint64_t first, uint64_t last, uint64_t evaluated)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    write_episodes(out, first, last, evaluated);
    ck_assert_int_eq(fclose(out), 0);
    const char *line = text, *end = text + length; // no strchr: a sanitizer would read to the end each time
    for (const char *next; (next = memchr(line, '\n', (size_t)(end - line))) != NULL; line = next + 1)
        run_history_take(history, line, (size_t)(next + 1 - line));
    free(text);
}

static cJSON *written(bool whole)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    fputc('{', out);
    run_history_write(history, path_of(workplace.folder), whole, out);
    fputc('}', out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_ptr_null(strchr(text, '\n')); // it would end an event's line
    cJSON *json = cJSON_ParseWithOpts(text, NULL, true);
    ck_assert_msg(json != NULL, "no JSON: %.200s", text);
    free(text);
    return json;
}

static const cJSON *list(const cJSON *json, const char *name)
{
    const cJSON *found = cJSON_GetObjectItem(json, name);
    ck_assert(cJSON_IsArray(found));
    return found;
}

/* The number in front of the line, or a member of the line. */
static double number_at(const cJSON *array, int i, const char *member)
{
    const cJSON *pair = cJSON_GetArrayItem(array, i), *line = cJSON_GetArrayItem(pair, 1);
    const cJSON *found = member == NULL ? cJSON_GetArrayItem(pair, 0) : cJSON_GetObjectItem(line, member);
    ck_assert(cJSON_IsNumber(found));
    return found->valuedouble;
}

static const char *text_at(const cJSON *array, int i, const char *member)
{
    const cJSON *line = cJSON_GetArrayItem(cJSON_GetArrayItem(array, i), 1);
    return cJSON_GetStringValue(cJSON_GetObjectItem(line, member));
}

/* ---- records ---- */

START_TEST(nothing_is_two_empty_arrays)
{
    cJSON *json = written(true);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 0);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "events")), 0);
    cJSON_Delete(json);
}
END_TEST

START_TEST(a_long_log_keeps_its_first_and_newest_record)
{
    static const uint64_t lengths[] = {1, 2, HISTORY_LINES_MAX, HISTORY_LINES_MAX + 1, 100003};
    take_episodes(1, lengths[_i], 0);
    cJSON *json = written(true);
    const cJSON *records = list(json, "records");
    const int count = cJSON_GetArraySize(records);
    ck_assert_int_le(count, HISTORY_LINES_MAX + 1);
    if (lengths[_i] >= HISTORY_LINES_MAX)
        ck_assert_int_ge(count, HISTORY_LINES_MAX / 2);
    ck_assert_double_eq(number_at(records, 0, "episode"), 1);
    ck_assert_double_eq(number_at(records, count - 1, "episode"), (double)lengths[_i]);
    for (int i = 0; i < count; i++) { // also of lines that went, the steps count
        ck_assert_double_eq(number_at(records, i, NULL), 10 * number_at(records, i, "episode"));
        ck_assert(i == 0 || number_at(records, i, "episode") > number_at(records, i - 1, "episode"));
    }
    cJSON_Delete(json);
}
END_TEST

START_TEST(an_evaluation_outlives_its_neighbours)
{
    take_episodes(1, 50000, 5000);
    cJSON *json = written(true);
    const cJSON *records = list(json, "records"), *pair;
    int evaluations = 0;
    cJSON_ArrayForEach(pair, records)
    {
        evaluations += cJSON_HasObjectItem(cJSON_GetArrayItem(pair, 1), "eval");
    }
    ck_assert_int_eq(evaluations, 10);
    cJSON_Delete(json);
}
END_TEST

START_TEST(long_lines_do_not_fill_the_memory)
{
    enum { LINE_BYTES = 100000 };
    static char line[LINE_BYTES + 64];
    size_t bytes = 0;
    for (uint64_t number = 1; number <= 300; number++) {
        const int length = snprintf(line, sizeof line, "{\"update\":%" PRIu64 ",\"losses\":[", number);
        memset(line + length, ' ', LINE_BYTES);
        memcpy(line + length + LINE_BYTES - 2, "]}", 3);
        take(line);
    }
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);
    run_history_write(history, path_of(workplace.folder), true, out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_uint_le(bytes, HISTORY_BYTES_MAX + 2 * LINE_BYTES);
    ck_assert_uint_ge(bytes, HISTORY_BYTES_MAX / 4);
    free(text);
}
END_TEST

START_TEST(what_is_no_line_of_a_log_is_skipped)
{
    static const char *const strange[] = {"", "\n", "{", "}", "null", "Episode 1\n", "{\"episode\":1"};
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++)
        take(strange[i]);
    run_history_take(history, "{\"episode\":1\0}", 14);
    cJSON *json = written(true);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 0);
    cJSON_Delete(json);
}
END_TEST

START_TEST(readers_are_told_what_came_since)
{
    take_episodes(1, 100, 0);
    run_history_told(history);
    take_episodes(101, 103, 0);
    take("{\"event\":\"restarted\",\"reason\":\"why\"}\n");
    cJSON *json = written(false);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 3);
    ck_assert_double_eq(number_at(list(json, "records"), 0, "episode"), 101);
    ck_assert_double_eq(number_at(list(json, "events"), 0, NULL), 103);
    cJSON_Delete(json);
    take_episodes(104, 100002, 0);
    run_history_told(history);
    take_episodes(100003, 100003, 0);
    json = written(false); // this line has no place of its own any more, but is the newest
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 1);
    ck_assert_double_eq(number_at(list(json, "records"), 0, "episode"), 100003);
    cJSON_Delete(json);
    run_history_told(history);
    json = written(false);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 0);
    cJSON_Delete(json);
}
END_TEST

START_TEST(updates_count_samples_and_epochs_nothing)
{
    take("{\"update\":5,\"loss\":1,\"samples\":15,\"timing\":{}}\n");
    take("{\"epoch\":1,\"update\":5,\"loss\":2,\"timing\":{}}\n");
    take("{\"update\":10,\"loss\":1,\"samples\":15,\"timing\":{}}\n");
    cJSON *json = written(true);
    const cJSON *records = list(json, "records");
    ck_assert_int_eq(cJSON_GetArraySize(records), 3);
    ck_assert_double_eq(number_at(records, 1, "epoch"), 1);
    ck_assert_double_eq(number_at(records, 1, NULL), 15);
    ck_assert_double_eq(number_at(records, 2, NULL), 30);
    cJSON_Delete(json);
}
END_TEST

/* ---- events ---- */

START_TEST(of_many_events_the_newest_stay)
{
    enum { EVENTS = 3 * HISTORY_LINES_MAX };
    char line[64];
    for (int i = 1; i <= EVENTS; i++) {
        snprintf(line, sizeof line, "{\"event\":\"restarted\",\"incarnation\":%d}\n", i);
        take(line);
    }
    cJSON *json = written(true);
    const cJSON *events = list(json, "events");
    const int count = cJSON_GetArraySize(events);
    ck_assert_int_ge(count, HISTORY_LINES_MAX / 2);
    for (int i = 0; i < count; i++)
        ck_assert_double_eq(number_at(events, i, "incarnation"), EVENTS - count + i + 1);
    cJSON_Delete(json);
}
END_TEST

START_TEST(a_note_is_any_text)
{
    static const char strange[] =
        "\"quoted\", back\\slash,\na line\r\n\x01\x1b[31m</script>\tand \xe2\x89\xa4";
    run_history_note(history, "warning", strange);
    cJSON *json = written(true);
    ck_assert_str_eq(text_at(list(json, "events"), 0, "event"), "warning");
    ck_assert_str_eq(text_at(list(json, "events"), 0, "text"), strange);
    cJSON_Delete(json);
}
END_TEST

/* ---- the file ---- */

static FILE *log_opened(const char *mode)
{
    FILE *out = fopen(file, mode);
    ck_assert_ptr_nonnull(out);
    return out;
}

static void read_file(void)
{
    ck_assert_int_eq(run_history_read(history, path_of(workplace.folder), &error), STATUS_OK);
}

static void expect_newest(int least, double newest)
{
    cJSON *json = written(true);
    const cJSON *records = list(json, "records");
    const int count = cJSON_GetArraySize(records);
    ck_assert_int_ge(count, least);
    ck_assert_double_eq(number_at(records, count - 1, "episode"), newest);
    ck_assert_double_eq(number_at(records, count - 1, NULL), 10 * newest);
    cJSON_Delete(json);
}

START_TEST(a_file_is_read_on_from_its_last_whole_line)
{
    FILE *out = log_opened("w");
    write_episodes(out, 1, 200000, 0); // more than a block
    fputs("{\"episode\":200001,\"env_st", out);
    fclose(out);
    read_file();
    expect_newest(HISTORY_LINES_MAX / 2, 200000);
    out = log_opened("a");
    fputs("eps\":10}\n", out);
    write_episodes(out, 200002, 200010, 0);
    fclose(out);
    read_file();
    expect_newest(HISTORY_LINES_MAX / 2, 200010);
}
END_TEST

START_TEST(a_file_that_lost_lines_is_read_anew)
{
    FILE *out = log_opened("w");
    write_episodes(out, 1, 100, 0);
    fclose(out);
    read_file();
    run_history_note(history, "warning", "stays");
    out = log_opened(_i == 0 ? "w" : "a");
    if (_i == 1) { // another file takes its name
        fclose(out);
        ck_assert_int_eq(unlink(file), 0);
        out = log_opened("w");
        write_episodes(out, 1, 60, 0);
    }
    write_episodes(out, _i == 0 ? 1 : 61, 70, 0);
    fclose(out);
    read_file();
    expect_newest(70, 70);
    cJSON *json = written(true);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 70);
    ck_assert_str_eq(text_at(list(json, "events"), 0, "text"), "stays");
    cJSON_Delete(json);
}
END_TEST

/* As a resume does while nobody reads: the file is longer than it was. */
START_TEST(a_file_that_was_cut_and_grew_is_read_anew)
{
    FILE *out = log_opened("w");
    write_episodes(out, 1, 10, 0);
    fclose(out);
    read_file();
    out = log_opened("w");
    write_episodes(out, 1, 5, 0);
    fputs("{\"event\":\"resumed\",\"episode\":5,\"timing\":{\"unix_s\":6}}\n", out);
    write_episodes(out, 6, 20, 0);
    fclose(out);
    read_file();
    expect_newest(20, 20);
    cJSON *json = written(true);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 20);
    ck_assert_double_eq(number_at(list(json, "events"), 0, NULL), 5);
    cJSON_Delete(json);
}
END_TEST

START_TEST(a_damaged_line_spoils_no_other)
{
    static const char *const damaged[] = {"{\"episode\":3,xx}\n", "{\"event\":\"start\",}\n",
                                          "{\"episode\":\"eval\":{}\n", "{\"epoch\":1]}\n"};
    FILE *out = log_opened("w");
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++)
        fputs(damaged[i], out);
    write_episodes(out, 4, 5, 0);
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++)
        fputs(damaged[i], out);
    fclose(out);
    read_file();
    for (int again = 0; again < 2; again++) {
        cJSON *json = written(true);
        ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 2);
        ck_assert_int_eq(cJSON_GetArraySize(list(json, "events")), 0);
        cJSON_Delete(json);
    }
}
END_TEST

START_TEST(a_line_beyond_the_block_is_skipped)
{
    FILE *out = log_opened("w");
    fputs("{\"episode\":1,\"x\":\"", out);
    for (size_t i = 0; i < HISTORY_BLOCK_BYTES + 100; i++)
        fputc('x', out);
    fputs("\"}\n", out);
    write_episodes(out, 2, 3, 0);
    fclose(out);
    read_file();
    cJSON *json = written(true);
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "records")), 2);
    cJSON_Delete(json);
}
END_TEST

START_TEST(a_file_that_is_missing_is_named)
{
    ck_assert_int_eq(run_history_read(history, path_of(workplace.folder), &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "episodes.jsonl"));
}
END_TEST

static void make_folder(const char *name)
{
    char path[sizeof file + 64];
    snprintf(path, sizeof path, "%s/%s", workplace.folder, name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

START_TEST(the_run_s_folder_has_the_job_and_the_checkpoints)
{
    char path[sizeof file + 64];
    cJSON *json = written(true);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(json, "job")));
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "checkpoints")), 0);
    cJSON_Delete(json);
    snprintf(path, sizeof path, "%s/job.json", workplace.folder);
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    fputs("{\n  \"kind\":\n  \"reinforce\"}\n", out);
    ck_assert_int_eq(fclose(out), 0);
    make_folder("checkpoints");
    make_folder("checkpoints/00000010");
    make_folder("checkpoints/00000002");
    json = written(true);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "job"), "kind")),
                     "reinforce");
    const cJSON *found = list(json, "checkpoints");
    ck_assert_int_eq(cJSON_GetArraySize(found), 2);
    ck_assert_double_eq(cJSON_GetArrayItem(cJSON_GetArrayItem(found, 0), 0)->valuedouble, 2);
    ck_assert_double_eq(cJSON_GetArrayItem(cJSON_GetArrayItem(found, 1), 0)->valuedouble, 10);
    ck_assert_double_gt(cJSON_GetArrayItem(cJSON_GetArrayItem(found, 0), 1)->valuedouble, 1e9);
    cJSON_Delete(json);
    json = written(false);
    ck_assert_ptr_null(cJSON_GetObjectItem(json, "job"));
    ck_assert_int_eq(cJSON_GetArraySize(list(json, "checkpoints")), 2);
    cJSON_Delete(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_history");
    TCase *tcase = tcase_create("lines");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, open_history, close_history);
    tcase_add_test(tcase, nothing_is_two_empty_arrays);
    tcase_add_loop_test(tcase, a_long_log_keeps_its_first_and_newest_record, 0, 5);
    tcase_add_test(tcase, an_evaluation_outlives_its_neighbours);
    tcase_add_test(tcase, long_lines_do_not_fill_the_memory);
    tcase_add_test(tcase, what_is_no_line_of_a_log_is_skipped);
    tcase_add_test(tcase, readers_are_told_what_came_since);
    tcase_add_test(tcase, updates_count_samples_and_epochs_nothing);
    tcase_add_test(tcase, of_many_events_the_newest_stay);
    tcase_add_test(tcase, a_note_is_any_text);
    tcase_add_test(tcase, a_file_is_read_on_from_its_last_whole_line);
    tcase_add_loop_test(tcase, a_file_that_lost_lines_is_read_anew, 0, 2);
    tcase_add_test(tcase, a_file_that_was_cut_and_grew_is_read_anew);
    tcase_add_test(tcase, a_damaged_line_spoils_no_other);
    tcase_add_test(tcase, a_line_beyond_the_block_is_skipped);
    tcase_add_test(tcase, a_file_that_is_missing_is_named);
    tcase_add_test(tcase, the_run_s_folder_has_the_job_and_the_checkpoints);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
