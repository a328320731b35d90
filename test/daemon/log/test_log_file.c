/* One log on the disk (daemon/log/log_file.h): places, what confirms them, what is cut, and rotation.
 * test/daemon/log/test_log_places.sh does the same to whole runs. */
#include "daemon/log/log_file.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t id[RUN_ID_BYTES] = {0xab, 1}, other_id[RUN_ID_BYTES] = {0xab, 2};
static const char first_line[] = "{\"event\":\"continued\",\"lines\":3,\"timing\":{\"unix_s\":";
static struct log_file *file;
static struct error error;
static char cut_lines[4096];

static void ok(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s: %s", status_name(status), error.text);
}

static void note(void *context, const char *text)
{
    ck_assert_ptr_eq(context, cut_lines);
    strcat(cut_lines, text);
}
static const struct log_cut cut = {note, cut_lines};

static void open_file(void)
{
    ok(log_file_open(&file, path_of(workplace.run_dir), RUN_LOG_JSON, &error));
}

static void append(const char *text)
{
    static char line[4096];
    const int length = snprintf(line, sizeof line, "%s\n", text);
    ok(log_file_append(file, line, (size_t)length, &error));
}

static void append_episode(unsigned number)
{
    char text[64];
    snprintf(text, sizeof text, "{\"episode\":%u,\"timing\":{}}", number);
    append(text);
}

/* A start, and the episodes 1 and 2. */
static void setup(void)
{
    workplace_open();
    ck_assert_int_eq(mkdir(workplace.run_dir, 0777), 0);
    cut_lines[0] = '\0';
    open_file();
    append("{\"event\":\"start\",\"seed\":7,\"timing\":{\"unix_s\":1,\"run\":"
           "\"ab010000000000000000000000000000\"}}");
    append_episode(1);
    append_episode(2);
}

static void teardown(void)
{
    log_file_close(file);
    file = NULL;
    workplace_close();
}

/* The process is killed, and another one opens the log. */
static void reopen(void)
{
    log_file_close(file);
    open_file();
}

static void expect_text(const char *name, const char *wanted)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", workplace.run_dir, name);
    char *text = file_read(path);
    ck_assert_str_eq(text, wanted);
    free(text);
}

static char *path_to(const char *name)
{
    static char paths[2][192];
    static unsigned turn;
    char *path = paths[turn++ % 2];
    snprintf(path, sizeof paths[0], "%s/%s", workplace.run_dir, name);
    return path;
}

static void expect_refused(const struct log_place *place)
{
    ck_assert_int_eq(log_file_confirm(file, place, id, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "episodes.jsonl are not the lines that the run had written"));
}

#define START                                                                                                \
    "{\"event\":\"start\",\"seed\":7,\"timing\":{\"unix_s\":1,\"run\":\"ab010000000000000000000000000000\"}" \
    "}\n"
#define EPISODE(n) "{\"episode\":" n ",\"timing\":{}}\n"

START_TEST(a_place_is_lines_bytes_and_a_digest)
{
    const struct log_place place = log_file_place(file);
    char line[] = EPISODE("2");
    uint8_t found[RUN_ID_BYTES];
    ck_assert_uint_eq(place.lines, 3);
    ck_assert_uint_eq(place.bytes, strlen(START EPISODE("1") EPISODE("2")));
    ck_assert(log_file_ends_with(file, line, strlen(line)));
    line[2]++;
    ck_assert(!log_file_ends_with(file, line, strlen(line)));
    ck_assert(log_file_run_id(file, found));
    ck_assert_mem_eq(found, id, sizeof found);
    append_episode(3);
    reopen();
    ok(log_file_confirm(file, &place, id, &error));
}
END_TEST

