/* A job whose workers die or hang, or that gets signals; and the datagrams to the service manager. */
#include "kernels/base/monotime.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIDS_MAX = 16 };

static struct process daemon_process;

#define ENDLESS                                                                                              \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":3},"                                \
    "\"stop\":{\"episodes\":1000000},\"supervise\":{\"hang_s\":4}}"

/* Starts an endless job and waits until it trains. */
static void start_job_with(const char *setting, const struct process_options *options)
{
    workplace_write_job(ENDLESS);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, "--set",
                          setting,       NULL};
    process_start(&daemon_process, workplace.folder, argv, options);
    ck_assert(file_wait_for(workplace.jsonl, "\"episode\":2,", 60));
}

static void start_job(const struct process_options *options)
{
    start_job_with("/supervise/restart=true", options);
}

static pid_t worker_pid(const char *arguments)
{
    pid_t pid = 0;
    ck_assert_uint_eq(process_children(daemon_process.pid, arguments, &pid, 1), 1);
    return pid;
}

static void expect_exit(unsigned limit_s, int wanted)
{
    const int code = process_wait(&daemon_process, limit_s);
    char *err = process_err(&daemon_process);
    ck_assert_msg(code == wanted, "exit %d, not %d: %s", code, wanted, err);
    free(err);
}

static void expect_said(const char *wanted)
{
    char *err = process_err(&daemon_process);
    ck_assert_msg(strstr(err, wanted) != NULL, "expected \"%s\" in: %s", wanted, err);
    free(err);
}

/* Expects that no process of the job is left, and that the log's last line is whole and the end's. */
static void expect_clean_end(const pid_t *pids, size_t count, const char *event)
{
    char wanted[64];
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(kill(pids[i], 0) != 0 && errno == ESRCH, "process %d is left", (int)pids[i]);
    char *log = file_read(workplace.jsonl), *last = strrchr(log, '{');
    snprintf(wanted, sizeof wanted, "{\"event\":\"%s\"", event);
    while (last > log && last[-1] != '\n')
        last--;
    ck_assert_msg(strncmp(last, wanted, strlen(wanted)) == 0, "the log ends with: %s", last);
    ck_assert_int_eq(log[strlen(log) - 1], '\n');
    free(log);
}

START_TEST(sigterm_finishes_the_round)
{
    pid_t pids[PIDS_MAX];
    start_job(NULL);
    size_t count = process_children(daemon_process.pid, "worker", pids, PIDS_MAX);
    ck_assert_uint_eq(count, 4);
    kill(daemon_process.pid, SIGTERM);
    expect_exit(30, 0);
    expect_said("the running round is finished first");
    expect_clean_end(pids, count, "stopped");
}
END_TEST

START_TEST(ctrl_c_reaches_everyone_and_only_the_supervisor_obeys)
{
    pid_t pids[PIDS_MAX];
    start_job(NULL);
    size_t count = process_children(daemon_process.pid, "worker", pids, PIDS_MAX);
    for (size_t i = 0; i < count; i++)
        kill(pids[i], SIGINT);
    kill(daemon_process.pid, SIGINT);
    expect_exit(30, 0);
    expect_clean_end(pids, count, "stopped");
}
END_TEST

START_TEST(a_second_signal_hurries)
{
    pid_t pids[PIDS_MAX];
    workplace_write_job(ENDLESS);
    /* A round of minutes: the job ends in time only if the round is given up. */
    const char *argv[] = {daemon_path(),           "run",   workplace.job_path,           "--set",
                          "/rollout/steps=100000", "--set", "/observers/environments=16", "--run-dir",
                          workplace.run_dir,       NULL};
    process_start(&daemon_process, workplace.folder, argv, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "start", 30));
    sleep_ms(500);
    size_t count = process_children(daemon_process.pid, "worker", pids, PIDS_MAX);
    kill(daemon_process.pid, SIGTERM);
    sleep_ms(50);
    kill(daemon_process.pid, SIGTERM);
    expect_exit(20, 0);
    expect_said("hurrying");
    expect_clean_end(pids, count, "stopped");
    char *log = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(log, "\"episode\":"), 0);
    free(log);
}
END_TEST

