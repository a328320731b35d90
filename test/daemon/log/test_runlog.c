/* The logs of a reinforce job (daemon/log/runlog.h): both files, byte for byte; renamed files and a full
 * disk. test/daemon/log/test_runlog_stdout.c tests stdout. */
#include "test/daemon/log/runlog_fixture.h"

#include <math.h>
#include <sys/resource.h>

#define EPISODE_JSON(number, reward, running, steps, rate)                                                   \
    "{\"episode\":" number ",\"reward\":" reward ",\"running_reward\":" running                              \
    ",\"loss\":-0.125,\"env_steps\":" steps                                                                  \
    ",\"timing\":{\"unix_s\":#,\"episode_s\":0.500000,\"learn_s\":0.062500,\"env_steps_per_s\":" rate        \
    ",\"launches\":20,\"requests\":60,\"batch_mean\":3.000,\"batch_max\":4,"                                 \
    "\"wait_us_p50\":10,\"wait_us_p99\":99}}\n"

/* ---- lines ---- */

static void log_a_job(uint64_t every, enum control_end end, const char *why)
{
    struct control_finished finished = {.end = end, .reward = 0.75};
    job.log.every = every;
    open_log();
    ck_assert_int_eq(runlog_start(runlog, &error), STATUS_OK);
    log_episodes(1, 3);
    ck_assert_int_eq(runlog_finish(runlog, why, NULL, &finished, held, &error), STATUS_OK);
    close_log();
}

static void append_solved(char *text, size_t bytes)
{
    size_t length = strlen(text);
    snprintf(text + length, bytes - length, "Solved! Running reward is now 0.75!\n");
}

static void expect_job_json(const char *why)
{
    char wanted[4096];
    snprintf(wanted, sizeof wanted,
             "{\"event\":\"start\",\"seed\":7,\"timing\":{\"unix_s\":#,\"run\":"
             "\"ab010000000000000000000000000000\",\"pid\":%ld,\"version\":\"%s\","
             "\"observers\":3,\"environments\":1}}\n%s%s%s"
             "{\"event\":\"%s\",\"episodes\":3,\"running_reward\":0.75%s,"
             "\"timing\":{\"unix_s\":#,\"job_s\":#}}\n",
             (long)getpid(), COALESCED_VERSION, EPISODE_JSON("1", "1.5", "0.25", "40", "80.0"),
             EPISODE_JSON("2", "2.5", "0.5", "80", "160.0"), EPISODE_JSON("3", "3.5", "0.75", "120", "240.0"),
             why, strcmp(why, "stopped") != 0 ? ",\"stop\":{\"episodes\":10,\"running_reward\":null}" : "");
    expect_file(workplace.jsonl, wanted);
}

/* A solved run says so in both files and on stdout; another end is the event of the last line, and a line on
 * stdout. */
START_TEST(both_files_and_stdout_have_every_line)
{
    static const enum control_end ends[] = {CONTROL_END_SOLVED, CONTROL_END_FINISHED, CONTROL_END_STOPPED};
    static const char *const names[] = {"solved", "finished", "stopped"};
    char wanted[512] = "", end[128];
    stdout_to_file();
    log_a_job(1, ends[_i], names[_i]);
    expect_job_json(names[_i]);
    for (unsigned number = 1; number <= 3; number++)
        append_line(wanted, sizeof wanted, number);
    if (ends[_i] == CONTROL_END_SOLVED)
        append_solved(wanted, sizeof wanted);
    snprintf(end, sizeof end, "%s: 3 episodes, running reward 0.75; RUN (coalesced play RUN)\n", names[_i]);
    expect_text(wanted, end);
}
END_TEST

/* episodes.log has every second episode, episodes.jsonl each one; "Solved!" is always written. */
START_TEST(every_thins_what_people_read)
{
    char wanted[256] = "";
    stdout_to_file();
    log_a_job(2, CONTROL_END_SOLVED, "solved");
    expect_job_json("solved");
    append_line(wanted, sizeof wanted, 2);
    append_solved(wanted, sizeof wanted);
    expect_text(wanted, "solved: 3 episodes, running reward 0.75; RUN (coalesced play RUN)\n");
}
END_TEST

