/* Jobs whose workers are killed or stopped, and go on: their logs are in the end those of an undisturbed run.
 * The kinds' own tests kill the workers that own parameters (test/worker). */
#include "kernels/base/monotime.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS_MAX = 8 };

static struct process job_process;

/* The last deaths come behind episode 13, and several episodes must be left then. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define EPISODES "24"
#else
#define EPISODES "30"
#endif
#define JOB                                                                                                  \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"seed\":5,\"observers\":{\"count\":3},"                     \
    "\"rollout\":{\"mode\":\"steps\",\"steps\":150},\"stop\":{\"episodes\":" EPISODES                        \
    ",\"running_reward\":null}}"

static void start_run(const char *run_dir, const char *const *sets)
{
    const char *argv[6 + 2 * SETS_MAX] = {daemon_path(), "run", workplace.job_path, "--run-dir", run_dir};
    size_t count = 5;
    workplace_write_job(JOB);
    for (; sets != NULL && *sets != NULL; sets++) {
        argv[count++] = "--set";
        argv[count++] = *sets;
    }
    process_start(&job_process, workplace.folder, argv, NULL);
}

static void expect_said(const char *wanted)
{
    char *err = process_err(&job_process);
    ck_assert_msg(strstr(err, wanted) != NULL, "expected \"%s\" in: %s", wanted, err);
    free(err);
}

static void expect_end(int code)
{
    const int ended = process_wait(&job_process, 60);
    char *err = process_err(&job_process);
    ck_assert_msg(ended == code, "expected exit %d, got %d: %s", code, ended, err);
    free(err);
}

/* The numbers that undisturbed runs log: of one environment to an observer, and of two. Recorded before the
 * tests. */
static char *undisturbed[2];

static const char two_environments[] = "/observers/environments=2";

static void record_undisturbed(void)
{
    for (int i = 0; i < 2; i++) {
        workplace_open();
        start_run(workplace.run_dir, (const char *[]){i == 1 ? two_environments : NULL, NULL});
        expect_end(0);
        undisturbed[i] = log_numbers(workplace.jsonl);
        ck_assert_uint_eq(text_count(undisturbed[i], "\"episode\":"), (unsigned)atoi(EPISODES));
        workplace_close();
    }
}

static void free_undisturbed(void)
{
    free(undisturbed[0]);
    free(undisturbed[1]);
}

/* The coalescer's mode and checkpoints change no number. */
static void expect_undisturbed_log(unsigned environments)
{
    char *numbers = log_numbers(workplace.jsonl);
    ck_assert_str_eq(numbers, undisturbed[environments - 1]);
    free(numbers);
}

/* Waits for the live worker with these arguments, other than `other`. */
static pid_t worker_pid(const char *arguments, pid_t other)
{
    pid_t pid = 0;
    for (unsigned tries = 0; tries < 2000; tries++) {
        if (process_children(job_process.pid, arguments, &pid, 1) == 1 && pid != other)
            return pid;
        sleep_ms(5);
    }
    ck_abort_msg("there is no process %s but %d", arguments, (int)other);
}

/* Kills all of the job's `expected` processes with these arguments at once. */
static void kill_processes(const char *arguments, size_t expected)
{
    pid_t pids[8];
    const size_t count = process_children(job_process.pid, arguments, pids, 8);
    ck_assert_uint_eq(count, expected);
    for (size_t i = 0; i < count; i++)
        kill(pids[i], SIGKILL);
}

static const char *const modes[] = {"/coalesce/mode=off", "/coalesce/mode=barrier", "/coalesce/mode=dynamic"};

/* A successor that dies too, at whatever step, changes nothing either. */
START_TEST(a_killed_observer_is_replaced)
{
    enum { KILLS = 3 };
    const char *sets[] = {modes[_i], two_environments, NULL};
    pid_t pid = 0;
    start_run(workplace.run_dir, sets);
    for (unsigned kills = 0; kills < KILLS; kills++) {
        char episode[32];
        snprintf(episode, sizeof episode, "{\"episode\":%u,", 3 + 5 * kills);
        ck_assert(file_wait_for(workplace.jsonl, episode, 30));
        pid = worker_pid("observer --index 2", pid);
        kill(pid, SIGKILL);
    }
    expect_end(0);
    expect_said("was killed by signal 9 (Killed)");
    expect_said("; incarnation 2 takes its place");
    char *json = file_read(workplace.jsonl), *err = process_err(&job_process);
    ck_assert_ptr_nonnull(strstr(json, "\n{\"event\":\"restarted\",\"role\":\"observer\",\"worker\":2,"
                                       "\"incarnation\":2,\"reason\":\"observer 2 (process "));
    ck_assert_uint_eq(text_count(json, "\"event\":\"restarted\""), KILLS);
    /* What a killed observer had under way may come behind its end, from a stranger. The last line sums up.
     */
    ck_assert_msg(text_count(err, "\n") == KILLS + 1 + text_count(err, "strangers at this worker's socket"),
                  "expected one line for each death, and their sum: %s", err);
    ck_assert_ptr_nonnull(
        strstr(err, "workers were started again 3 times in this run, observer 2 most often: 3 times\n"));
    free(json);
    free(err);
    expect_undisturbed_log(2);
}
END_TEST

/* All observers at once, in the middle of a step that some of them have sent. */
START_TEST(all_observers_are_replaced)
{
    const char *sets[] = {modes[_i], NULL};
    start_run(workplace.run_dir, sets);
    ck_assert(file_wait_for(workplace.jsonl, "{\"episode\":2,", 30));
    kill_processes("observer", 3);
    expect_end(0);
    expect_undisturbed_log(1);
}
END_TEST

