/* --resume (daemon/run/resume.h): which job may go on in a run directory, and from which
 * checkpoint. */
#include "daemon/run/resume.h"
#include "daemon/run/rundir.h"
#include "test/daemon/paths.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct job job;
static struct rundir dir;
static struct error error;

static void parse_job(const char *overrides[], size_t count)
{
    static const char text[] =
        "{\"kind\":\"parameter-server\",\"stop\":{\"updates\":4},\"server\":{\"count\":2}}";
    char *problems = NULL;
    enum status status = job_parse(&job, text, strlen(text), "tiny.json", overrides, count, &problems);
    ck_assert_msg(status == STATUS_OK, "%s", problems);
    free(problems);
}

/* A run directory with a job, logs and an empty checkpoints/. */
static void open_place(void)
{
    workplace_open();
    ck_assert_int_eq(chdir(workplace.folder), 0);
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("STATE_DIRECTORY");
    error = (struct error){0};
    parse_job(NULL, 0);
    job.trainers.has_threads = true;
    job.trainers.threads = 3;
    ck_assert_int_eq(rundir_open(&dir, "run", &job, false, &error), STATUS_OK);
    rundir_close(&dir);
    text_write("run/episodes.log", "log");
    text_write("run/episodes.jsonl", "jsonl");
    ck_assert_int_eq(mkdir("run/checkpoints", 0777), 0);
    parse_job(NULL, 0);
}

static void resume_run(void)
{
    enum status status = rundir_open(&dir, "run", &job, true, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert(dir.resumed);
}

static void expect_refused(enum status status, const char *words)
{
    ck_assert_int_eq(rundir_open(&dir, "run", &job, true, &error), status);
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.text, words) != NULL, "expected \"%s\" in: %s", words, error.text);
    ck_assert(dir.fd == -1 && dir.lock_fd == -1 && dir.address[0] == '\0');
}

START_TEST(nothing_is_moved)
{
    resume_run();
    ck_assert(!path_exists("run/previous-1") && path_exists("run/checkpoints"));
    char *log = file_read("run/episodes.log"), *jsonl = file_read("run/episodes.jsonl");
    ck_assert_str_eq(log, "log");
    ck_assert_str_eq(jsonl, "jsonl");
    ck_assert(dir.fd >= 0 && dir.lock_fd >= 0);
    ck_assert_ptr_nonnull(strstr(dir.real, workplace.folder));
    free(log);
    free(jsonl);
    rundir_close(&dir);
}
END_TEST

/* The sum of gradients depends on the number of threads, so the resuming machine does not choose it again. */
START_TEST(the_threads_of_the_run_are_kept)
{
    resume_run();
    ck_assert(job.trainers.has_threads && job.trainers.threads == 3);
    char *text = file_read("run/job.json");
    ck_assert_ptr_nonnull(strstr(text, "\"threads\": 3"));
    free(text);
    rundir_close(&dir);
    const char *same[] = {"/trainers/threads=3"}, *other[] = {"/trainers/threads=4"};
    parse_job(same, 1);
    resume_run();
    rundir_close(&dir);
    parse_job(other, 1);
    expect_refused(STATUS_INVALID, "run/job.json is another job: /trainers/threads (was 3, now 4); ");
}
END_TEST

/* The changed keys are in the run's job.json from then on. */
START_TEST(what_says_nothing_about_the_numbers_may_change)
{
    const char *overrides[] = {"/stop/updates=9",     "/stop/epochs=2",     "/log/every=3",
                               "/checkpoint/every=7", "/checkpoint/keep=1", "/supervise/hang_s=33"};
    parse_job(overrides, sizeof overrides / sizeof overrides[0]);
    resume_run();
    char *text = file_read("run/job.json");
    ck_assert_ptr_nonnull(strstr(text, "\"updates\": 9"));
    ck_assert_ptr_nonnull(strstr(text, "\"hang_s\": 33"));
    ck_assert(!path_exists("run/job.json.tmp"));
    free(text);
    rundir_close(&dir);
}
END_TEST

