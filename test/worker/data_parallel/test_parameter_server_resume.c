/* Runs of the kind parameter-server that are broken off and resumed: whatever stopped them, their logs and
 * their checkpoints are in the end those of a run that never stopped. */
#include "test/worker/data_parallel/job_goes_on.h"
#include "test/worker/data_parallel/server_fixture.h"

#include <glob.h>

enum { WAYS = 3 };

/* One server; several; bytes through messages. */
static const char *const ways[WAYS] = {"/server/count=1", "/server/count=3", "/transport=inline"};

static char stop[48]; /* "/stop/updates=N" */

static void stop_at(unsigned updates)
{
    snprintf(stop, sizeof stop, "/stop/updates=%u", updates);
}

/* Resumes `run` up to update `updates`, and expects it to be what `whole`, a run without a break, is. */
static void resume_and_compare(const char *const *more, unsigned updates, const char *said)
{
    const char *sets[SETS_MAX] = {stop};
    char dir[192], *err;
    for (unsigned i = 0; more != NULL && more[i] != NULL; i++)
        sets[1 + i] = more[i];
    stop_at(updates);
    server_start(workplace.run_dir, sets, true, NULL);
    err = server_end(0);
    if (said != NULL)
        ck_assert_msg(strstr(err, said) != NULL, "expected \"%s\" in: %s", said, err);
    free(err);
    server_run(place(dir, "whole", ""), sets, false);
    expect_same_logs("run", "whole");
    expect_same_checkpoint("run", "whole", updates);
}

/* An endless run whose supervisor is killed; its last update. */
static unsigned kill_a_run(const char *const *sets)
{
    const char *all[SETS_MAX] = {"/stop/updates=1000000000", "/checkpoint/every=2"};
    for (unsigned i = 0; sets != NULL && sets[i] != NULL; i++)
        all[2 + i] = sets[i];
    server_start(workplace.run_dir, all, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":5,", 90));
    kill(daemon_process.pid, SIGKILL);
    ck_assert_int_eq(process_wait(&daemon_process, 10), 128 + SIGKILL);
    sleep_ms(200); /* for those who end with it */
    return last_update();
}

/* The run's newest checkpoint's file of that name. */
static const char *newest(char path[192], const char *name)
{
    glob_t found;
    char pattern[192];
    snprintf(pattern, sizeof pattern, "%s/checkpoints/????????", workplace.run_dir);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    snprintf(path, 192, "%.150s/%s", found.gl_pathv[found.gl_pathc - 1], name);
    globfree(&found);
    return path;
}

/* Turns one byte of a file around. */
static void damage(const char *path)
{
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, -5, SEEK_END), 0);
    int byte = fgetc(file);
    ck_assert_int_eq(fseek(file, -1, SEEK_CUR), 0);
    ck_assert_int_eq(fputc(byte ^ 1, file), byte ^ 1);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(a_finished_run_goes_on)
{
    const char *sets[] = {"/stop/updates=3", NULL};
    server_run(workplace.run_dir, sets, false);
    resume_and_compare(NULL, 6, "checkpoints/00000003");
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "{\"event\":\"resumed\",\"update\":3,"), 1);
    ck_assert_uint_eq(text_count(json, "{\"event\":\"finished\""), 2);
    ck_assert(!run_has("run", "previous-1"));
    free(json);
}
END_TEST

START_TEST(a_run_with_nothing_left_to_do_stays_as_it_is)
{
    server_run(workplace.run_dir, NULL, false);
    char *before = file_read(workplace.jsonl);
    server_start(workplace.run_dir, NULL, true, NULL);
    expect_said(server_end(0), "has ended, and /stop asks for no more");
    char *after = file_read(workplace.jsonl);
    ck_assert_str_eq(after, before);
    free(before);
    free(after);
}
END_TEST

START_TEST(a_stopped_run_goes_on)
{
    const char *sets[] = {"/stop/updates=1000000000", NULL};
    server_start(workplace.run_dir, sets, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":2,", 90));
    kill(daemon_process.pid, SIGTERM);
    free(server_end(0));
    resume_and_compare(NULL, last_update() + 3, NULL);
}
END_TEST

/* The log is ahead of the checkpoint, and ends in the middle of a line. */
START_TEST(a_killed_run_goes_on)
{
    const char *more[] = {ways[_i], "/checkpoint/every=2", NULL};
    unsigned last = kill_a_run(more);
    text_append(workplace.jsonl, "{\"update\":1000,\"loss\":0.12");
    text_append(workplace.log, "Update 10");
    resume_and_compare(more, last + 3, "lines behind the checkpoint are cut: ");
}
END_TEST

/* Who lost the newest checkpoint begins at the one before; who lost all begins anew. */
START_TEST(damaged_checkpoints_are_reported_and_left_out)
{
    static const char *const words[] = {
        " is skipped: ", " is skipped: ", "has no sound checkpoint: the run starts again"};
    char path[192], command[224];
    unsigned last = kill_a_run(NULL);
    if (_i == 0)
        damage(newest(path, "model.safetensors"));
    else if (_i == 1)
        ck_assert_int_eq(truncate(newest(path, "manifest.json"), 20), 0);
    snprintf(command, sizeof command, "rm -r '%s/checkpoints'", workplace.run_dir);
    if (_i == 2)
        ck_assert_int_eq(system(command), 0);
    resume_and_compare(NULL, last + 2, words[_i]);
}
END_TEST

