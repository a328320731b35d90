/* Whole runs of the kind parameter-server: jobs that end well, the same numbers under every transport and
 * number of servers, and the end of a job when a worker dies, a signal comes, or a number is not finite.
 * Resuming: test_parameter_server_resume.c. */
#include "test/worker/data_parallel/job_ends.h"

#include <sys/prctl.h>
#include <sys/wait.h>

/* ---- jobs that end well ---- */

START_TEST(a_job_trains_logs_and_saves)
{
    const char *sets[] = {"/stop/updates=5", "/checkpoint/keep=2", NULL};
    server_run(workplace.run_dir, sets, false);
    char *json = file_read(workplace.jsonl), *text = file_read(workplace.log);
    char *out = process_out(&daemon_process);
    ck_assert(strncmp(out, text, strlen(text)) == 0);
    ck_assert_ptr_eq(strstr(out, "\nfinished: 5 updates, loss "), out + strlen(text) - 1);
    ck_assert_uint_eq(text_count(out, "\n"), text_count(text, "\n") + 1);
    ck_assert_uint_eq(text_count(text, "Update "), 5);
    ck_assert_uint_eq(text_count(text, "\n"), 5);
    ck_assert_uint_eq(text_count(json, "\n"), 7);
    ck_assert_uint_eq(text_count(json, ",\"lr\":0.01,\"samples\":8,\"late\":0,\"version\":"), 5);
    ck_assert_uint_eq(text_count(json, ",\"samples_per_s\":"), 5);
    ck_assert_ptr_nonnull(strstr(json, "\"servers\":1,\"trainers\":2,\"batch\":4,\"threads\":1}}"));
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":5,"));
    ck_assert(!run_has("run", "checkpoints/00000002")); /* two newer ones stay: one at the end */
    ck_assert(run_has("run", "checkpoints/00000004/manifest.json"));
    ck_assert(run_has("run", "checkpoints/00000005/manifest.json"));
    free(json);
    free(text);
    free(out);
}
END_TEST

/* Twice, through messages, from several servers: the logs, the model and its momentum are the same bits. */
START_TEST(the_same_numbers_however_it_is_run)
{
    static const char *const ways[][WAY_SETS] = {{"/log/every=1"},
                                                 {"/transport=inline"},
                                                 {"/server/count=2"},
                                                 {"/server/count=3", "/transport=inline"}};
    expect_same_numbers(ways, sizeof ways / sizeof ways[0], 4);
}
END_TEST

/* What the trainers found out of the held-out samples while the job ran is what the command finds afterwards
 * in its checkpoint, and in the model's file alone. */
START_TEST(epochs_are_evaluated_and_so_are_checkpoints)
{
    const char *sets[SETS_MAX], *ways[SETS_MAX];
    char wanted[256], dir[192];
    data_sets(sets);
    sets[4] = "/stop/epochs=2";
    sets[5] = "/stop/updates=null";
    sets[6] = NULL;
    server_run(workplace.run_dir, sets, false);
    memcpy(ways, sets, sizeof sets);
    ways[6] = "/transport=inline";
    ways[7] = "/server/count=2";
    ways[8] = NULL;
    server_run(place(dir, "ways", ""), ways, false);
    expect_same_logs("run", "ways");
    char *text = file_read(workplace.log);
    ck_assert_uint_eq(text_count(text, "Update "), 4);
    ck_assert_uint_eq(text_count(text, "Epoch "), 2);
    float test_loss, accuracy;
    int correct;
    const char *epoch = strstr(text, "Epoch 2\t");
    ck_assert_ptr_nonnull(epoch);
    ck_assert_int_eq(sscanf(epoch, "Epoch 2\tLoss: %*f\tTest loss: %f\tAccuracy: %f %%\t(%d of 9)",
                            &test_loss, &accuracy, &correct),
                     3);
    snprintf(wanted, sizeof wanted, "Accuracy: %.2f %% (%d of 9)\tLoss: %.4f\n", (double)accuracy, correct,
             (double)test_loss);
    static const char *const checkpoints[] = {"checkpoints/00000004",
                                              "checkpoints/00000004/model.safetensors"};
    for (unsigned i = 0; i < 2; i++) {
        char *said = evaluate(place(dir, "run", checkpoints[i]), sets, 0);
        ck_assert_str_eq(said, wanted);
        free(said);
    }
    free(text);
}
END_TEST

/* They are not trained on. */
START_TEST(a_checkpoint_is_evaluated_with_few_training_samples)
{
    const char *sets[SETS_MAX];
    char path[192];
    data_sets(sets);
    server_run(workplace.run_dir, sets, false);
    char *expected = evaluate(place(path, "run", "checkpoints/00000004"), sets, 0);
    sets[4] = "/trainers/batch=1000";
    sets[5] = NULL;
    char *said = evaluate(path, sets, 0);
    ck_assert_str_eq(said, expected);
    free(said);
    free(expected);
}
END_TEST

