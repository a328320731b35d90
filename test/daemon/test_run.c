/* The real daemon: jobs that end well, bad job files and directories, usage errors, logs. */
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMALL_JOB                                                                                            \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":2},\"rollout\":{\"steps\":50},"     \
    "\"stop\":{\"episodes\":3}}"

static char *run_file(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", workplace.run_dir, name);
    return file_read(path);
}

static bool run_has(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", workplace.run_dir, name);
    return access(path, F_OK) == 0;
}

/* Runs the job of workplace.job_path in workplace.run_dir and expects the exit code. */
static void run_job(struct process *process, int wanted)
{
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    int code = process_run(process, workplace.folder, argv, NULL, 60);
    char *err = process_err(process);
    ck_assert_msg(code == wanted, "exit %d, not %d: %s", code, wanted, err);
    free(err);
}

static void expect_text(char *text, const char *wanted)
{
    ck_assert_msg(strstr(text, wanted) != NULL, "expected \"%s\" in: %s", wanted, text);
    free(text);
}

START_TEST(a_job_runs_to_its_end_and_logs_it)
{
    struct process process;
    workplace_write_job(SMALL_JOB);
    run_job(&process, 0);
    char *log = run_file("episodes.log"), *out = process_out(&process), *json = run_file("episodes.jsonl");
    ck_assert_uint_eq(text_count(log, "\n"), 3);
    ck_assert_uint_eq(text_count(log, "Episode "), 3);
    ck_assert_uint_eq(text_count(log, "\tLast reward: "), 3);
    ck_assert_uint_eq(text_count(log, "\tAverage reward: "), 3);
    ck_assert(strncmp(out, log, strlen(log)) == 0);
    ck_assert_ptr_eq(strstr(out, "\nfinished: 3 episodes, running reward "), out + strlen(log) - 1);
    ck_assert_uint_eq(text_count(out, "\n"), text_count(log, "\n") + 1);
    ck_assert_uint_eq(text_count(json, "\n"), 5); /* a start, three episodes, an end */
    ck_assert_uint_eq(text_count(json, "\"env_steps\":100,"), 3);
    ck_assert_uint_eq(text_count(json, "\"launches\":50,"), 3);
    ck_assert_uint_eq(text_count(json, "\"wait_us_p99\":"), 3);
    ck_assert_uint_eq(text_count(json, "\"event\":\"start\""), 1);
    ck_assert_uint_eq(text_count(json, "\"event\":\"finished\""), 1);
    free(log);
    free(out);
    free(json);
    expect_text(run_file("job.json"), "\"steps\": 50");
}
END_TEST

START_TEST(set_overrides_a_key_and_every_thins_the_log)
{
    struct process process;
    workplace_write_job(SMALL_JOB);
    const char *argv[] = {daemon_path(),      "run",   workplace.job_path, "--set",
                          "/stop/episodes=5", "--set", "/log/every=2",     "--run-dir",
                          workplace.run_dir,  NULL};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 60), 0);
    char *log = run_file("episodes.log"), *json = run_file("episodes.jsonl");
    ck_assert_uint_eq(text_count(log, "\n"), 3);
    ck_assert_ptr_nonnull(strstr(log, "Episode 2\t"));
    ck_assert_ptr_nonnull(strstr(log, "Episode 4\t"));
    ck_assert_ptr_nonnull(strstr(log, "Episode 5\t")); /* the last one */
    ck_assert_uint_eq(text_count(json, "\"episode\":"), 5);
    free(log);
    free(json);
}
END_TEST

START_TEST(the_name_chooses_the_directory)
{
    struct process process;
    char path[160];
    workplace_write_job(SMALL_JOB);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--set", "/name=mine", NULL};
    struct process_options here = {.directory = workplace.folder,
                                   .environment = (const char *[]){"STATE_DIRECTORY", NULL}};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &here, 60), 0);
    snprintf(path, sizeof path, "%s/runs/mine/episodes.jsonl", workplace.folder);
    ck_assert_int_eq(access(path, F_OK), 0);
    char state[96];
    snprintf(state, sizeof state, "STATE_DIRECTORY=%s/state", workplace.folder);
    struct process_options service = {.directory = workplace.folder,
                                      .environment = (const char *[]){state, NULL}};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &service, 60), 0);
    snprintf(path, sizeof path, "%s/state/mine/episodes.jsonl", workplace.folder);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