/* A run that was stopped before its first evaluation, and resumed with an earlier /stop, has none. */
START_TEST(a_run_without_an_evaluation_says_so)
{
    const struct control_finished finished = {.end = CONTROL_END_FINISHED, .reward = (double)NAN};
    stdout_to_file();
    job.stop.has_evaluation_reward = true;
    job.stop.evaluation_reward = 475;
    open_log();
    ck_assert_int_eq(runlog_resume(runlog, NULL, 3, 0.75, NULL, &error), STATUS_OK);
    ck_assert_int_eq(runlog_finish(runlog, "finished", NULL, &finished, held, &error), STATUS_OK);
    expect_file(workplace.log, "Not solved: there was no evaluation in 3 updates, expected one with a mean "
                               "reward of at least 475.00\n");
}
END_TEST

/* The episode that ends the job has its line, also where /log/every does not divide its number. A run that
 * goes on behind it has the line once. */
START_TEST(the_last_episode_has_a_line)
{
    const struct control_finished finished = {.end = CONTROL_END_FINISHED};
    struct control_episode last = episode_of(3);
    struct run_place place;
    char wanted[256] = "", end[128];
    last.is_last = true;
    stdout_to_file();
    job.log.every = 2;
    open_log();
    log_episodes(1, 2);
    ck_assert_int_eq(add_episode(&last), STATUS_OK);
    runlog_place(runlog, &place);
    ck_assert_int_eq(runlog_finish(runlog, "finished", NULL, &finished, held, &error), STATUS_OK);
    append_line(wanted, sizeof wanted, 2);
    append_line(wanted, sizeof wanted, 3);
    snprintf(end, sizeof end, "finished: 3 episodes, running reward 0.75; RUN (coalesced play RUN)\n");
    expect_text(wanted, end);
    close_log();
    open_log();
    ck_assert_int_eq(runlog_resume(runlog, &place, 3, 0.75, NULL, &error), STATUS_OK);
    log_episode(4);
    append_line(wanted, sizeof wanted, 4);
    expect_file(workplace.log, wanted);
}
END_TEST

/* JSON has neither NaN nor infinity: they are null. */
START_TEST(numbers_that_are_none_are_null)
{
    struct control_episode record = episode_of(1);
    struct control_finished finished = {.end = CONTROL_END_STOPPED, .reward = (double)INFINITY};
    record.reward = (double)NAN;
    record.running_reward = (double)INFINITY;
    record.loss = -(double)INFINITY;
    stdout_to_file();
    open_log();
    ck_assert_int_eq(add_episode(&record), STATUS_OK);
    ck_assert_int_eq(runlog_finish(runlog, "stopped", NULL, &finished, held, &error), STATUS_OK);
    char *text = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(
        strstr(text, "{\"episode\":1,\"reward\":null,\"running_reward\":null,\"loss\":null,"));
    ck_assert_ptr_nonnull(strstr(text, "\"episodes\":1,\"running_reward\":null,"));
    free(text);
}
END_TEST

/* A name may be anything, and a mean that is none is null. Without metrics there is no member. */
START_TEST(metrics_have_their_names)
{
    struct control_episode record = episode_of(1);
    record.metrics = (struct control_metrics){2, {{"is_success", 0.5}, {"a \"b\"\n", (double)NAN}}};
    stdout_to_file();
    open_log();
    ck_assert_int_eq(add_episode(&record), STATUS_OK);
    log_episode(2);
    char *json = file_read(workplace.jsonl), *text = file_read(workplace.log);
    ck_assert_ptr_nonnull(
        strstr(json, "\"env_steps\":40,\"metrics\":{\"is_success\":0.5,\"a \\\"b\\\"\\\\u000a\":null},"));
    ck_assert_ptr_nonnull(strstr(json, "\"env_steps\":80,\"timing\""));
    ck_assert_str_eq(
        text, "Episode 1\tLast reward: 1.50\tAverage reward: 0.25\tis_success: 0.50\ta \"b\"\\u000a: -\n"
              "Episode 2\tLast reward: 2.50\tAverage reward: 0.50\n");
    free(json);
    free(text);
}
END_TEST

/* A double that is read back is the same double. */
START_TEST(numbers_keep_all_their_bits)
{
    struct control_episode record = episode_of(1);
    record.reward = 0.1;
    record.running_reward = -5e-324;
    record.loss = 1.7976931348623157e308;
    record.env_steps = UINT64_MAX;
    stdout_to_file();
    open_log();
    ck_assert_int_eq(add_episode(&record), STATUS_OK);
    char *text = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(text, "\"reward\":0.10000000000000001,"));
    ck_assert_ptr_nonnull(strstr(text, "\"running_reward\":-4.9406564584124654e-324,"));
    ck_assert_ptr_nonnull(strstr(text, "\"loss\":1.7976931348623157e+308,"));
    ck_assert_ptr_nonnull(strstr(text, "\"env_steps\":18446744073709551615,"));
    free(text);
}
END_TEST