START_TEST(a_stopped_observer_is_killed_and_replaced)
{
    const char *sets[] = {"/supervise/hang_s=1", NULL};
    start_run(workplace.run_dir, sets);
    ck_assert(file_wait_for(workplace.jsonl, "{\"episode\":3,", 30));
    kill(worker_pid("observer --index 3", 0), SIGSTOP);
    expect_end(0);
    expect_said("sent no heartbeat for 1 s");
    expect_said(": killed; incarnation 2 takes its place");
    expect_undisturbed_log(1);
}
END_TEST

/* All workers start again from the newest checkpoint, or from the beginning where there is none. */
START_TEST(a_killed_agent_starts_a_generation)
{
    enum { KILLS = 2 };
    static const char *const checkpoints[] = {"/checkpoint/every=null", "/checkpoint/every=2"};
    const char *sets[] = {modes[_i % 3], checkpoints[_i / 3], "/checkpoint/every_s=null", NULL};
    pid_t pid = 0;
    start_run(workplace.run_dir, sets);
    for (unsigned kills = 0; kills < KILLS; kills++) {
        char episode[32];
        snprintf(episode, sizeof episode, "{\"episode\":%u,", 5 + 8 * kills);
        ck_assert(file_wait_for(workplace.jsonl, episode, 30));
        pid = worker_pid("agent --index 0", pid);
        kill(pid, SIGKILL);
    }
    expect_end(0);
    expect_said("was killed by signal 9 (Killed); all workers start again");
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "\"event\":\"resumed\""), KILLS);
    ck_assert_ptr_nonnull(
        strstr(json, "\"generation\":3,\"role\":\"agent\",\"worker\":0,\"incarnation\":1,"));
    free(json);
    expect_undisturbed_log(1);
}
END_TEST

/* Every process of the job at once, but for the supervisor. */
START_TEST(all_workers_start_again)
{
    start_run(workplace.run_dir, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"episode\":4,", 30));
    kill_processes("worker", 4);
    expect_end(0);
    expect_undisturbed_log(1);
}
END_TEST

/* The order to stop comes when no worker lives. */
START_TEST(a_job_stops_between_two_generations)
{
    pid_t pid = 0;
    start_run(workplace.run_dir, (const char *[]){"/rollout/steps=100000", NULL});
    for (unsigned deaths = 0; deaths < 3; deaths++) { /* the fourth start comes after a second */
        pid = worker_pid("agent --index 0", pid);
        sleep_ms(100);
        kill(pid, SIGKILL);
    }
    sleep_ms(200);
    kill(job_process.pid, SIGTERM);
    expect_end(0);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"stopped\""));
    free(json);
}
END_TEST

START_TEST(five_deaths_without_progress_end_the_job)
{
    const char *sets[] = {"/rollout/steps=100000", NULL}; /* no episode ends meanwhile */
    pid_t pid = 0;
    start_run(workplace.run_dir, sets);
    for (unsigned deaths = 0; deaths < 5; deaths++) {
        pid = worker_pid("observer --index 1", pid);
        sleep_ms(100);
        kill(pid, SIGKILL);
    }
    expect_end(70);
    expect_said(
        "observer 1 died 5 times in a row without an episode or update between: observer 1 (process ");
}
END_TEST

START_TEST(restarts_can_be_switched_off)
{
    const char *sets[] = {"/supervise/restart=false", NULL};
    start_run(workplace.run_dir, sets);
    ck_assert(file_wait_for(workplace.jsonl, "{\"episode\":3,", 30));
    kill(worker_pid("observer --index 3", 0), SIGKILL);
    expect_end(70);
    expect_said("was killed by signal 9 (Killed)");
}
END_TEST

/* The order to stop comes while a successor starts: the running episode is finished with the successor. */
START_TEST(a_job_stops_while_a_worker_is_replaced)
{
    start_run(workplace.run_dir, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"episode\":3,", 30));
    kill(worker_pid("observer --index 3", 0), SIGKILL);
    sleep_ms((unsigned)_i * 10);
    kill(job_process.pid, SIGTERM);
    expect_end(0);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"stopped\""));
    free(json);
}
END_TEST

START_TEST(a_hurried_job_waits_for_no_successor)
{
    const char *sets[] = {"/rollout/steps=100000", NULL};
    pid_t pid = 0;
    start_run(workplace.run_dir, sets);
    for (unsigned deaths = 0; deaths < 3; deaths++) { /* the fourth start comes after a second */
        pid = worker_pid("observer --index 1", pid);
        sleep_ms(50);
        kill(pid, SIGKILL);
    }
    sleep_ms(100);
    kill(job_process.pid, SIGTERM);
    sleep_ms(50);
    kill(job_process.pid, SIGTERM);
    expect_end(0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("restart");
    TCase *tests = tcase_create("restart");
    tcase_set_timeout(tests, 150);
    tcase_add_unchecked_fixture(tests, record_undisturbed, free_undisturbed);
    tcase_add_checked_fixture(tests, workplace_open, workplace_close);
    tcase_add_loop_test(tests, a_killed_observer_is_replaced, 0, 3);
    tcase_add_loop_test(tests, all_observers_are_replaced, 0, 3);
    tcase_add_test(tests, a_stopped_observer_is_killed_and_replaced);
    tcase_add_loop_test(tests, a_killed_agent_starts_a_generation, 0, 6);
    tcase_add_test(tests, all_workers_start_again);
    tcase_add_test(tests, a_job_stops_between_two_generations);
    tcase_add_test(tests, five_deaths_without_progress_end_the_job);
    tcase_add_test(tests, restarts_can_be_switched_off);
    tcase_add_loop_test(tests, a_job_stops_while_a_worker_is_replaced, 0, 6);
    tcase_add_test(tests, a_hurried_job_waits_for_no_successor);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