START_TEST(a_used_directory_keeps_its_earlier_runs)
{
    struct process process;
    workplace_write_job(SMALL_JOB);
    run_job(&process, 0);
    char *first = run_file("episodes.jsonl");
    run_job(&process, 0);
    run_job(&process, 0);
    char *kept = run_file("previous-1/episodes.jsonl");
    ck_assert_str_eq(kept, first);
    free(first);
    free(kept);
    ck_assert(run_has("previous-1/episodes.log") && run_has("previous-1/job.json"));
    ck_assert(run_has("previous-2/episodes.jsonl") && !run_has("previous-3"));
    char *now = run_file("episodes.jsonl");
    ck_assert_uint_eq(text_count(now, "\"event\":\"start\""), 1);
    free(now);
}
END_TEST

START_TEST(a_solved_job_says_so)
{
    struct process process;
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"rollout\":{\"mode\":\"episode\"},"
                        "\"observers\":{\"count\":1},\"running_reward\":{\"weight\":1},\"stop\":{"
                        "\"episodes\":null,\"running_reward\":8}}");
    run_job(&process, 0);
    expect_text(run_file("episodes.log"), "Solved! Running reward is now ");
    expect_text(run_file("episodes.jsonl"), "\"event\":\"solved\"");
}
END_TEST

/* Of the shipped job's seeds, 134 collapses to episodes of 9 steps. */
START_TEST(a_job_that_its_limit_ends_says_that_it_is_not_solved)
{
    struct process process;
    char *job = file_read("config/cartpole.json");
    workplace_write_job(job);
    free(job);
    const char *argv[] = {daemon_path(),        "run",   workplace.job_path, "--run-dir",
                          workplace.run_dir,    "--set", "/seed=134",        "--set",
                          "/stop/episodes=150", "--set", "/device=cpu",      NULL};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 60), 0);
    char *out = process_out(&process);
    ck_assert_ptr_nonnull(strstr(out, "\nNot solved: the running reward is "));
    ck_assert_ptr_nonnull(strstr(out, " after 150 episodes, expected more than 475.00\n"));
    expect_text(run_file("episodes.log"), "Not solved: ");
    expect_text(run_file("episodes.jsonl"), "\"event\":\"finished\",\"episodes\":150,");
    free(out);
}
END_TEST

/* Writes a safetensors file with the one tensor "w" of one element. */
static void write_other_model(const char *path)
{
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}    ";
    const uint64_t length = sizeof header - 1;
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, length, 1, file);
    fwrite("\0\0\0\0", 4, 1, file);
    ck_assert_int_eq(fclose(file), 0);
}

/* An /init of another model is found by `check`, with the place of the key. */
START_TEST(an_init_that_does_not_fit_is_told_with_its_place)
{
    static const char *const kinds[] = {"parameter-server", "model-parallel"};
    struct process process;
    char path[128], job[512], wanted[384];
    snprintf(path, sizeof path, "%s/other.safetensors", workplace.folder);
    write_other_model(path);
    snprintf(job, sizeof job, "{\"kind\": \"%s\",\n \"init\": \"%s\"}", kinds[_i], path);
    workplace_write_job(job);
    const char *argv[] = {daemon_path(), "check", workplace.job_path, NULL};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 60), 78);
    snprintf(wanted, sizeof wanted, "%s:2:10: /init: %s does not fit the model: ", workplace.job_path, path);
    char *err = process_err(&process);
    ck_assert_msg(strncmp(err, wanted, strlen(wanted)) == 0, "%s", err);
    ck_assert_msg(text_count(err, "\n") == 1, "%s", err);
    free(err);
    run_job(&process, 78);
    ck_assert(!run_has("."));
}
END_TEST

