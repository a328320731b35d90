/* How whole jobs with servers and trainers end when a worker dies or a signal comes, whatever their kind:
 * each function starts the fixture's job without an end, and sees it end. After server_fixture.h or what
 * stands on it. */
#ifndef TEST_WORKER_DATA_PARALLEL_JOB_ENDS_H
#define TEST_WORKER_DATA_PARALLEL_JOB_ENDS_H

#include "test/worker/data_parallel/server_fixture.h"

enum { PIDS_MAX = 16 };

/* Nothing is left but the logs, whose last line says so: no process, no socket. */
static inline void expect_clean_end(const pid_t *pids, size_t count, const char *event)
{
    char wanted[64], command[192];
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(kill(pids[i], 0) != 0 && errno == ESRCH, "process %d is left", (int)pids[i]);
    snprintf(command, sizeof command, "test -z \"$(find '%s/coalesced' -type s)\"", workplace.folder);
    ck_assert_int_eq(system(command), 0);
    char *log = file_read(workplace.jsonl);
    snprintf(wanted, sizeof wanted, "\n{\"event\":\"%s\",\"updates\":%u,", event, last_update());
    char *last = strstr(log, wanted);
    ck_assert_msg(last != NULL && strchr(last + 1, '\n') == log + strlen(log) - 1, "no %s in: %s", wanted,
                  log);
    free(log);
}

/* Starts the job; the workers' processes into `pids`. Returns how many. */
static inline size_t start_and_list(const char *const *sets, pid_t pids[PIDS_MAX])
{
    server_start_endless(sets);
    return process_children(daemon_process.pid, "worker", pids, PIDS_MAX);
}

static inline pid_t process_of(const char *worker)
{
    pid_t pid;
    ck_assert_uint_eq(process_children(daemon_process.pid, worker, &pid, 1), 1);
    return pid;
}

/* One of four workers, "pserver --index 0", is killed, and may not start again. */
static inline void expect_death_ends(const char *const *sets, const char *worker)
{
    const char *all[SETS_MAX] = {"/supervise/restart=false"};
    pid_t pids[PIDS_MAX];
    for (unsigned i = 0; sets[i] != NULL; i++)
        all[1 + i] = sets[i];
    const size_t count = start_and_list(all, pids);
    ck_assert_uint_eq(count, 4);
    kill(process_of(worker), SIGKILL);
    expect_said(server_end(70), "was killed by signal 9 (Killed)");
    expect_clean_end(pids, count, "failed");
}

enum { DEATH_UPDATES = 150 };
static const char *const death_sets[] = {"/stop={\"updates\":150}", "/checkpoint/every=20"};

/* The folder of the undisturbed run, other than the fixture's, which each test has anew. */
static struct workplace undisturbed;

/* Runs, before the tests, what expect_death_changes_nothing compares with, in the open workplace. It stays
 * until undisturbed_close. */
static inline void undisturbed_record(const char *const *sets)
{
    const char *all[SETS_MAX] = {death_sets[0], death_sets[1]};
    for (unsigned i = 0; sets != NULL && sets[i] != NULL; i++)
        all[2 + i] = sets[i];
    server_run(workplace.run_dir, all, false);
    undisturbed = workplace;
}

static inline void undisturbed_close(void)
{
    workplace = undisturbed;
    workplace_close();
}

/* A worker gets a signal that kills or stops it. The job goes on, and its logs and its last checkpoint are
 * those of an undisturbed run; servers and transports change none of them. */
static inline void expect_death_changes_nothing(const char *const *sets, const char *worker, int signal,
                                                const char *said)
{
    const char *all[SETS_MAX] = {death_sets[0], death_sets[1]};
    char link[192];
    for (unsigned i = 0; sets[i] != NULL; i++)
        all[2 + i] = sets[i];
    server_start(workplace.run_dir, all, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":30,", 90));
    kill(process_of(worker), signal);
    expect_said(server_end(0), said);
    ck_assert_int_eq(symlink(undisturbed.run_dir, place(link, "whole", "")), 0);
    expect_same_logs("run", "whole");
    expect_same_checkpoint("run", "whole", DEATH_UPDATES);
}

/* What is running is finished, logged and saved. */
static inline void expect_ctrl_c_saves(const char *const *sets)
{
    pid_t pids[PIDS_MAX];
    char name[64];
    const size_t count = start_and_list(sets, pids);
    kill(daemon_process.pid, SIGINT);
    expect_said(server_end(0), "the running round is finished first");
    expect_clean_end(pids, count, "stopped");
    snprintf(name, sizeof name, "checkpoints/%08u/manifest.json", last_update());
    ck_assert_msg(run_has("run", name), "there is no %s", name);
}

/* A round that will never be full, for one of its trainers stands still: only giving it up ends the job. */
static inline void expect_second_signal_hurries(const char *const *sets, const char *trainer)
{
    pid_t pids[PIDS_MAX];
    const size_t count = start_and_list(sets, pids);
    kill(process_of(trainer), SIGSTOP);
    kill(daemon_process.pid, SIGTERM);
    sleep_ms(300);
    ck_assert_int_eq(kill(daemon_process.pid, 0), 0);
    kill(daemon_process.pid, SIGTERM);
    expect_said(server_end(0), "hurrying");
    expect_clean_end(pids, count, "stopped");
}

#endif