/* Both signals, at any moment of the start, end the job in good order. */
START_TEST(a_hurried_start_is_no_failure)
{
    workplace_write_job(ENDLESS);
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    process_start(&daemon_process, workplace.folder, argv, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "start", 30));
    sleep_ms((unsigned)_i * 2);
    kill(daemon_process.pid, SIGTERM);
    kill(daemon_process.pid, SIGINT);
    int code = process_wait(&daemon_process, 20);
    char *err = process_err(&daemon_process);
    ck_assert_msg(code == 0, "exit %d: %s", code, err);
    free(err);
}
END_TEST

/* ctrl-Z stops all processes. A worker that is continued after more than hang_s does not count as silent. */
START_TEST(a_suspended_job_goes_on)
{
    const struct process_options group = {.own_group = true};
    start_job(&group);
    kill(-daemon_process.pid, SIGSTOP);
    sleep_ms(5000);
    char *before = file_read(workplace.jsonl);
    size_t episodes = text_count(before, "\"episode\":");
    free(before);
    kill(-daemon_process.pid, SIGCONT);
    char next[64];
    snprintf(next, sizeof next, "\"episode\":%zu,", episodes + 5);
    ck_assert(file_wait_for(workplace.jsonl, next, 30));
    sleep_ms(500);
    kill(daemon_process.pid, SIGTERM);
    expect_exit(30, 0);
}
END_TEST

/* Ignored signals are inherited. Without SIGCHLD no worker would be reaped. */
START_TEST(an_inherited_ignored_sigchld_changes_nothing)
{
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"stop\":{\"episodes\":1}}");
    const char *argv[] = {"/usr/bin/env", "--ignore-signal=CHLD", daemon_path(), "run", workplace.job_path,
                          "--run-dir",    workplace.run_dir,      NULL};
    ck_assert_int_eq(process_run(&daemon_process, workplace.folder, argv, NULL, 60), 0);
}
END_TEST

/* Kills one worker and expects the job, which may not start it again, to fail with a message that names it.
 */
static void kill_and_expect(const char *arguments, int signal, const char *wanted)
{
    pid_t pids[PIDS_MAX];
    start_job_with("/supervise/restart=false", NULL);
    size_t count = process_children(daemon_process.pid, "worker", pids, PIDS_MAX);
    kill(worker_pid(arguments), signal);
    expect_exit(30, 70);
    expect_said(wanted);
    expect_clean_end(pids, count, "failed");
}

START_TEST(a_killed_observer_ends_the_job)
{
    kill_and_expect("observer --index 2", SIGKILL, "was killed by signal 9 (Killed)");
    expect_said("observer 2 (process ");
}
END_TEST

START_TEST(a_killed_agent_ends_the_job)
{
    kill_and_expect("agent --index 0", SIGABRT, "was killed by signal 6 (Aborted)");
    expect_said("agent 0 (process ");
}
END_TEST

START_TEST(a_silent_observer_is_killed)
{
    kill_and_expect("observer --index 3", SIGSTOP, "sent no heartbeat for 4 s");
    expect_said("observer 3 (process ");
}
END_TEST

START_TEST(a_silent_agent_is_killed)
{
    kill_and_expect("agent --index 0", SIGSTOP, "sent no heartbeat for 4 s");
}
END_TEST

/* As the subreaper this process becomes the orphans' parent, and can wait for each. */
START_TEST(nobody_outlives_a_killed_supervisor_by_a_second)
{
    pid_t pids[PIDS_MAX];
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    start_job(NULL);
    size_t count = process_children(daemon_process.pid, "worker", pids, PIDS_MAX);
    ck_assert_uint_eq(count, 4);
    kill(daemon_process.pid, SIGKILL);
    ck_assert_int_eq(process_wait(&daemon_process, 10), 128 + SIGKILL);
    sleep_ms(1000);
    for (size_t i = 0; i < count; i++) {
        pid_t ended = waitpid(pids[i], NULL, WNOHANG); /* 0: it lives; -1: it is not our child */
        ck_assert_msg(ended == pids[i], "worker %d: waitpid says %d", (int)pids[i], (int)ended);
    }
    /* The socket is still there; the next start removes it and moves the logs. */
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"stop\":{\"episodes\":1}}");
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    ck_assert_int_eq(process_run(&daemon_process, workplace.folder, argv, NULL, 60), 0);
}
END_TEST