/* Of the lines before the place: each change is seen. Behind it: none matters. */
static const struct {
    const char *text;
    bool is_confirmed;
} changes[] = {
    {START EPISODE("1") EPISODE("2"), true},
    {START EPISODE("1") EPISODE("2") EPISODE("2") "{\"half", true},
    {START EPISODE("1") EPISODE("2") "\xff\n", true},
    {START EPISODE("1") EPISODE("3"), false},
    {START EPISODE("1"), false},
    {START EPISODE("1") "{\"episode\":\xff"
                        ",\"timing\":{}}\n",
     false},
    {START EPISODE("2") EPISODE("1"), false},
    {START EPISODE("1") EPISODE("1") EPISODE("2"), false},
    {"{\"event\":\"sturt\"}}\n" EPISODE("1") EPISODE("2"), false},
    {START "{\"episode\":1,\"timing\":{}}{\"episode\":2,\"timing\":{}}\n", false},
};

START_TEST(a_log_confirms_the_lines_that_were_written)
{
    const struct log_place place = log_file_place(file);
    log_file_close(file);
    text_write(workplace.jsonl, changes[_i].text);
    open_file();
    if (changes[_i].is_confirmed)
        ok(log_file_confirm(file, &place, id, &error));
    else
        expect_refused(&place);
}
END_TEST

/* Events right behind the place stay; what follows them is cut, half lines included. */
START_TEST(lines_behind_the_place_are_cut)
{
    static const char event[] = "{\"event\":\"restarted\",\"timing\":{}}\n";
    const struct log_place place = log_file_place(file);
    append("{\"event\":\"restarted\",\"timing\":{}}");
    append_episode(3);
    append("{\"event\":\"restarted\",\"timing\":{}}");
    append_episode(4);
    text_append(workplace.jsonl, "{\"episode\":5,\"ti");
    reopen();
    ok(log_file_cut(file, &place, id, &cut, &error));
    expect_text("episodes.jsonl",
                START EPISODE("1") EPISODE("2") "{\"event\":\"restarted\",\"timing\":{}}\n");
    char wanted[256];
    snprintf(wanted, sizeof wanted, EPISODE("3") "%s" EPISODE("4") "{\"episode\":5,\"ti", event);
    ck_assert_str_eq(cut_lines, wanted);
    strcat(wanted, "\n"); /* half a line gets an end */
    expect_text("episodes.jsonl.cut", wanted);
    ck_assert_uint_eq(log_file_place(file).lines, 4);
    append_episode(3);
    const struct log_place later = log_file_place(file);
    reopen();
    ok(log_file_confirm(file, &later, id, &error));
}
END_TEST

/* An event and a record on one line are no event. */
START_TEST(a_glued_line_is_cut)
{
    const struct log_place place = log_file_place(file);
    append("{\"event\":\"restarted\",\"timing\":{}}{\"episode\":3,\"timing\":{}}");
    ok(log_file_cut(file, &place, id, &cut, &error));
    expect_text("episodes.jsonl", START EPISODE("1") EPISODE("2"));
}
END_TEST

START_TEST(nothing_is_cut_where_nothing_stands)
{
    const struct log_place place = log_file_place(file);
    ok(log_file_cut(file, &place, id, &cut, &error));
    ck_assert_str_eq(cut_lines, "");
    ck_assert_int_ne(access(path_to("episodes.jsonl.cut"), F_OK), 0);
}
END_TEST

static void rename_log(const char *name)
{
    ck_assert_int_eq(rename(workplace.jsonl, path_to(name)), 0);
}