START_TEST(a_model_may_begin_with_another_jobs_weights)
{
    char init[224], dir[192], path[192];
    server_run(workplace.run_dir, NULL, false);
    snprintf(init, sizeof init, "/init=%s", place(path, "run", "checkpoints/00000004/model.safetensors"));
    const char *sets[] = {init, "/optimizer/momentum=0", NULL}, *fresh[] = {"/optimizer/momentum=0", NULL};
    server_run(place(dir, "second", ""), sets, false);
    server_run(place(dir, "fresh", ""), fresh, false);
    char *second = log_numbers(place(path, "second", "episodes.jsonl"));
    char *begun_anew = log_numbers(place(path, "fresh", "episodes.jsonl"));
    ck_assert_str_ne(second, begun_anew);
    free(second);
    free(begun_anew);
}
END_TEST

/* ---- what the daemon is asked in vain ---- */

START_TEST(evaluations_that_cannot_be_are_told)
{
    const char *none[] = {NULL}, *sets[5];
    char path[192];
    data_sets(sets);
    server_run(workplace.run_dir, NULL, false);
    free(evaluate(place(path, "run", "checkpoints/00000004"), none,
                  78)); /* synthetic data has no held-out part */
    free(evaluate(place(path, "run", "checkpoints/00000009"), sets, 66));
    free(evaluate(place(path, "run", "episodes.log"), sets, 65));
    const char *wider[] = {"/model/width=16", sets[0], sets[1], NULL};
    free(evaluate(place(path, "run", "checkpoints/00000004"), wider, 78));
}
END_TEST

/* Before anybody starts, and before a run directory is made. */
START_TEST(missing_files_are_told_first)
{
    static const struct {
        const char *sets[3], *words;
        int code;
    } cases[] = {
        {{"/data/kind=idx", "/data/path=/nowhere"}, "/nowhere", 66},
        {{"/init=/nowhere/model.safetensors"}, "/nowhere/model.safetensors: ", 66},
        {{"/init=/proc/self/comm"}, "/proc/self/comm: ", 65},
    };
    server_start(workplace.run_dir, cases[_i].sets, false, NULL);
    expect_said(server_end(cases[_i].code), cases[_i].words);
    ck_assert(!run_has("run", ""));
    const char *argv[8] = {daemon_path(), "check", workplace.job_path};
    for (int i = 0, argc = 3; cases[_i].sets[i] != NULL; i++) {
        argv[argc++] = "--set";
        argv[argc++] = cases[_i].sets[i];
    }
    process_start(&daemon_process, workplace.folder, argv, NULL);
    expect_said(server_end(cases[_i].code), cases[_i].words);
}
END_TEST

START_TEST(check_prints_nothing_of_a_good_job)
{
    const char *argv[] = {daemon_path(), "check", workplace.job_path, NULL};
    process_start(&daemon_process, workplace.folder, argv, NULL);
    char *err = server_end(0), *out = process_out(&daemon_process);
    ck_assert_str_eq(err, "");
    ck_assert_str_eq(out, "");
    free(err);
    free(out);
}
END_TEST

/* Names of images, which is all that a check looks at. */
static void write_names(const char *split)
{
    char name[64];
    data_make_folder(split);
    snprintf(name, sizeof name, "%s/cat", split);
    data_make_folder(name);
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "%s/cat/%d.png", split, i);
        data_write(name, "", 0);
    }
}

/* A folder need not have anything held out; that nothing is evaluated then is told, unless that was asked. */
START_TEST(evaluations_of_nothing_are_warned_of)
{
    static const char *const every[] = {"/evaluation/every=2", "/evaluation/every=null",
                                        "/evaluation/every=2"};
    char path[96], wanted[256] = "";
    snprintf(path, sizeof path, "/data/path=%s", data.folder);
    write_names("train");
    if (_i == 0)
        snprintf(
            wanted, sizeof wanted,
            "coalesced: %s has no folder test: nothing is evaluated, though /evaluation/every is 2: expected "
            "that folder, or null\n",
            data.folder);
    if (_i == 2)
        write_names("test");
    const char *argv[] = {daemon_path(), "check", workplace.job_path, "--set", "/data/kind=folder", "--set",
                          path,          "--set", every[_i],          NULL};
    process_start(&daemon_process, workplace.folder, argv, NULL);
    char *err = server_end(0);
    ck_assert_str_eq(err, wanted);
    free(err);
}
END_TEST

/* ---- jobs that end otherwise ---- */

static const char *const workers[] = {"pserver --index 0", "pserver --index 1", "trainer --index 2",
                                      "trainer --index 3"};

START_TEST(a_killed_worker_ends_a_job_without_restarts)
{
    const char *sets[] = {"/server/count=2", _i % 2 == 0 ? "/transport=shared" : "/transport=inline", NULL};
    expect_death_ends(sets, workers[_i]);
}
END_TEST

static void record_undisturbed(void)
{
    server_open();
    undisturbed_record(NULL);
    data_close();
}

START_TEST(a_killed_worker_changes_nothing)
{
    const char *sets[] = {"/server/count=2", _i < 4 ? "/transport=shared" : "/transport=inline", NULL};
    const bool owns_parameters = _i % 4 < 2;
    expect_death_changes_nothing(sets, workers[_i % 4], SIGKILL,
                                 owns_parameters
                                     ? "was killed by signal 9 (Killed); all workers start again"
                                     : "was killed by signal 9 (Killed); incarnation 2 takes its place");
}
END_TEST