/* ---- files ---- */

START_TEST(lines_go_behind_what_is_there)
{
    char wanted[256] = "earlier\n";
    text_write(workplace.log, "earlier\n");
    stdout_to_file();
    open_log();
    log_episode(1);
    append_line(wanted, sizeof wanted, 1);
    expect_file(workplace.log, wanted);
    /* After somebody empties the file the next line is its first, with no hole before it. */
    ck_assert_int_eq(truncate(workplace.log, 0), 0);
    log_episode(2);
    wanted[0] = '\0';
    append_line(wanted, sizeof wanted, 2);
    expect_file(workplace.log, wanted);
}
END_TEST

/* SIGUSR1 comes after a rename: the lines behind the checkpoint's place move to the new files. */
START_TEST(a_rotation_splits_no_line)
{
    char old_log[160], old_jsonl[160], wanted[256] = "";
    struct run_place place;
    snprintf(old_log, sizeof old_log, "%s.1", workplace.log);
    snprintf(old_jsonl, sizeof old_jsonl, "%s.1", workplace.jsonl);
    stdout_to_file();
    open_log();
    log_episode(1);
    ck_assert(!runlog_is_moved(runlog));
    ck_assert_int_eq(rename(workplace.log, old_log), 0);
    ck_assert_int_eq(rename(workplace.jsonl, old_jsonl), 0);
    ck_assert(runlog_is_moved(runlog));
    log_episode(2); // between the two: still in the old file
    runlog_place(runlog, &place);
    log_episode(3);
    ck_assert_int_eq(runlog_continue(runlog, &place, &error), STATUS_OK);
    ck_assert(!runlog_is_moved(runlog));
    log_episode(4);
    expect_episodes(old_jsonl, 1, 2);
    append_line(wanted, sizeof wanted, 1);
    append_line(wanted, sizeof wanted, 2);
    expect_file(old_log, wanted);
    snprintf(wanted, sizeof wanted,
             "Continued: 2 lines stand in earlier files of run ab010000000000000000000000000000\n");
    append_line(wanted, sizeof wanted, 3);
    append_line(wanted, sizeof wanted, 4);
    expect_file(workplace.log, wanted);
}
END_TEST

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* A file that cannot be made is named, and the lines go on into the old one. */
START_TEST(a_rotation_that_fails_keeps_the_old_file)
{
    const char *taken = _i == 0 ? workplace.log : workplace.jsonl;
    char old[160];
    struct run_place place;
    stdout_to_file();
    open_log();
    log_episode(1);
    snprintf(old, sizeof old, "%s.1", taken);
    ck_assert_int_eq(rename(taken, old), 0);
    ck_assert_int_eq(mkdir(taken, 0777), 0);
    unsigned before = open_descriptors();
    runlog_place(runlog, &place);
    ck_assert_int_eq(runlog_continue(runlog, &place, &error), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.text, taken));
    ck_assert_uint_eq(open_descriptors(), before);
    log_episode(2);
    expect_episodes(_i == 0 ? workplace.jsonl : old, 1, 2);
}
END_TEST

START_TEST(a_file_that_cannot_be_opened_is_named)
{
    const char *taken = _i == 0 ? workplace.log : workplace.jsonl;
    ck_assert_int_eq(mkdir(taken, 0777), 0);
    unsigned before = open_descriptors();
    ck_assert_int_eq(runlog_open(&runlog, path_of_folder(dir_fd, workplace.run_dir), &job, &identity, &error),
                     STATUS_IO);
    ck_assert_ptr_nonnull(strstr(error.text, taken));
    ck_assert_uint_eq(open_descriptors(), before);
}
END_TEST

/* No ck_assert may come between the two calls: Check writes each to a file, which has the limit too. */
static bool limit_files(rlim_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0)
        return false;
    limit.rlim_cur = bytes;
    return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

static off_t file_bytes(const char *path)
{
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_size;
}

/* One of the files has room for some bytes of a line, or none: no byte of the line stays, and once there is
 * room the next line is whole. */