/* In the middle of an epoch: its loss is the mean over all of its updates, those before the break too. */
START_TEST(epochs_go_on_in_their_middle)
{
    const char *sets[SETS_MAX];
    data_sets(sets);
    sets[4] = "/checkpoint/every=1";
    sets[5] = NULL;
    unsigned last = kill_a_run(sets);
    resume_and_compare(sets, last + 4, NULL);
    char *text = file_read(workplace.log);
    ck_assert_uint_eq(text_count(text, "Epoch "),
                      (last + 4 + 1) / 2); /* of two updates, or of one at the end */
    ck_assert_uint_eq(text_count(text, "Accuracy: "), (last + 4 + 1) / 2);
    free(text);
}
END_TEST

START_TEST(a_finished_run_gets_a_later_end)
{
    const char *sets[SETS_MAX];
    data_sets(sets);
    expect_later_end(sets, 2);
}
END_TEST

START_TEST(a_run_gets_an_earlier_end)
{
    const char *sets[SETS_MAX];
    data_sets(sets);
    expect_earlier_end(sets, 2);
}
END_TEST

/* Segments are files too, to the limit that stands for a full disk: hence bytes through messages. */
START_TEST(a_full_disk_ends_the_job_and_spares_what_is_saved)
{
    const char *sets[] = {"/transport=inline", NULL};
    const char *more[] = {"/transport=inline", "/stop/updates=8", NULL};
    const struct process_options full = {.file_bytes_max = 100000};
    server_run(workplace.run_dir, sets, false);
    server_start(workplace.run_dir, more, true, &full);
    char *err = server_end(74);
    expect_said(err, ".tmp/");
    ck_assert(run_has("run", "checkpoints/00000004/manifest.json"));
    ck_assert(!run_has("run", "checkpoints/00000006"));
    resume_and_compare(sets, 8, "checkpoints/00000004");
}
END_TEST

START_TEST(another_job_is_refused)
{
    const char *other[] = {"/optimizer/lr=0.02", NULL};
    server_run(workplace.run_dir, NULL, false);
    char *before = file_read(workplace.jsonl);
    server_start(workplace.run_dir, other, true, NULL);
    expect_said(server_end(78), "/optimizer/lr (was 0.01, now 0.02)");
    char *after = file_read(workplace.jsonl);
    ck_assert_str_eq(after, before);
    free(before);
    free(after);
}
END_TEST

START_TEST(where_no_run_is_one_begins)
{
    char dir[192];
    server_start(workplace.run_dir, NULL, true, NULL);
    expect_said(server_end(0), "run has no run to resume: a run begins there\n");
    char *json = file_read(workplace.jsonl);
    ck_assert_int_eq(strncmp(json, "{\"event\":\"start\",", 17), 0);
    free(json);
    server_run(place(dir, "whole", ""), NULL, false);
    expect_same_logs("run", "whole");
    expect_same_checkpoint("run", "whole", 4);
    const char *argv[] = {daemon_path(), "check", workplace.job_path, "--resume", NULL};
    process_start(&daemon_process, workplace.folder, argv, NULL);
    expect_said(server_end(64), "--resume belongs to run");
}
END_TEST

/* A fresh start in the same place moves the checkpoints away with the logs. */
START_TEST(a_fresh_start_moves_the_checkpoints)
{
    server_run(workplace.run_dir, NULL, false);
    server_run(workplace.run_dir, NULL, false);
    ck_assert(run_has("run", "previous-1/checkpoints/00000004/manifest.json"));
    ck_assert(run_has("run", "checkpoints/00000004/manifest.json"));
    expect_same_checkpoint("run", "run/previous-1", 4);
}
END_TEST

START_TEST(an_unusable_folder_is_found_at_the_start)
{
    expect_unusable_checkpoints_at_the_start();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parameter_server_resume");
    TCase *resumed = tcase_create("resumed");
    tcase_add_checked_fixture(resumed, server_open, server_close);
    tcase_set_timeout(resumed, 170);
    tcase_add_test(resumed, a_finished_run_goes_on);
    tcase_add_test(resumed, a_run_with_nothing_left_to_do_stays_as_it_is);
    tcase_add_test(resumed, a_stopped_run_goes_on);
    tcase_add_loop_test(resumed, a_killed_run_goes_on, 0, WAYS);
    tcase_add_loop_test(resumed, damaged_checkpoints_are_reported_and_left_out, 0, 3);
    tcase_add_test(resumed, epochs_go_on_in_their_middle);
    tcase_add_test(resumed, a_finished_run_gets_a_later_end);
    tcase_add_test(resumed, a_run_gets_an_earlier_end);
    tcase_add_test(resumed, a_full_disk_ends_the_job_and_spares_what_is_saved);
    tcase_add_test(resumed, another_job_is_refused);
    tcase_add_test(resumed, where_no_run_is_one_begins);
    tcase_add_test(resumed, a_fresh_start_moves_the_checkpoints);
    tcase_add_test(resumed, an_unusable_folder_is_found_at_the_start);
    suite_add_tcase(suite, resumed);
    return suite_run(suite);
}