START_TEST(every_other_key_is_the_runs)
{
    static const struct {
        const char *override, *words;
    } keys[] = {
        {"/seed=9", ": /seed (was 543, now 9); a resumed run may change /stop, "},
        {"/optimizer/lr=0.0010000000000000002", "/optimizer/lr (was 0.001, now 0.0010000000000000002)"},
        {"/server/count=1", "/server/count (was 2, now 1)"},
        {"/server/round=first 2", "/server/round (was \"all\", now \"first 2\")"},
        {"/data/mean=[0.5,0.5,0.25]", "/data/mean (was "},
        {"/name=other", "/name (was \"tiny\", now \"other\")"},
        {"/init=model.safetensors", "/init (was null, now \"model.safetensors\")"},
    };
    char *before = file_read("run/job.json");
    parse_job((const char *[]){keys[_i].override, "/server/count=1"},
              strstr(keys[_i].words, "first 2") ? 2 : 1);
    expect_refused(STATUS_INVALID, keys[_i].words);
    char *after = file_read("run/job.json");
    ck_assert_str_eq(after, before);
    free(before);
    free(after);
}
END_TEST

START_TEST(several_differences_are_told_at_once)
{
    const char *overrides[] = {"/seed=9", "/model/classes=7", "/transport=inline"};
    parse_job(overrides, 3);
    expect_refused(STATUS_INVALID, "/seed (was 543, now 9)");
    ck_assert_ptr_nonnull(strstr(error.text, ", /transport/memory (was \"shared\", now \"inline\")"));
    ck_assert_ptr_nonnull(strstr(error.text, ", /model/classes (was "));
}
END_TEST

/* With a long value, alone or among others, the sentence is still whole. */
START_TEST(a_list_that_is_too_long_is_cut)
{
    char path[1100] = "/init=";
    memset(path + strlen(path), 'p', 1000);
    const char *overrides[] = {path, "/seed=9", "/model/classes=7", "/model/width=7", "/data/size=16"};
    parse_job(overrides, _i == 0 ? 1 : 5);
    expect_refused(STATUS_INVALID, _i == 0 ? "/init (was null, now \"ppppp" : "/seed (was 543, now 9)");
    ck_assert_ptr_nonnull(strstr(error.text, "; a resumed run may change /stop, "));
}
END_TEST

/* Also where an earlier start has failed before its first line: its job does not matter. */
START_TEST(where_no_run_is_one_begins)
{
    ck_assert_int_eq(rundir_open(&dir, "nowhere/at/all", &job, true, &error), STATUS_OK);
    ck_assert(!dir.resumed && path_exists("nowhere/at/all/job.json"));
    rundir_close(&dir);
    const char *other[] = {"/seed=9"};
    parse_job(other, 1);
    ck_assert_int_eq(rundir_open(&dir, "nowhere/at/all", &job, true, &error), STATUS_OK);
    ck_assert(!dir.resumed && !path_exists("nowhere/at/all/previous-1"));
    rundir_close(&dir);
    char *text = file_read("nowhere/at/all/job.json");
    ck_assert_ptr_nonnull(strstr(text, "\"seed\": 9,"));
    free(text);
}
END_TEST

START_TEST(a_run_without_its_job_is_refused)
{
    ck_assert_int_eq(remove("run/job.json"), 0);
    expect_refused(STATUS_NOT_FOUND, "run has logs or checkpoints, but no job.json");
    ck_assert(path_exists("run/episodes.jsonl") && !path_exists("run/previous-1"));
}
END_TEST

START_TEST(a_run_whose_job_is_damaged_is_refused)
{
    text_write("run/job.json", "{\"kind\": \"parameter-server\", \"stop\"");
    expect_refused(STATUS_CORRUPT, "the job of the run cannot be read: run/job.json:1:");
}
END_TEST

