/* The fixture of the tests of the logs: a job, its run directory, an open log, and episodes of which every
 * byte is known. A check may replace its stdout. */
#ifndef TEST_DAEMON_LOG_RUNLOG_FIXTURE_H
#define TEST_DAEMON_LOG_RUNLOG_FIXTURE_H

#include "daemon/log/runlog.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct job job;
static struct runlog *runlog;
static struct error error;
static int dir_fd, old_stdout;
static const struct run_identity identity = {.id = {0xab, 1}, .seed = 7};

static inline void open_place(void)
{
    static const char text[] = "{\"kind\":\"reinforce\",\"seed\":7,\"observers\":{\"count\":3}}";
    char *problems = NULL;
    workplace_open();
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    free(problems);
    ck_assert_int_eq(mkdir(workplace.run_dir, 0777), 0);
    dir_fd = open(workplace.run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(dir_fd, 0);
    signal(SIGPIPE, SIG_IGN); // as the supervisor does
    fflush(stdout);
    old_stdout = dup(STDOUT_FILENO);
}

static inline void close_place(void)
{
    runlog_close(runlog);
    dup2(old_stdout, STDOUT_FILENO);
    close(old_stdout);
    close(dir_fd);
    workplace_close();
}

static inline void take_stdout(int fd)
{
    ck_assert_int_eq(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
    close(fd);
}

static inline void stdout_to_file(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/stdout", workplace.folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ck_assert_int_ge(fd, 0);
    take_stdout(fd);
}

static inline void open_log(void)
{
    enum status status =
        runlog_open(&runlog, path_of_folder(dir_fd, workplace.run_dir), &job, &identity, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static inline void close_log(void)
{
    runlog_close(runlog);
    runlog = NULL;
}

/* Numbers that are exact in binary. */
static inline struct control_episode episode_of(uint64_t number)
{
    return (struct control_episode){.episode = number,
                                    .reward = (double)number + 0.5,
                                    .running_reward = 0.25 * (double)number,
                                    .loss = -0.125,
                                    .env_steps = 40 * number,
                                    .timing = {.episode_s = 0.5,
                                               .learn_s = 0.0625,
                                               .launches = 20,
                                               .requests = 60,
                                               .batch_mean = 3,
                                               .batch_max = 4,
                                               .wait_us_p50 = 10,
                                               .wait_us_p99 = 99}};
}

/* What each worker of a model-parallel job holds. */
static const struct control_status *held;

/* The supervisor's message of a record. */
static struct control_message record_message;

static inline enum status add_episode(const struct control_episode *episode)
{
    record_message.kind = CONTROL_EPISODE;
    record_message.body.episode = *episode;
    return runlog_record(runlog, &record_message, held, &error);
}

static inline enum status add_update(const struct control_update *update)
{
    record_message.kind = CONTROL_UPDATE;
    record_message.body.update = *update;
    return runlog_record(runlog, &record_message, held, &error);
}

static inline enum status add_epoch(const struct control_epoch *epoch)
{
    record_message.kind = CONTROL_EPOCH;
    record_message.body.epoch = *epoch;
    return runlog_record(runlog, &record_message, held, &error);
}

static inline void log_episode(uint64_t number)
{
    struct control_episode record = episode_of(number);
    enum status status = add_episode(&record);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static inline void log_episodes(uint64_t first, uint64_t last)
{
    for (uint64_t number = first; number <= last; number++)
        log_episode(number);
}

/* The line of episode_of(number) in episodes.log. */
static inline void append_line(char *text, size_t bytes, uint64_t number)
{
    size_t length = strlen(text);
    snprintf(text + length, bytes - length, "Episode %u\tLast reward: %u.50\tAverage reward: %.2f\n",
             (unsigned)number, (unsigned)number, 0.25 * (double)number);
}

/* Replaces each number of a clock by '#'. All else, the other timings too, comes from the record. */
static inline void hide_clocks(char *text)
{
    static const char *const clocks[] = {"\"unix_s\":", "\"job_s\":"};
    for (unsigned i = 0; i < 2; i++)
        for (char *at = text; (at = strstr(at, clocks[i])) != NULL;) {
            at += strlen(clocks[i]);
            size_t digits = strspn(at, "0123456789.");
            ck_assert_uint_gt(digits, 4);
            at[0] = '#';
            memmove(at + 1, at + digits, strlen(at + digits) + 1);
        }
}

static inline void expect_file(const char *path, const char *wanted)
{
    char *text = file_read(path);
    hide_clocks(text);
    ck_assert_str_eq(text, wanted);
    free(text);
}

/* Expects this text in episodes.log, and on stdout (stdout_to_file) with this end behind it, whose two "RUN"s
 * are the run's path. */
static inline void expect_text(const char *wanted, const char *end)
{
    char path[128], shown[8192];
    snprintf(path, sizeof path, "%s/stdout", workplace.folder);
    expect_file(workplace.log, wanted);
    size_t length = (size_t)snprintf(shown, sizeof shown, "%s", wanted);
    for (const char *at = end; *at != '\0';) {
        const bool is_run = strncmp(at, "RUN", 3) == 0;
        length += (size_t)snprintf(shown + length, sizeof shown - length, "%.*s", is_run ? 128 : 1,
                                   is_run ? workplace.run_dir : at);
        at += is_run ? 3 : 1;
    }
    expect_file(path, shown);
}

/* Expects these episodes in the file, each once, in order, in whole lines, and nothing else. */
static inline void expect_episodes(const char *path, unsigned first, unsigned last)
{
    char *text = file_read(path), *at = text, wanted[48];
    for (unsigned number = first; number <= last; number++) {
        snprintf(wanted, sizeof wanted, "{\"episode\":%u,", number);
        ck_assert_msg(strncmp(at, wanted, strlen(wanted)) == 0, "expected %s at: %s", wanted, at);
        at = strchr(at, '\n');
        ck_assert_ptr_nonnull(at);
        ck_assert_int_eq(at[-1], '}');
        at++;
    }
    ck_assert_str_eq(at, "");
    free(text);
}

static inline TCase *add_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, open_place, close_place);
    suite_add_tcase(suite, tests);
    return tests;
}

#endif