START_TEST(a_rotation_goes_on_behind_the_place)
{
    const struct log_place place = log_file_place(file);
    ok(log_file_continue(file, &place, id, &error)); /* nothing was renamed */
    rename_log("episodes.jsonl.1");
    append_episode(3);
    ok(log_file_continue(file, &place, id, &error));
    expect_text("episodes.jsonl.1", START EPISODE("1") EPISODE("2"));
    append_episode(4);
    ck_assert_uint_eq(log_file_place(file).lines, 6);
    char *text = file_read(workplace.jsonl);
    ck_assert_int_eq(strncmp(text, first_line, strlen(first_line)), 0);
    ck_assert_str_eq(strchr(text, '\n') + 1, EPISODE("3") EPISODE("4"));
    free(text);
    /* The checkpoint's place is the new file's beginning, for this run alone. */
    reopen();
    ok(log_file_confirm(file, &place, id, &error));
    unlink(path_to("episodes.jsonl.1"));
    ok(log_file_confirm(file, &place, id, &error));
    ck_assert_int_eq(log_file_confirm(file, &place, other_id, &error), STATUS_CORRUPT);
    ok(log_file_cut(file, &place, id, &cut, &error));
    ck_assert_str_eq(cut_lines, EPISODE("3") EPISODE("4"));
    ck_assert_uint_eq(log_file_place(file).lines, 4);
}
END_TEST

/* A zero byte in the first line: the line does not name its run. */
START_TEST(a_first_line_with_a_zero_byte_names_nothing)
{
    const struct log_place place = log_file_place(file);
    uint8_t found[RUN_ID_BYTES];
    rename_log("episodes.jsonl.1");
    ok(log_file_continue(file, &place, id, &error));
    char *text = file_read(workplace.jsonl);
    const long at = strchr(text, '\n') - text - 2;
    free(text);
    unlink(path_to("episodes.jsonl.1"));
    FILE *out = fopen(workplace.jsonl, "r+");
    ck_assert(out != NULL && fseek(out, at, SEEK_SET) == 0 && fputc(0, out) == 0 && fclose(out) == 0);
    reopen();
    ck_assert(!log_file_run_id(file, found));
    expect_refused(&place);
}
END_TEST

/* The new file cannot be written: the old one goes on. */
START_TEST(a_rotation_without_room_changes_nothing)
{
    const struct log_place place = log_file_place(file);
    struct rlimit limit, none = {0};
    append_episode(3);
    rename_log("episodes.jsonl.1");
    getrlimit(RLIMIT_FSIZE, &limit);
    none.rlim_max = limit.rlim_max;
    none.rlim_cur = 10;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    const enum status status = log_file_continue(file, &place, id, &error);
    none.rlim_cur = limit.rlim_cur;
    setrlimit(RLIMIT_FSIZE, &none);
    ck_assert_int_eq(status, STATUS_IO);
    ck_assert_int_ne(access(workplace.jsonl, F_OK), 0);
    ck_assert_uint_eq(log_file_place(file).lines, 3); /* no room in the old file either: a message says so */
    append_episode(3);
    expect_text("episodes.jsonl.1", START EPISODE("1") EPISODE("2") EPISODE("3"));
    ok(log_file_continue(file, &place, id, &error));
    char *text = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(text, "\n"), 2);
    free(text);
}
END_TEST

START_TEST(a_rotation_onto_another_file_is_refused)
{
    const struct log_place place = log_file_place(file);
    rename_log("episodes.jsonl.1");
    text_write(workplace.jsonl, "mine\n");
    ck_assert_int_eq(log_file_continue(file, &place, id, &error), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "found a file with content, expected none"));
    append_episode(3);
    expect_text("episodes.jsonl.1", START EPISODE("1") EPISODE("2") EPISODE("3"));
}
END_TEST

/* The process died between the renaming and the new file; or behind the new file's first lines, which belong
 * to a checkpoint that is lost. */
START_TEST(a_renamed_file_is_cut)
{
    struct log_place place = log_file_place(file), later;
    append_episode(3);
    rename_log(_i == 0 ? "episodes.jsonl.1" : "old");
    if (_i == 1) {
        later = log_file_place(file);
        ok(log_file_continue(file, &later, id, &error));
        append_episode(4);
    }
    reopen();
    ok(log_file_confirm(file, &place, id, &error));
    ok(log_file_cut(file, &place, id, &cut, &error));
    expect_text(_i == 0 ? "episodes.jsonl.1" : "old", START EPISODE("1") EPISODE("2"));
    ck_assert_ptr_nonnull(strstr(cut_lines, EPISODE("3")));
    ck_assert(_i == 0 || strstr(cut_lines, EPISODE("4")) != NULL);
    char *text = file_read(workplace.jsonl);
    ck_assert_int_eq(strncmp(text, first_line, strlen(first_line)), 0);
    ck_assert_uint_eq(text_count(text, "\n"), 1);
    free(text);
}
END_TEST