START_TEST(a_run_of_another_kind_is_refused)
{
    text_write("run/job.json", "{\"kind\": \"reinforce\", \"name\": \"tiny\"}");
    expect_refused(STATUS_INVALID, "/kind (was \"reinforce\", now \"parameter-server\")");
}
END_TEST

/* The threads of its layers are the run's. /log/every must stay, for its lines are means over so many
 * updates; /log/profile need not. */
START_TEST(a_model_parallel_run_keeps_its_lines_and_threads)
{
    static const char text[] = "{\"kind\":\"model-parallel\",\"threads\":{\"lstm\":2}}";
    const char *overrides[] = {"/log/every=2", "/checkpoint/every=7", "/stop/epochs=11", "/log/profile=true"};
    char *problems = NULL;
    struct job began;
    ck_assert_int_eq(job_parse(&began, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    began.trainers.has_threads = true;
    began.trainers.threads = 3;
    for (int part = 0; part < JOB_LAYERS; part++) {
        began.threads[part].has = true;
        began.threads[part].count = (uint32_t)part + 1;
    }
    ck_assert_int_eq(rundir_open(&dir, "other", &began, false, &error), STATUS_OK);
    rundir_close(&dir);
    text_write("other/episodes.jsonl", "jsonl");
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", overrides + 1, 3, &problems),
                     STATUS_OK);
    ck_assert_int_eq(rundir_open(&dir, "other", &job, true, &error), STATUS_OK);
    rundir_close(&dir);
    ck_assert(job.trainers.threads == 3 && job.threads[JOB_LAYER_EMBEDDING].count == 1);
    ck_assert(job.threads[JOB_LAYER_LSTM].count == 2 && job.threads[JOB_LAYER_DECODER].count == 3);
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", overrides, 4, &problems), STATUS_OK);
    ck_assert_int_eq(rundir_open(&dir, "other", &job, true, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "/log/every (was 1, now 2); a resumed run may change /stop, "
                                             "/checkpoint, /supervise, /hosts, /listen and /metrics alone"));
}
END_TEST

START_TEST(a_run_that_runs_is_refused)
{
    struct rundir second;
    resume_run();
    ck_assert_int_eq(rundir_open(&second, "run", &job, true, &error), STATUS_BUSY);
    rundir_close(&dir);
}
END_TEST

START_TEST(without_a_checkpoint_it_goes_on_from_the_beginning)
{
    struct resume_point point = {.update = 7};
    struct runlog *log;
    const struct run_identity identity = resume_identity(&job);
    ck_assert_int_eq(runlog_open(&log, path_of("run"), &job, &identity, &error), STATUS_OK);
    ck_assert_int_eq(resume_go_back(&point, path_of("run"), log, NULL, &error), STATUS_OK);
    runlog_close(log);
    ck_assert(point.update == 0 && point.checkpoint[0] == '\0');
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resume");
    TCase *tests = tcase_create("resume");
    tcase_add_checked_fixture(tests, open_place, workplace_close);
    tcase_add_test(tests, nothing_is_moved);
    tcase_add_test(tests, the_threads_of_the_run_are_kept);
    tcase_add_test(tests, what_says_nothing_about_the_numbers_may_change);
    tcase_add_loop_test(tests, every_other_key_is_the_runs, 0, 7);
    tcase_add_test(tests, several_differences_are_told_at_once);
    tcase_add_loop_test(tests, a_list_that_is_too_long_is_cut, 0, 2);
    tcase_add_test(tests, where_no_run_is_one_begins);
    tcase_add_test(tests, a_run_without_its_job_is_refused);
    tcase_add_test(tests, a_run_whose_job_is_damaged_is_refused);
    tcase_add_test(tests, a_run_of_another_kind_is_refused);
    tcase_add_test(tests, a_model_parallel_run_keeps_its_lines_and_threads);
    tcase_add_test(tests, a_run_that_runs_is_refused);
    tcase_add_test(tests, without_a_checkpoint_it_goes_on_from_the_beginning);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
