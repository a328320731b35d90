/* Tiny jobs of the kind parameter-server, run by the real daemon, for the tests that look at whole runs. */
#ifndef TEST_WORKER_DATA_PARALLEL_SERVER_FIXTURE_H
#define TEST_WORKER_DATA_PARALLEL_SERVER_FIXTURE_H

#include "test/process.h"
#include "test/worker/data/data_fixture.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ResNet-18 with an eighth of its channels on random images: a step of two trainers takes milliseconds. */
#define TINY_JOB                                                                                             \
    "{\"kind\":\"parameter-server\",\"device\":\"cpu\",\"model\":{\"name\":\"resnet18\",\"classes\":10,"     \
    "\"width\":8},\"trainers\":{\"count\":2,\"batch\":4,\"threads\":1},\"data\":{\"size\":16},"              \
    "\"optimizer\":{\"lr\":0.01,\"momentum\":0.9},\"stop\":{\"updates\":4},\"checkpoint\":{\"every\":2},"    \
    "\"supervise\":{\"hang_s\":30}}"

enum { SETS_MAX = 16, WAY_SETS = 8 };

static struct process daemon_process;

/* The job file, and images of the MNIST family's format: 20 to train on (two updates and a half), 9 held out.
 */
static inline void server_open(void)
{
    workplace_open();
    data_open();
    idx_write(20, 9);
    workplace_write_job(TINY_JOB);
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
}

static inline void server_close(void)
{
    data_close();
    workplace_close();
}

/* Settings that make the tiny job one of epochs; sets[0..3], ended by NULL. */
static inline void data_sets(const char *sets[5])
{
    static char path[96];
    snprintf(path, sizeof path, "/data/path=%s", data.folder);
    sets[0] = "/data/kind=idx";
    sets[1] = path;
    sets[2] = "/loss/name=cross_entropy";
    sets[3] = "/evaluation/every=1";
    sets[4] = NULL;
}

/* Starts the job in `dir` with settings (ended by NULL; may be NULL). */
static inline void server_start(const char *dir, const char *const *sets, bool resume,
                                const struct process_options *options)
{
    const char *argv[8 + 2 * SETS_MAX] = {daemon_path(), "run", workplace.job_path, "--run-dir", dir};
    int argc = 5;
    if (resume)
        argv[argc++] = "--resume";
    for (; sets != NULL && *sets != NULL; sets++) {
        ck_assert_int_lt(argc, 6 + 2 * SETS_MAX);
        argv[argc++] = "--set";
        argv[argc++] = *sets;
    }
    process_start(&daemon_process, workplace.folder, argv, options);
}

/* Waits for the end and expects the exit code; what was said, malloc'ed. */
static inline char *server_end(int wanted)
{
    int code = process_wait(&daemon_process, 100);
    char *err = process_err(&daemon_process);
    ck_assert_msg(code == wanted, "exit %d, not %d: %s", code, wanted, err);
    return err;
}

static inline void server_run(const char *dir, const char *const *sets, bool resume)
{
    server_start(dir, sets, resume, NULL);
    free(server_end(0));
}

static inline void expect_said(char *said, const char *wanted)
{
    ck_assert_msg(strstr(said, wanted) != NULL, "expected \"%s\" in: %s", wanted, said);
    free(said);
}

/* A path in the test's folder. */
static inline const char *place(char path[192], const char *dir, const char *name)
{
    snprintf(path, 192, "%s/%s%s%s", workplace.folder, dir, *name != '\0' ? "/" : "", name);
    return path;
}

static inline bool run_has(const char *dir, const char *name)
{
    char path[192];
    return access(place(path, dir, name), F_OK) == 0;
}

static inline char *run_text(const char *dir, const char *name)
{
    char path[192];
    return file_read(place(path, dir, name));
}

/* Starts the tiny job without an end in the run directory and waits until it trains. */
static inline void server_start_endless(const char *const *more)
{
    const char *sets[SETS_MAX] = {"/stop/updates=1000000000", "/checkpoint/every=1000000000"};
    for (unsigned i = 0; more != NULL && more[i] != NULL; i++)
        sets[2 + i] = more[i];
    server_start(workplace.run_dir, sets, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":3,", 90));
}

/* The highest update that the log tells of. */
static inline unsigned last_update(void)
{
    char *json = file_read(workplace.jsonl);
    unsigned last = 0;
    for (char *at = json; (at = strstr(at, "\n{\"update\":")) != NULL; at++)
        last = (unsigned)atoi(at + strlen("\n{\"update\":"));
    free(json);
    return last;
}

/* The two runs tell the same numbers in both logs. */
static inline void expect_same_logs(const char *a, const char *b)
{
    static const char *const names[] = {"episodes.jsonl", "episodes.log"};
    for (unsigned i = 0; i < 2; i++) {
        char path[192];
        char *x = log_numbers(place(path, a, names[i])), *y = log_numbers(place(path, b, names[i]));
        ck_assert_uint_gt(strlen(x), 20);
        ck_assert_str_eq(x, y);
        free(x);
        free(y);
    }
}

/* Compares files, or folders, of checkpoints, byte for byte, but for a manifest's place in the logs. */
#define DIFF_CHECKPOINTS "diff -r -I '^  \"run\": ' -I '^    \"episodes' -I '^  \"sha256\": '"

/* The two runs saved the same checkpoint. */
static inline void expect_same_checkpoint(const char *a, const char *b, unsigned update)
{
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};
    char name[64], x[192], y[192], command[544];
    for (unsigned i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "checkpoints/%08u/%s", update, names[i]);
        snprintf(command, sizeof command, DIFF_CHECKPOINTS " '%s' '%s'", place(x, a, name),
                 place(y, b, name));
        ck_assert_int_eq(system(command), 0);
    }
}

/* With each of these settings too the job of `updates` updates has the same bits in its logs and its last
 * checkpoint; with another seed it has not. The runs are "run", "way-0", "way-1" and so on. */
static inline void expect_same_numbers(const char *const (*ways)[WAY_SETS], unsigned count, unsigned updates)
{
    const char *other[] = {"/seed=544", NULL};
    char dir[192], path[192], name[16];
    server_run(workplace.run_dir, NULL, false);
    for (unsigned i = 0; i < count; i++) {
        snprintf(name, sizeof name, "way-%u", i);
        server_run(place(dir, name, ""), ways[i], false);
        expect_same_logs("run", name);
        expect_same_checkpoint("run", name, updates);
    }
    server_run(place(dir, "other", ""), other, false);
    char *a = log_numbers(workplace.jsonl), *b = log_numbers(place(path, "other", "episodes.jsonl"));
    ck_assert_str_ne(a, b);
    free(a);
    free(b);
}

/* Runs a command with arguments and, where it has some, settings (both ended by NULL); what it printed. */
static inline char *command(const char *const *arguments, const char *const *sets, int wanted)
{
    const char *argv[16 + 2 * SETS_MAX] = {daemon_path()};
    int argc = 1;
    for (; *arguments != NULL; arguments++)
        argv[argc++] = *arguments;
    for (; sets != NULL && *sets != NULL; sets++) {
        argv[argc++] = "--set";
        argv[argc++] = *sets;
    }
    process_start(&daemon_process, workplace.folder, argv, NULL);
    free(server_end(wanted));
    return process_out(&daemon_process);
}

static inline char *evaluate(const char *checkpoint, const char *const *sets, int wanted)
{
    const char *arguments[] = {"evaluate", checkpoint, workplace.job_path, NULL};
    return command(arguments, sets, wanted);
}

#endif