START_TEST(a_log_that_was_moved_begins_anew)
{
    const struct log_place place = log_file_place(file);
    ck_assert_int_eq(remove(workplace.jsonl), 0);
    reopen();
    ok(log_file_confirm(file, &place, id, &error));
    ok(log_file_cut(file, &place, id, &cut, &error));
    ck_assert_uint_eq(log_file_place(file).lines, 4);
}
END_TEST

/* Nothing of a damaged log is lost, also where there is one already. */
START_TEST(a_damaged_log_is_kept_beside)
{
    const struct log_place place = log_file_place(file);
    for (int i = 0; i < 2; i++) {
        text_write(workplace.jsonl, "damaged\n");
        reopen();
        expect_refused(&place);
        ok(log_file_cut(file, &place, id, &cut, &error));
        ck_assert_uint_eq(log_file_place(file).lines, 4);
        expect_text(i == 0 ? "episodes.jsonl.damaged" : "episodes.jsonl.damaged-2", "damaged\n");
    }
    ck_assert_str_eq(cut_lines, "");
}
END_TEST

/* The live run's file was renamed and damaged: it keeps its new name, and the run goes on in a new file. */
START_TEST(a_renamed_file_that_is_damaged_keeps_its_name)
{
    const struct log_place place = log_file_place(file);
    rename_log("episodes.jsonl.1");
    text_write(path_to("episodes.jsonl.1"), "damaged\n");
    ok(log_file_cut(file, &place, id, &cut, &error));
    ck_assert(!log_file_is_moved(file));
    ck_assert_uint_eq(log_file_place(file).lines, 4);
    expect_text("episodes.jsonl.1", "damaged\n");
    ck_assert_int_ne(access(path_to("episodes.jsonl.damaged"), F_OK), 0);
}
END_TEST

/* From the run's beginning: the start stays, and a rotated file does not. */
START_TEST(a_run_may_begin_again)
{
    const struct log_place beginning = {0};
    struct log_place place = log_file_place(file);
    if (_i == 1) {
        rename_log("episodes.jsonl.1");
        ok(log_file_continue(file, &place, id, &error));
        append_episode(3);
    }
    ok(log_file_confirm(file, &beginning, id, &error));
    ok(log_file_cut(file, &beginning, id, &cut, &error));
    expect_text("episodes.jsonl", _i == 0 ? START : "");
    ck_assert_uint_eq(log_file_place(file).lines, _i == 0 ? 1 : 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log_file");
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, a_place_is_lines_bytes_and_a_digest);
    tcase_add_loop_test(all, a_log_confirms_the_lines_that_were_written, 0,
                        (int)(sizeof changes / sizeof changes[0]));
    tcase_add_test(all, lines_behind_the_place_are_cut);
    tcase_add_test(all, a_glued_line_is_cut);
    tcase_add_test(all, nothing_is_cut_where_nothing_stands);
    tcase_add_test(all, a_rotation_goes_on_behind_the_place);
    tcase_add_test(all, a_first_line_with_a_zero_byte_names_nothing);
    tcase_add_test(all, a_rotation_without_room_changes_nothing);
    tcase_add_test(all, a_rotation_onto_another_file_is_refused);
    tcase_add_loop_test(all, a_renamed_file_is_cut, 0, 2);
    tcase_add_test(all, a_log_that_was_moved_begins_anew);
    tcase_add_test(all, a_damaged_log_is_kept_beside);
    tcase_add_test(all, a_renamed_file_that_is_damaged_keeps_its_name);
    tcase_add_loop_test(all, a_run_may_begin_again, 0, 2);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