/* Every episode is in exactly one of the two files, whole and in order. */
START_TEST(rotation_loses_no_line)
{
    char rotated[160];
    start_job(NULL);
    snprintf(rotated, sizeof rotated, "%s.1", workplace.jsonl);
    ck_assert_int_eq(rename(workplace.jsonl, rotated), 0);
    kill(daemon_process.pid, SIGUSR1);
    ck_assert(file_wait_for(workplace.jsonl, "\"episode\":", 30));
    kill(daemon_process.pid, SIGTERM);
    expect_exit(30, 0);
    char *old = file_read(rotated), *new = file_read(workplace.jsonl);
    char *all = malloc(strlen(old) + strlen(new) + 1);
    ck_assert_ptr_nonnull(all);
    sprintf(all, "%s%s", old, new);
    unsigned episodes = 0;
    for (char *at = all; (at = strstr(at, "{\"episode\":")) != NULL; at++) {
        episodes++;
        ck_assert_int_eq(atoi(at + strlen("{\"episode\":")), (int)episodes);
    }
    ck_assert_uint_gt(episodes, 2);
    ck_assert_uint_eq(text_count(all, "\n"), episodes + 3); /* start, continued, stopped */
    free(old);
    free(new);
    free(all);
}
END_TEST

/* A fifo has no reader: opening or writing it would block the supervisor for ever. */
START_TEST(rotation_onto_a_fifo_keeps_the_old_files)
{
    char moved[192];
    start_job(NULL);
    snprintf(moved, sizeof moved, "%.120s.1", workplace.log);
    ck_assert_int_eq(rename(workplace.log, moved), 0);
    ck_assert_int_eq(mkfifo(workplace.log, 0666), 0);
    kill(daemon_process.pid, SIGUSR1);
    ck_assert(file_wait_for(daemon_process.err_path, "expected a regular file; the lines go on", 20));
    kill(daemon_process.pid, SIGTERM);
    expect_exit(30, 0);
}
END_TEST

START_TEST(sighup_reads_the_job_again)
{
    start_job(NULL);
    workplace_write_job("{\"kind\":\"reinforce\",\"observers\":{\"count\":0}}");
    kill(daemon_process.pid, SIGHUP);
    ck_assert(file_wait_for(daemon_process.err_path, "nothing is changed", 20));
    expect_said("expected an integer in 1..1024, got 0");
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":3},"
                        "\"stop\":{\"episodes\":1000000},"
                        "\"supervise\":{\"hang_s\":4},\"log\":{\"every\":1000000}}");
    kill(daemon_process.pid, SIGHUP);
    ck_assert(file_wait_for(daemon_process.err_path, "/log is in force\n", 20));
    char next[64], *before = file_read(workplace.log), *json = file_read(workplace.jsonl);
    snprintf(next, sizeof next, "{\"episode\":%zu,", text_count(json, "{\"episode\":") + 5);
    ck_assert(file_wait_for(workplace.jsonl, next, 60));
    char *after = file_read(workplace.log);
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
    free(json);
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":2},"
                        "\"stop\":{\"episodes\":1000000}}");
    kill(daemon_process.pid, SIGHUP);
    ck_assert(file_wait_for(daemon_process.err_path, "its other changes wait for the next start", 20));
    kill(daemon_process.pid, SIGTERM);
    expect_exit(30, 0);
}
END_TEST

/* Appends the datagrams to `heard` until none comes for half a second. */
static void hear(int fd, char *heard, size_t bytes)
{
    size_t length = strlen(heard);
    ssize_t got;
    while (length + 2 < bytes && (got = recv(fd, heard + length, bytes - length - 2, 0)) > 0) {
        length += (size_t)got;
        heard[length++] = '\n';
        heard[length] = '\0';
    }
}

/* The socket of a service manager; and the setting that names it, "NOTIFY_SOCKET=PATH". */
static int open_manager(char setting[160])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_usec = 500000};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", workplace.folder);
    snprintf(setting, 160, "NOTIFY_SOCKET=%s/notify", workplace.folder);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    return fd;
}