/* A batch norm that sees one value per channel cannot train. */
START_TEST(a_batch_that_a_batch_norm_cannot_train_on_is_refused)
{
    struct process process;
    workplace_write_job(
        "{\"kind\":\"parameter-server\",\"data\":{\"size\":32},\n\"trainers\":{\"batch\":1}}");
    const char *argv[] = {daemon_path(), "check", workplace.job_path, NULL};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 60), 78);
    expect_text(process_err(&process),
                "job.json:2:21: /trainers/batch: expected at least 2 where /data/size is 32, got 1");
}
END_TEST

START_TEST(bad_job_files_are_told_with_their_places)
{
    struct process process;
    workplace_write_job("{\"kind\":\"reinforce\",\n \"observers\":{\"cuont\":0}}");
    run_job(&process, 78);
    char *err = process_err(&process);
    ck_assert_ptr_nonnull(strstr(err, "job.json:2:"));
    ck_assert_ptr_nonnull(strstr(err, "/observers/cuont"));
    ck_assert_ptr_nonnull(strstr(err, "did you mean"));
    free(err);
    ck_assert(!run_has("."));
}
END_TEST

START_TEST(check_is_silent_about_good_files_and_loud_about_bad)
{
    struct process process;
    const char *argv[] = {daemon_path(), "check", workplace.job_path, NULL};
    workplace_write_job(SMALL_JOB);
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 10), 0);
    char *out = process_out(&process), *err = process_err(&process);
    ck_assert_str_eq(out, "");
    ck_assert_str_eq(err, "");
    free(out);
    free(err);
    workplace_write_job("");
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 10), 78);
    err = process_err(&process);
    ck_assert_str_ne(err, "");
    free(err);
    workplace_write_job(
        "{\"kind\":\"reinforce\",\"device\":\"gpu\"}"); /* only a run finds out whether there is a GPU */
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 10), 0);
    unlink(workplace.job_path);
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 10), 66);
    expect_text(process_err(&process), "job.json");
}
END_TEST

/* Hides a GPU where there is one. */
static const struct process_options without_gpu = {.environment =
                                                       (const char *const[]){"CUDA_VISIBLE_DEVICES=", NULL}};

/* Runs SMALL_JOB without a GPU; the daemon's stderr. */
static char *run_on_device(const char *device, int wanted)
{
    struct process process;
    char setting[32];
    snprintf(setting, sizeof setting, "/device=%s", device);
    workplace_write_job(SMALL_JOB);
    const char *argv[] = {daemon_path(), "run",       workplace.job_path, "--set",
                          setting,       "--run-dir", workplace.run_dir,  NULL};
    int code = process_run(&process, workplace.folder, argv, &without_gpu, 60);
    char *err = process_err(&process);
    ck_assert_msg(code == wanted, "exit %d, not %d: %s", code, wanted, err);
    return err;
}

START_TEST(a_gpu_that_is_not_there_exits_69_and_says_why)
{
    char *err = run_on_device("gpu", 69);
    ck_assert_msg(strstr(err, "no GPU can be used: CUDA finds no device: ") != NULL ||
                      strstr(err, "no GPU can be used: there is no libcoalesced-cuda.so") != NULL,
                  "%s", err);
    free(err);
    char *log = run_file("episodes.log");
    ck_assert_uint_eq(text_count(log, "Episode "), 0);
    free(log);
}
END_TEST

START_TEST(auto_takes_the_cpu_then_and_says_so)
{
    char *err = run_on_device("auto", 0);
    ck_assert_msg(strstr(err, "device: the CPU; no GPU can be used: ") != NULL, "%s", err);
    ck_assert_uint_eq(text_count(err, "]: device: "), 1);
    free(err);
    err = run_on_device("cpu", 0);
    ck_assert_uint_eq(text_count(err, "]: device: "), 0);
    free(err);
}
END_TEST

START_TEST(usage_errors_exit_64)
{
    static const char *const lines[][5] = {{"fly"},
                                           {"run"},
                                           {"run", "a.json", "b.json"},
                                           {"run", "a.json", "--sett", "x"},
                                           {"run", "a.json", "--set"},
                                           {"run", "a.json", "--words", "3"},
                                           {"check", "a.json", "--run-dir", "x"},
                                           {"worker", "--role", "pilot", "--index", "0"},
                                           {NULL}};
    struct process process;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *argv[7] = {daemon_path()};
        for (size_t j = 0; j < 5; j++)
            argv[j + 1] = lines[i][j];
        ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 10), 64);
        expect_text(process_err(&process), "coalesced: ");
    }
}
END_TEST

