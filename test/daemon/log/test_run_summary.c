/* What a run's folder says of its run: each end, progress, damage, a long log; and which folders are runs. */
#include "daemon/log/run_history.h"
#include "daemon/log/run_summary.h"
#include "test/daemon/log/runlog_fixture.h"

#include <math.h>
#include <sys/file.h>

static struct run_summary summary;

static void read_summary(void)
{
    const enum status status = run_summary_read(&summary, workplace.run_dir, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void write_at(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void make_folder(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", workplace.folder, name);
    ck_assert_int_eq(mkdir(path, 0777), 0);
}

static void write_job_of(const char *stop)
{
    char text[256];
    snprintf(text, sizeof text, "{\"kind\":\"reinforce\",\"name\":\"pole\",\"seed\":7%s}", stop);
    write_at(workplace.run_dir, "job.json", text);
}

static void log_a_run(const char *why, const char *reason)
{
    const struct control_finished finished = {.end = CONTROL_END_STOPPED};
    stdout_to_file();
    open_log();
    ck_assert_int_eq(runlog_start(runlog, &error), STATUS_OK);
    log_episodes(1, 3);
    if (why != NULL)
        ck_assert_int_eq(runlog_finish(runlog, why, reason, &finished, held, &error), STATUS_OK);
    close_log();
}

/* As a supervisor does. */
static int hold_lock(void)
{
    char text[32];
    snprintf(text, sizeof text, "%d\n", (int)getpid());
    write_at(workplace.run_dir, "lock", text);
    const int fd = openat(dir_fd, "lock", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    return fd;
}

START_TEST(each_end_is_the_state)
{
    static const char *const states[] = {"finished", "solved", "stopped", "failed"};
    const char *state = states[_i], *reason = _i == 3 ? "agent 0 died \"5\" times" : NULL;
    write_job_of(",\"stop\":{\"episodes\":12}");
    make_folder("run/checkpoints");
    make_folder("run/checkpoints/00000003");
    log_a_run(state, reason);
    read_summary();
    ck_assert_str_eq(summary.state, state);
    ck_assert_str_eq(summary.reason, reason != NULL ? reason : "");
    ck_assert_str_eq(summary.name, "pole");
    ck_assert_str_eq(summary.kind, "reinforce");
    ck_assert_str_eq(summary.progress.unit, "episode");
    ck_assert_uint_eq(summary.progress.done, 3);
    ck_assert_uint_eq(summary.progress.total, 12);
    ck_assert_double_eq(summary.progress.value, 0.75);
    ck_assert(summary.ended_unix_s >= summary.began_unix_s && summary.began_unix_s > 1e9);
    ck_assert_uint_eq(summary.checkpoint, 3);
    ck_assert(summary.is_resumable && !summary.has_best && !summary.is_previous);
    ck_assert_int_eq(summary.pid, 0);
    ck_assert_uint_gt(summary.bytes, 0);
}
END_TEST

/* Its /stop is the one that the log says. */
START_TEST(a_run_that_is_over_cannot_be_resumed)
{
    write_job_of(",\"stop\":{\"episodes\":10,\"running_reward\":null}");
    make_folder("run/checkpoints");
    make_folder("run/checkpoints/00000003");
    log_a_run("finished", NULL);
    read_summary();
    ck_assert_str_eq(summary.state, "finished");
    ck_assert(!summary.is_resumable);
}
END_TEST

START_TEST(a_log_without_an_end_is_of_a_run_that_died)
{
    write_job_of("");
    log_a_run(NULL, NULL);
    read_summary();
    ck_assert_str_eq(summary.state, "died");
    ck_assert_str_eq(summary.reason,
                     "no line says how it ended: the process was killed, or the machine failed");
}
END_TEST

START_TEST(a_run_whose_lock_is_held_goes_on)
{
    write_job_of("");
    log_a_run("stopped", NULL);
    write_at(workplace.run_dir, "lock", "1\n");
    read_summary();
    ck_assert_str_eq(summary.state, "stopped");
    const int fd = hold_lock();
    read_summary();
    ck_assert_str_eq(summary.state, "running");
    ck_assert_int_eq(summary.pid, getpid());
    close(fd);
}
END_TEST

/* A torn last line, lines that are none, a job that is no job: what is sound counts. */
START_TEST(damage_hides_only_itself)
{
    write_at(workplace.run_dir, "job.json", "{\"kind\":");
    write_at(workplace.run_dir, "episodes.jsonl",
             "nothing\n{\"event\":\"start\",\"seed\":1,\"timing\":{\"unix_s\":1000.5}}\n"
             "{\"update\":20,\"loss\":0.5,\"losses\":[0.5],\"samples\":8,\"timing\":{\"unix_s\":1010.5,"
             "\"samples_per_s\":4}}\n[]\n{\"update\":\n\n{\"update\":30,\"loss\":0.1");
    read_summary();
    ck_assert_str_eq(summary.name, "run");
    ck_assert_str_eq(summary.kind, "parameter-server");
    ck_assert_str_eq(summary.state, "died");
    ck_assert(isnan(summary.began_unix_s));
    ck_assert_double_eq(summary.ended_unix_s, 1010.5);
    ck_assert_uint_eq(summary.progress.done, 20);
    ck_assert_double_eq(summary.progress.value, 0.5);
    write_at(workplace.run_dir, "episodes.jsonl", "");
    read_summary();
    ck_assert_ptr_null(summary.progress.unit);
    ck_assert_int_eq(unlinkat(dir_fd, "episodes.jsonl", 0), 0);
    write_at(workplace.run_dir, "lock", "1\n");
    read_summary();
    ck_assert_ptr_nonnull(strstr(summary.reason, "no episodes.jsonl"));
    ck_assert_int_eq(unlinkat(dir_fd, "lock", 0), 0); /* a job.json alone may be a project's */
    ck_assert_int_eq(run_summary_read(&summary, workplace.run_dir, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "expected a run's folder"));
}
END_TEST

/* A link in a run's folder may lead anywhere. */
START_TEST(links_are_not_followed)
{
    write_at(workplace.folder, "elsewhere", "{\"event\":\"finished\",\"timing\":{\"unix_s\":1}}\n");
    write_job_of("");
    ck_assert_int_eq(symlinkat("../elsewhere", dir_fd, "episodes.jsonl"), 0);
    ck_assert_int_ne(run_summary_read(&summary, workplace.run_dir, &error), STATUS_OK);
    ck_assert_ptr_nonnull(strstr(error.text, "episodes.jsonl"));
}
END_TEST

/* The file has a hole where millions of lines would be; reading the hole would take gigabytes. The newest
 * line is nearly as long as the longest that run_history.h keeps. */
START_TEST(a_long_log_is_read_at_its_ends)
{
    static char long_line[HISTORY_BLOCK_BYTES];
    const off_t hole = (off_t)1 << 40;
    write_job_of(",\"stop\":{\"episodes\":1000}");
    write_at(workplace.run_dir, "episodes.jsonl",
             "{\"event\":\"start\",\"seed\":1,\"timing\":{\"unix_s\":1000}}\n");
    const int fd = openat(dir_fd, "episodes.jsonl", O_WRONLY | O_CLOEXEC);
    const int length = snprintf(long_line, sizeof long_line,
                                "\n{\"episode\":900,\"running_reward\":1,\"note\":\"%04000000d\","
                                "\"timing\":{\"unix_s\":5000}}\n",
                                0);
    ck_assert_int_eq(pwrite(fd, long_line, (size_t)length, hole), length);
    close(fd);
    read_summary();
    ck_assert_uint_eq(summary.progress.done, 900);
    ck_assert_double_eq(summary.began_unix_s, 1000);
    ck_assert_double_eq(summary.ended_unix_s, 5000);
}
END_TEST

/* An epoch's updates are known by the first block; a pause before a resume is no time in which it worked. */
START_TEST(progress_follows_the_rules_of_a_run)
{
    write_at(workplace.run_dir, "job.json",
             "{\"kind\":\"parameter-server\",\"stop\":{\"epochs\":10},"
             "\"data\":{\"kind\":\"folder\",\"path\":\"/nowhere\"}}");
    write_at(workplace.run_dir, "episodes.jsonl",
             "{\"event\":\"start\",\"seed\":1,\"timing\":{\"unix_s\":1000}}\n"
             "{\"update\":10,\"loss\":0.5,\"samples\":8,\"timing\":{\"unix_s\":1001}}\n"
             "{\"epoch\":1,\"update\":10,\"timing\":{\"unix_s\":1001}}\n"
             "{\"event\":\"resumed\",\"update\":10,\"timing\":{\"unix_s\":90000}}\n"
             "{\"update\":20,\"loss\":0.5,\"samples\":8,\"timing\":{\"unix_s\":90010}}\n"
             "{\"update\":30,\"loss\":0.25,\"samples\":8,\"timing\":{\"unix_s\":90011}}\n");
    read_summary();
    ck_assert_uint_eq(summary.progress.total, 100);
    ck_assert_uint_eq(summary.progress.done, 30);
    ck_assert(isnan(summary.progress.eta_s)); /* it has ended */
    ck_assert_double_eq(summary.progress.value, 0.25);
    const int fd = hold_lock();
    read_summary();
    ck_assert_double_eq_tol(summary.progress.eta_s, 7, 1e-6);
    close(fd);
}
END_TEST

START_TEST(json_has_null_for_what_is_not_known)
{
    write_at(workplace.run_dir, "job.json", "{");
    write_at(workplace.run_dir, "lock", "1\n");
    read_summary();
    cJSON *object = run_summary_json(&summary);
    char *text = cJSON_PrintUnformatted(object);
    ck_assert_ptr_nonnull(
        strstr(text, "\"name\":\"run\",\"kind\":null,\"state\":\"died\",\"reason\":\"it has no"));
    ck_assert_ptr_nonnull(strstr(text, "\"began_unix_s\":null,\"ended_unix_s\":null"));
    ck_assert_ptr_nonnull(strstr(text,
                                 "\"checkpoint\":null,\"resumable\":false,\"best\":false,\"previous\":false,"
                                 "\"progress\":{}}"));
    cJSON_free(text);
    cJSON_Delete(object);
}
END_TEST

static void expect_path_in_json(const char *path, const char *expected)
{
    snprintf(summary.path, sizeof summary.path, "%s", path);
    cJSON *object = run_summary_json(&summary);
    ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(object, "run")->valuestring, expected);
    cJSON_Delete(object);
}

/* text_show would write the tab and the mark of direction as escapes. */
START_TEST(json_has_a_path_that_a_program_can_open)
{
    log_a_run("stopped", NULL);
    read_summary();
    expect_path_in_json("/a\tb \xe2\x80\x8f\xc3\xa9", "/a\tb \xe2\x80\x8f\xc3\xa9");
    expect_path_in_json("/a\tb\xff", "/a\\u0009b\\xff");
}
END_TEST

static void expect_folders(const char *const *wanted, size_t count, const char *folder)
{
    struct run_folders found;
    char path[PATH_MAX + 256], root[PATH_MAX];
    ck_assert_ptr_nonnull(realpath(workplace.folder, root));
    const enum status status = run_folders_find(&found, &folder, 1, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    for (size_t i = 0; i < found.count && i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", root, wanted[i]);
        ck_assert_str_eq(found.of[i], path);
    }
    ck_assert_uint_eq(found.count, count);
    run_folders_free(&found);
}

static void expect_previous(const char *path, bool is_previous)
{
    ck_assert_int_eq(run_summary_read(&summary, path, &error), STATUS_OK);
    ck_assert(summary.is_previous == is_previous);
}

/* A run below a run is none; a checkpoint is none; a link may lead in a circle. */
START_TEST(runs_are_found_to_the_depth_of_a_sweep)
{
    static const char *const folders[] = {
        "a",       "a/checkpoints", "a/checkpoints/1", "a/previous-1",
        "a/below", "sweep",         "sweep/lr=1",      "sweep/lr=1/previous-2",
        "x",       "x/y",           "x/y/deep",        "previous-7",
        "project", "project/pole"};
    static const char *const runs[] = {"a",          "a/previous-1",          "a/below",
                                       "sweep/lr=1", "sweep/lr=1/previous-2", "x/y/deep",
                                       "previous-7", "project/pole"};
    static const char *const found[] = {"a",          "a/previous-1",         "previous-7", "project/pole",
                                        "sweep/lr=1", "sweep/lr=1/previous-2"};
    char path[256];
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        make_folder(folders[i]);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", workplace.folder, runs[i]);
        write_at(path, "episodes.jsonl", "");
    }
    snprintf(path, sizeof path, "%s/project", workplace.folder);
    write_at(path, "job.json", "{}"); /* not a run: nobody has locked it */
    snprintf(path, sizeof path, "%s/circle", workplace.folder);
    ck_assert_int_eq(symlink(".", path), 0);
    expect_folders(found, 6, workplace.folder);
    expect_folders(found, 6, path);
    snprintf(path, sizeof path, "%s/a/previous-1", workplace.folder);
    expect_folders(&found[1], 1, path);
    expect_previous(path, true);
    write_at(path, "lock", "1\n"); /* someone has resumed it: it is a run in its own right */
    expect_previous(path, false);
    snprintf(path, sizeof path, "%s/previous-7", workplace.folder);
    expect_previous(path, false); /* someone has moved it here: this folder is no run's */
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_named)
{
    static const char *const nowhere = "/nowhere/runs";
    struct run_folders found;
    ck_assert_int_eq(run_folders_find(&found, &nowhere, 1, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, nowhere));
    run_folders_free(&found);
}
END_TEST

/* A best checkpoint shares its files with a numbered one. */
START_TEST(a_file_with_two_names_counts_once)
{
    static char text[300001];
    memset(text, 'x', sizeof text - 1);
    make_folder("run/a");
    make_folder("run/previous-1");
    write_at(workplace.run_dir, "a/model", text);
    const uint64_t one = run_summary_bytes(workplace.run_dir, false);
    ck_assert_uint_ge(one, sizeof text - 1);
    ck_assert_uint_eq(run_summary_bytes(workplace.run_dir, true), one);
    ck_assert_int_eq(linkat(dir_fd, "a/model", dir_fd, "best", 0), 0);
    write_at(workplace.run_dir, "previous-1/model", text);
    ck_assert_uint_eq(run_summary_bytes(workplace.run_dir, false), one);
    ck_assert_uint_eq(run_summary_bytes(workplace.run_dir, true), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_summary");
    TCase *tests = tcase_create("run_summary");
    tcase_add_checked_fixture(tests, open_place, close_place);
    tcase_add_loop_test(tests, each_end_is_the_state, 0, 4);
    tcase_add_test(tests, a_run_that_is_over_cannot_be_resumed);
    tcase_add_test(tests, a_log_without_an_end_is_of_a_run_that_died);
    tcase_add_test(tests, a_run_whose_lock_is_held_goes_on);
    tcase_add_test(tests, damage_hides_only_itself);
    tcase_add_test(tests, links_are_not_followed);
    tcase_add_test(tests, a_long_log_is_read_at_its_ends);
    tcase_add_test(tests, progress_follows_the_rules_of_a_run);
    tcase_add_test(tests, json_has_null_for_what_is_not_known);
    tcase_add_test(tests, json_has_a_path_that_a_program_can_open);
    tcase_add_test(tests, runs_are_found_to_the_depth_of_a_sweep);
    tcase_add_test(tests, a_folder_that_is_not_there_is_named);
    tcase_add_test(tests, a_file_with_two_names_counts_once);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