START_TEST(a_full_disk_is_an_error_and_leaves_whole_lines)
{
    const char *full = _i < 2 ? workplace.jsonl : workplace.log;
    struct control_episode record = episode_of(3);
    char padding[4096];
    signal(SIGXFSZ, SIG_IGN);
    take_stdout(open("/dev/null", O_WRONLY));
    if (_i >= 2) { /* this file is full first */
        memset(padding, 'p', sizeof padding);
        padding[sizeof padding - 2] = '\n';
        padding[sizeof padding - 1] = '\0';
        text_write(workplace.log, padding);
    }
    open_log();
    log_episodes(1, 2);
    char *before = file_read(full);
    rlim_t room = (rlim_t)file_bytes(full) + (_i % 2 == 0 ? 9 : 0);
    bool limited = limit_files(room);
    enum status status = add_episode(&record);
    ck_assert(limit_files(RLIM_INFINITY) && limited);
    ck_assert_int_eq(status, STATUS_IO);
    ck_assert_msg(strstr(error.text, full) != NULL, "%s", error.text);
    char *after = file_read(full);
    ck_assert_str_eq(after, before);
    log_episode(4);
    char *later = file_read(full);
    ck_assert_int_eq(strncmp(later, before, strlen(before)), 0);
    const char *line = later + strlen(before);
    ck_assert_int_eq(strncmp(line, _i < 2 ? "{\"episode\":4," : "Episode 4\t", 10), 0);
    ck_assert_uint_eq(text_count(line, "\n"), 1);
    free(before);
    free(after);
    free(later);
}
END_TEST

START_TEST(a_full_disk_fails_the_start_and_the_end_too)
{
    struct control_finished finished = {.end = CONTROL_END_STOPPED};
    signal(SIGXFSZ, SIG_IGN);
    take_stdout(open("/dev/null", O_WRONLY));
    open_log();
    bool limited = limit_files(20);
    enum status start = runlog_start(runlog, &error);
    enum status finish = runlog_finish(runlog, "stopped", NULL, &finished, held, &error);
    ck_assert(limit_files(RLIM_INFINITY) && limited);
    ck_assert_int_eq(start, STATUS_IO);
    ck_assert_int_eq(finish, STATUS_IO);
    expect_file(workplace.jsonl, "");
}
END_TEST

/* Whatever numbers a worker reports, each line is whole and JSON. */
START_TEST(numbers_out_of_this_world_make_lines_all_the_same)
{
    static const double values[] = {1e308, -1e308, NAN, INFINITY};
    char command[256];
    struct control_episode record = episode_of(1);
    record.reward = record.running_reward = record.loss = values[_i];
    record.timing.episode_s = record.timing.learn_s = record.timing.batch_mean = values[_i];
    record.timing.wait_us_p50 = record.timing.wait_us_p99 = values[_i];
    stdout_to_file();
    open_log();
    ck_assert_int_eq(add_episode(&record), STATUS_OK);
    snprintf(command, sizeof command, "jq -e '.episode == 1 and has(\"timing\")' '%.127s' >/dev/null",
             workplace.jsonl);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("runlog");
    TCase *lines = add_case(suite, "lines");
    tcase_add_loop_test(lines, both_files_and_stdout_have_every_line, 0, 3);
    tcase_add_test(lines, every_thins_what_people_read);
    tcase_add_test(lines, the_last_episode_has_a_line);
    tcase_add_test(lines, a_run_without_an_evaluation_says_so);
    tcase_add_test(lines, numbers_that_are_none_are_null);
    tcase_add_test(lines, metrics_have_their_names);
    tcase_add_test(lines, numbers_keep_all_their_bits);
    tcase_add_loop_test(lines, numbers_out_of_this_world_make_lines_all_the_same, 0, 4);
    TCase *files = add_case(suite, "files");
    tcase_add_test(files, lines_go_behind_what_is_there);
    tcase_add_test(files, a_rotation_splits_no_line);
    tcase_add_loop_test(files, a_rotation_that_fails_keeps_the_old_file, 0, 2);
    tcase_add_loop_test(files, a_file_that_cannot_be_opened_is_named, 0, 2);
    tcase_add_loop_test(files, a_full_disk_is_an_error_and_leaves_whole_lines, 0, 4);
    tcase_add_test(files, a_full_disk_fails_the_start_and_the_end_too);
    return suite_run(suite);
}