START_TEST(an_unknown_letter_is_named_itself)
{
    struct process process;
    const char *argv[] = {daemon_path(), "check", "-xy", "a.json", NULL};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, NULL, 10), 64);
    expect_text(process_err(&process), "coalesced: unknown option -x; see coalesced --help");
}
END_TEST

/* An unknown word is a usage error; a set that this processor lacks is a device that is unavailable. */
START_TEST(the_instruction_set_is_judged_before_a_worker_starts)
{
    static const char *const unknown[] = {"COALESCED_ISA=sse9", NULL}, *const best[] = {
                                                                           "COALESCED_ISA=avx512", NULL};
    static const char *const commands[] = {"run", "check"};
    bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    struct process process;
    workplace_write_job(SMALL_JOB);
    for (size_t i = 0; i < 2; i++) {
        const char *argv[] = {daemon_path(), commands[i], workplace.job_path, NULL};
        const struct process_options options = {.environment = unknown, .directory = workplace.folder};
        ck_assert_int_eq(process_run(&process, workplace.folder, argv, &options, 10), 64);
        expect_text(process_err(&process),
                    "coalesced: COALESCED_ISA: expected avx512, avx2 or baseline, got \"sse9\"");
    }
    const char *argv[] = {daemon_path(), "check", workplace.job_path, NULL};
    const struct process_options options = {.environment = best};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &options, 10), supported ? 0 : 69);
}
END_TEST

START_TEST(help_and_version_go_to_stdout)
{
    struct process process;
    const char *help[] = {daemon_path(), "--help", NULL}, *version[] = {daemon_path(), "--version", NULL};
    ck_assert_int_eq(process_run(&process, workplace.folder, help, NULL, 10), 0);
    expect_text(process_out(&process), "coalesced run JOB.json");
    ck_assert_int_eq(process_run(&process, workplace.folder, version, NULL, 10), 0);
    expect_text(process_out(&process), "coalesced 0.");
}
END_TEST

START_TEST(output_that_is_lost_is_an_error_with_words)
{
    static const char *const lines[][2] = {{"--help"}, {"--version"}, {"schema"}, {"run", "--help"}};
    const struct process_options full = {.fifo = "/dev/full"};
    struct process process;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *argv[] = {daemon_path(), lines[i][0], lines[i][1], NULL};
        ck_assert_int_eq(process_run(&process, workplace.folder, argv, &full, 10), 74);
        expect_text(process_err(&process),
                    "coalesced: cannot write to standard output: No space left on device\n");
    }
}
END_TEST

START_TEST(a_directory_in_use_names_its_holder)
{
    struct process first, second;
    char pid[32], log[160];
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":1},"
                        "\"stop\":{\"episodes\":1000000}}");
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    process_start(&first, workplace.folder, argv, NULL);
    snprintf(log, sizeof log, "%s/episodes.jsonl", workplace.run_dir);
    ck_assert(file_wait_for(log, "\"episode\":1,", 30));
    ck_assert_int_eq(process_run(&second, workplace.folder, argv, NULL, 10), 75);
    snprintf(pid, sizeof pid, "process %d", (int)first.pid);
    expect_text(process_err(&second), pid);
    ck_assert(!run_has("previous-1"));
    kill(first.pid, SIGTERM);
    ck_assert_int_eq(process_wait(&first, 30), 0);
}
END_TEST

START_TEST(a_directory_that_cannot_be_written_is_named)
{
    struct process process;
    char closed[96], below[128];
    workplace_write_job(SMALL_JOB);
    snprintf(closed, sizeof closed, "%s/closed", workplace.folder);
    ck_assert_int_eq(mkdir(closed, 0555), 0);
    snprintf(below, sizeof below, "%s/run", closed);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", below, NULL};
    struct process_options nobody = {.unprivileged = true};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &nobody, 10), 77);
    expect_text(process_err(&process), closed);
    snprintf(below, sizeof below, "%s/below", workplace.job_path);
    ck_assert_int_ne(process_run(&process, workplace.folder, argv, NULL, 10), 0);
    expect_text(process_err(&process), workplace.job_path);
}
END_TEST