START_TEST(a_silent_trainer_is_replaced)
{
    const char *sets[] = {"/supervise/hang_s=2", NULL};
    expect_death_changes_nothing(sets, "trainer --index 1", SIGSTOP,
                                 "sent no heartbeat for 2 s: killed; incarnation 2 takes its place");
}
END_TEST

START_TEST(a_silent_trainer_ends_a_job_without_restarts)
{
    const char *sets[] = {"/supervise/hang_s=2", "/supervise/restart=false", NULL};
    pid_t pids[PIDS_MAX];
    const size_t count = start_and_list(sets, pids);
    kill(process_of("trainer --index 1"), SIGSTOP);
    expect_said(server_end(70), "sent no heartbeat for 2 s: killed");
    expect_clean_end(pids, count, "failed");
}
END_TEST

START_TEST(ctrl_c_finishes_the_round_and_saves)
{
    const char *sets[] = {_i == 0 ? "/server/count=1" : "/server/count=2",
                          _i < 2 ? "/transport=shared" : "/transport=inline", NULL};
    expect_ctrl_c_saves(sets);
}
END_TEST

/* What the machine decided when the run began (the trainers' threads) is no change of the file. */
START_TEST(sighup_reads_the_job_again)
{
    const char *sets[] = {"/trainers/threads=null", NULL};
    server_start_endless(sets);
    kill(daemon_process.pid, SIGHUP);
    ck_assert(file_wait_for(daemon_process.err_path, "/log is in force\n", 20));
    kill(daemon_process.pid, SIGTERM);
    free(server_end(0));
}
END_TEST

START_TEST(a_second_signal_hurries)
{
    expect_second_signal_hurries(NULL, "trainer --index 2");
}
END_TEST

START_TEST(nobody_outlives_a_killed_supervisor_by_a_second)
{
    const char *sets[] = {"/server/count=2", NULL};
    pid_t pids[PIDS_MAX];
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    server_start_endless(sets);
    size_t count = process_children(daemon_process.pid, "worker", pids, PIDS_MAX);
    ck_assert_uint_eq(count, 4);
    kill(daemon_process.pid, SIGKILL);
    ck_assert_int_eq(process_wait(&daemon_process, 10), 128 + SIGKILL);
    sleep_ms(1000);
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(waitpid(pids[i], NULL, WNOHANG) == pids[i], "worker %d lives", (int)pids[i]);
}
END_TEST

/* A loss that is no number ends the job; what was good before it stays. */
START_TEST(a_loss_that_is_no_number_ends_the_job)
{
    const char *sets[] = {"/optimizer/lr=10", "/optimizer/momentum=0.99", "/stop/updates=100000",
                          "/checkpoint/every=1", NULL};
    char name[64];
    server_start(workplace.run_dir, sets, false, NULL);
    free(server_end(70));
    snprintf(name, sizeof name, "checkpoints/%08u/manifest.json", last_update());
    ck_assert(last_update() > 0 && run_has("run", name));
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"failed\""));
    ck_assert_ptr_null(strstr(json, "\"loss\":null"));
    free(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parameter_server");
    TCase *runs = tcase_create("runs");
    tcase_add_unchecked_fixture(runs, record_undisturbed, undisturbed_close);
    tcase_add_checked_fixture(runs, server_open, server_close);
    tcase_set_timeout(runs, 170);
    tcase_add_test(runs, a_job_trains_logs_and_saves);
    tcase_add_test(runs, the_same_numbers_however_it_is_run);
    tcase_add_test(runs, epochs_are_evaluated_and_so_are_checkpoints);
    tcase_add_test(runs, a_checkpoint_is_evaluated_with_few_training_samples);
    tcase_add_test(runs, a_model_may_begin_with_another_jobs_weights);
    tcase_add_test(runs, evaluations_that_cannot_be_are_told);
    tcase_add_loop_test(runs, missing_files_are_told_first, 0, 3);
    tcase_add_test(runs, check_prints_nothing_of_a_good_job);
    tcase_add_loop_test(runs, evaluations_of_nothing_are_warned_of, 0, 3);
    tcase_add_loop_test(runs, a_killed_worker_ends_a_job_without_restarts, 0, 4);
    tcase_add_loop_test(runs, a_killed_worker_changes_nothing, 0, 8);
    tcase_add_test(runs, a_silent_trainer_is_replaced);
    tcase_add_test(runs, a_silent_trainer_ends_a_job_without_restarts);
    tcase_add_loop_test(runs, ctrl_c_finishes_the_round_and_saves, 0, 3);
    tcase_add_test(runs, sighup_reads_the_job_again);
    tcase_add_test(runs, a_second_signal_hurries);
    tcase_add_test(runs, nobody_outlives_a_killed_supervisor_by_a_second);
    tcase_add_test(runs, a_loss_that_is_no_number_ends_the_job);
    suite_add_tcase(suite, runs);
    return suite_run(suite);
}