/* systemd takes an end before READY for a failure. */
START_TEST(a_finished_job_that_is_resumed_is_ready_before_it_ends)
{
    static char heard[1 << 16];
    char setting[160];
    const int fd = open_manager(setting);
    const char *argv[] = {daemon_path(), "run",   workplace.job_path, "--run-dir", workplace.run_dir,
                          "--resume",    "--set", "/stop/episodes=2", NULL};
    struct process_options service = {.environment = (const char *[]){setting, NULL}};
    workplace_write_job(ENDLESS);
    ck_assert_int_eq(process_run(&daemon_process, workplace.folder, argv, NULL, 60), 0);
    ck_assert_int_eq(process_run(&daemon_process, workplace.folder, argv, &service, 60), 0);
    hear(fd, heard, sizeof heard);
    char *ready = strstr(heard, "READY=1\n");
    ck_assert(ready != NULL && strstr(ready, "STOPPING=1\n") != NULL);
    ck_assert_uint_eq(text_count(heard, "READY=1\n"), 1);
    close(fd);
}
END_TEST

START_TEST(a_service_manager_hears_of_start_life_and_end)
{
    char setting[160];
    static char heard[1 << 20];
    const int fd = open_manager(setting);
    struct process_options service = {
        .environment = (const char *[]){setting, "WATCHDOG_USEC=200000", "JOURNAL_STREAM=1:2", NULL}};
    start_job(&service);
    kill(daemon_process.pid, SIGTERM);
    hear(fd, heard, sizeof heard);
    expect_exit(30, 0);
    ck_assert_uint_eq(text_count(heard, "READY=1\n"), 1);
    ck_assert_ptr_nonnull(strstr(heard, "WATCHDOG=1\n"));
    ck_assert_ptr_nonnull(strstr(heard, "STATUS=episode "));
    ck_assert_ptr_nonnull(strstr(heard, "STOPPING=1\n"));
    expect_said("<6>coalesced: stopping");
    close(fd);
}
END_TEST

/* The first evaluation comes before the first record. */
START_TEST(a_service_manager_hears_of_an_evaluation)
{
    char setting[160];
    static char heard[1 << 20];
    const int fd = open_manager(setting);
    struct process_options service = {.environment = (const char *[]){setting, NULL}};
    workplace_write_job("{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":0},"
                        "\"algorithm\":{\"name\":\"ppo\"},\"evaluation\":{\"every\":1,\"episodes\":10000},"
                        "\"stop\":{\"steps\":1000000000}}");
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    process_start(&daemon_process, workplace.folder, argv, &service);
    while (strstr(heard, "/10000\n") == NULL) {
        const ssize_t got = recv(fd, heard, sizeof heard - 2, 0);
        strcpy(heard + (got > 0 ? got : 0), "\n");
    }
    ck_assert_ptr_nonnull(strstr(heard, "STATUS="));
    ck_assert_ptr_nonnull(strstr(heard, "evaluating "));
    kill(daemon_process.pid, SIGTERM);
    expect_exit(60, 0);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("supervise");
    TCase *ends = tcase_create("ends");
    tcase_add_checked_fixture(ends, workplace_open, workplace_close);
    tcase_set_timeout(ends, 120);
    tcase_add_test(ends, sigterm_finishes_the_round);
    tcase_add_test(ends, ctrl_c_reaches_everyone_and_only_the_supervisor_obeys);
    tcase_add_test(ends, a_second_signal_hurries);
    tcase_add_loop_test(ends, a_hurried_start_is_no_failure, 0, 12);
    tcase_add_test(ends, a_suspended_job_goes_on);
    tcase_add_test(ends, an_inherited_ignored_sigchld_changes_nothing);
    tcase_add_test(ends, a_killed_observer_ends_the_job);
    tcase_add_test(ends, a_killed_agent_ends_the_job);
    tcase_add_test(ends, a_silent_observer_is_killed);
    tcase_add_test(ends, a_silent_agent_is_killed);
    tcase_add_test(ends, nobody_outlives_a_killed_supervisor_by_a_second);
    tcase_add_test(ends, rotation_loses_no_line);
    tcase_add_test(ends, rotation_onto_a_fifo_keeps_the_old_files);
    tcase_add_test(ends, sighup_reads_the_job_again);
    tcase_add_test(ends, a_service_manager_hears_of_start_life_and_end);
    tcase_add_test(ends, a_service_manager_hears_of_an_evaluation);
    tcase_add_test(ends, a_finished_job_that_is_resumed_is_ready_before_it_ends);
    suite_add_tcase(suite, ends);
    return suite_run(suite);
}