START_TEST(a_foreign_socket_folder_is_refused)
{
    struct process process;
    char runtime[96], setting[128];
    workplace_write_job(SMALL_JOB);
    snprintf(runtime, sizeof runtime, "%s/runtime", workplace.folder);
    snprintf(setting, sizeof setting, "RUNTIME_DIRECTORY=%s", runtime);
    ck_assert_int_eq(mkdir(runtime, 0755), 0);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    struct process_options open_to_all = {.environment = (const char *[]){setting, NULL}};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &open_to_all, 10), 77);
    expect_text(process_err(&process), runtime);
    ck_assert_int_eq(chmod(runtime, 0700), 0);
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &open_to_all, 60), 0);
    ck_assert_int_eq(rmdir(runtime), 0); /* nothing is left in it */
}
END_TEST

START_TEST(a_reader_who_stops_reading_stops_nothing)
{
    struct process process;
    char fifo[96];
    workplace_write_job(
        "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":1},\"rollout\":{\"steps\":2},"
        "\"stop\":{\"episodes\":3000}}");
    snprintf(fifo, sizeof fifo, "%.63s/fifo", workplace.folder);
    ck_assert_int_eq(mkfifo(fifo, 0666), 0);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    struct process_options unread = {.fifo = fifo};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &unread, 60), 0);
    char *log = run_file("episodes.log"); /* 3,000 lines are more than a pipe holds */
    ck_assert_uint_eq(text_count(log, "Episode "), 3000);
    free(log);
}
END_TEST

/* A socket folder that cannot be made is reported before any file of the earlier run is moved. */
START_TEST(a_start_that_fails_leaves_the_earlier_run_alone)
{
    struct process process;
    char runtime[128];
    workplace_write_job(SMALL_JOB);
    run_job(&process, 0);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    snprintf(runtime, sizeof runtime, "RUNTIME_DIRECTORY=%.63s/absent/below", workplace.folder);
    struct process_options nowhere = {.environment = (const char *[]){runtime, NULL}};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &nowhere, 60), 74);
    expect_text(process_err(&process), "absent/below");
    ck_assert(run_has("episodes.jsonl") && !run_has("previous-1"));
    struct process_options after_su = {
        .environment = (const char *[]){"RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR=/nowhere/at/all", NULL}};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &after_su, 60), 0);
}
END_TEST

START_TEST(closed_descriptors_are_not_mistaken_for_logs)
{
    struct process process;
    workplace_write_job(SMALL_JOB);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    struct process_options closed = {.closed = true};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &closed, 60), 0);
    char *lock = run_file("lock"), pid[32];
    snprintf(pid, sizeof pid, "%d\n", (int)process.pid);
    ck_assert_str_eq(lock, pid);
    free(lock);
}
END_TEST

/* SIGXFSZ must be ignored before the supervisor takes its signals. */
START_TEST(a_job_file_that_cannot_be_written_ends_the_start)
{
    struct process process;
    workplace_write_job(SMALL_JOB);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    struct process_options small = {.file_bytes_max = 400};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &small, 60), 74);
    expect_text(process_err(&process), "job.json: File too large");
}
END_TEST

/* Files may have 1500 bytes: a log reaches that in the middle of a line, and keeps whole lines only. */
START_TEST(a_full_disk_ends_the_job_and_tears_no_line)
{
    struct process process;
    workplace_write_job(
        "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":1},\"rollout\":{\"steps\":20},"
        "\"stop\":{\"episodes\":1000}}");
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    struct process_options small = {.file_bytes_max = 1500};
    ck_assert_int_eq(process_run(&process, workplace.folder, argv, &small, 60), 74);
    expect_text(process_err(&process), "episodes.jsonl");
    char *json = run_file("episodes.jsonl");
    size_t bytes = strlen(json);
    ck_assert_uint_gt(bytes, 0);
    ck_assert_int_eq(json[bytes - 1], '\n');
    ck_assert_uint_eq(text_count(json, "{\"e"), text_count(json, "}}\n"));
    free(json);
}
END_TEST

/* Runs a job of 30 observers in a shell that has set a limit on open files. */
static int run_with_open_files(struct process *process, const char *limit)
{
    char command[512];
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":30},"
                        "\"rollout\":{\"steps\":2},\"stop\":{\"episodes\":1}}");
    snprintf(command, sizeof command, "ulimit %s; exec '%s' run '%s' --run-dir '%s'", limit, daemon_path(),
             workplace.job_path, workplace.run_dir);
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    return process_run(process, workplace.folder, argv, NULL, 60);
}

/* The job is refused before any file is made. A soft limit alone is raised. */
START_TEST(a_job_that_needs_more_descriptors_than_it_may_have_is_refused)
{
    struct process process;
    ck_assert_int_eq(run_with_open_files(&process, "-n 30"), 78);
    expect_text(process_err(&process), "a job of 31 workers needs 93 open files in a process, and the hard "
                                       "limit (ulimit -Hn) is 30: expected ");
    ck_assert(!run_has("."));
    ck_assert_int_eq(run_with_open_files(&process, "-S -n 30"), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run");
    TCase *jobs = tcase_create("jobs");
    tcase_add_checked_fixture(jobs, workplace_open, workplace_close);
    tcase_set_timeout(jobs, 120);
    tcase_add_test(jobs, a_job_runs_to_its_end_and_logs_it);
    tcase_add_test(jobs, set_overrides_a_key_and_every_thins_the_log);
    tcase_add_test(jobs, the_name_chooses_the_directory);
    tcase_add_test(jobs, a_used_directory_keeps_its_earlier_runs);
    tcase_add_test(jobs, a_solved_job_says_so);
    tcase_add_test(jobs, a_job_that_its_limit_ends_says_that_it_is_not_solved);
    tcase_add_loop_test(jobs, an_init_that_does_not_fit_is_told_with_its_place, 0, 2);
    tcase_add_test(jobs, a_batch_that_a_batch_norm_cannot_train_on_is_refused);
    tcase_add_test(jobs, bad_job_files_are_told_with_their_places);
    tcase_add_test(jobs, check_is_silent_about_good_files_and_loud_about_bad);
    tcase_add_test(jobs, a_gpu_that_is_not_there_exits_69_and_says_why);
    tcase_add_test(jobs, auto_takes_the_cpu_then_and_says_so);
    tcase_add_test(jobs, usage_errors_exit_64);
    tcase_add_test(jobs, an_unknown_letter_is_named_itself);
    tcase_add_test(jobs, the_instruction_set_is_judged_before_a_worker_starts);
    tcase_add_test(jobs, help_and_version_go_to_stdout);
    tcase_add_test(jobs, output_that_is_lost_is_an_error_with_words);
    tcase_add_test(jobs, a_directory_in_use_names_its_holder);
    tcase_add_test(jobs, a_foreign_socket_folder_is_refused);
    tcase_add_test(jobs, a_reader_who_stops_reading_stops_nothing);
    tcase_add_test(jobs, a_start_that_fails_leaves_the_earlier_run_alone);
    tcase_add_test(jobs, closed_descriptors_are_not_mistaken_for_logs);
    tcase_add_test(jobs, a_job_file_that_cannot_be_written_ends_the_start);
    tcase_add_test(jobs, a_full_disk_ends_the_job_and_tears_no_line);
    tcase_add_test(jobs, a_job_that_needs_more_descriptors_than_it_may_have_is_refused);
    suite_add_tcase(suite, jobs);
    TCase *user = tcase_create("user"); /* test/scripts/test_scripts.sh runs this case by its name */
    tcase_add_checked_fixture(user, workplace_open, workplace_close);
    tcase_add_test(user, a_directory_that_cannot_be_written_is_named);
    suite_add_tcase(suite, user);
    return suite_run(suite);
}
