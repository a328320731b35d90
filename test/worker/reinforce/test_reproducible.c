/* The same numbers, however the work is spread: seeds twice, environments over observers, the coalescer's
 * modes, instruction sets. The logs of two runs, less what stands in `timing`, are equal byte for byte. */
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS_MAX = 8 };

static char folder[64];
static unsigned runs;

static void setup(void)
{
    folder_make(folder);
    runs = 0;
}

static void teardown(void)
{
    folder_remove(folder);
}

/* Runs the job on the CPU, which alone promises all of this, with the settings (ended by NULL); returns its
 * episodes.jsonl, whole or less `timing`. */
static char *run(const char *job, const char *const *sets, const char *environment, bool with_timing)
{
    char dir[96], path[160], command[512];
    const char *argv[8 + 2 * SETS_MAX] = {daemon_path(), "run",   job,          "--run-dir",
                                          dir,           "--set", "/device=cpu"};
    int argc = 7;
    struct process process;
    snprintf(dir, sizeof dir, "%s/run-%u", folder, ++runs);
    for (; *sets != NULL; sets++) {
        ck_assert_int_lt(argc, 6 + 2 * SETS_MAX);
        argv[argc++] = "--set";
        argv[argc++] = *sets;
    }
    struct process_options options = {.environment = (const char *[]){environment, NULL}};
    int code = process_run(&process, folder, argv, environment != NULL ? &options : NULL, 100);
    char *err = process_err(&process);
    ck_assert_msg(code == 0, "exit %d: %s", code, err);
    free(err);
    snprintf(path, sizeof path, "%s/episodes.jsonl", dir);
    if (!with_timing) {
        snprintf(command, sizeof command, "jq -c 'del(.timing)' '%s' > '%s/plain' && mv '%s/plain' '%s'",
                 path, folder, folder, path);
        ck_assert_int_eq(system(command), 0);
    }
    return file_read(path);
}

/* Both must be the same, and must be the log of a job that learned something. */
static void expect_same(const char *a, const char *b, unsigned episodes)
{
    ck_assert_uint_eq(text_count(a, "\"loss\":"), episodes);
    ck_assert_str_eq(a, b);
}

static const char batch[] = "config/cartpole-batch.json", single[] = "config/cartpole.json";

START_TEST(the_same_seed_twice_and_another_seed_not)
{
    const char *sets[] = {"/observers/count=3", "/stop/episodes=3", NULL};
    const char *other[] = {"/observers/count=3", "/stop/episodes=3", "/seed=544", NULL};
    char *a = run(batch, sets, NULL, false), *b = run(batch, sets, NULL, false),
         *c = run(batch, other, NULL, false);
    expect_same(a, b, 3);
    ck_assert_str_ne(a, c);
    free(a);
    free(b);
    free(c);
    const char *single_sets[] = {"/stop/episodes=40", NULL};
    a = run(single, single_sets, NULL, false);
    b = run(single, single_sets, NULL, false);
    expect_same(a, b, 40);
    free(a);
    free(b);
}
END_TEST

/* 1 x 8, 2 x 4 and 8 x 1 environments over observers. */
static void spread(const char *job, const char *stop, unsigned episodes)
{
    const char *one[] = {"/observers/count=1", "/observers/environments=8", stop, NULL};
    const char *two[] = {"/observers/count=2", "/observers/environments=4", stop, NULL};
    const char *eight[] = {"/observers/count=8", "/observers/environments=1", stop, NULL};
    char *a = run(job, one, NULL, false), *b = run(job, two, NULL, false), *c = run(job, eight, NULL, false);
    expect_same(a, b, episodes);
    expect_same(a, c, episodes);
    free(a);
    free(b);
    free(c);
}

START_TEST(environments_spread_over_observers_batch)
{
    spread(batch, "/stop/episodes=3", 3);
}
END_TEST

START_TEST(environments_spread_over_observers_single)
{
    spread(single, "/stop/episodes=20", 20);
}
END_TEST

static void modes(const char *job, const char *stop, unsigned episodes)
{
    const char *off[] = {"/coalesce/mode=off", "/observers/count=4", stop, NULL};
    const char *barrier[] = {"/coalesce/mode=barrier", "/observers/count=4", stop, NULL};
    const char *dynamic[] = {"/coalesce/mode=dynamic", "/observers/count=4", stop, NULL};
    const char *patient[] = {"/coalesce/mode=dynamic",
                             "/coalesce/max_batch=3",
                             "/coalesce/max_delay_us=200",
                             "/observers/count=4",
                             stop,
                             NULL};
    char *a = run(job, off, NULL, false), *b = run(job, barrier, NULL, false),
         *c = run(job, dynamic, NULL, false);
    char *d = run(job, patient, NULL, false);
    expect_same(a, b, episodes);
    expect_same(a, c, episodes);
    expect_same(a, d, episodes);
    free(a);
    free(b);
    free(c);
    free(d);
}

START_TEST(off_barrier_and_dynamic_batch)
{
    modes(batch, "/stop/episodes=2", 2);
}
END_TEST

START_TEST(off_barrier_and_dynamic_single)
{
    modes(single, "/stop/episodes=20", 20);
}
END_TEST

/* oneDNN's own switch, and ours: avx2 and the baseline without fused multiply-add. */
static void instruction_sets(const char *job, const char *stop, unsigned episodes)
{
    static const char *const limits[] = {"DNNL_MAX_CPU_ISA=AVX2", "COALESCED_ISA=avx2",
                                         "COALESCED_ISA=baseline"};
    const char *sets[] = {"/observers/count=2", "/rollout/steps=100", stop, NULL};
    char *best = run(job, sets, NULL, false);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (strcmp(limits[i], "COALESCED_ISA=avx2") == 0 && !__builtin_cpu_supports("avx2")) {
            printf("skipped %s: this processor has no AVX2\n", limits[i]);
            continue;
        }
        char *limited = run(job, sets, limits[i], false);
        expect_same(best, limited, episodes);
        free(limited);
    }
    free(best);
}

START_TEST(instruction_sets_batch)
{
    instruction_sets(batch, "/stop/episodes=2", 2);
}
END_TEST

START_TEST(instruction_sets_single)
{
    instruction_sets(single, "/stop/episodes=10", 10);
}
END_TEST

START_TEST(ten_observers_make_500_launches_in_barrier_and_5000_in_off)
{
    const char *barrier[] = {"/coalesce/mode=barrier", "/observers/count=10", "/stop/episodes=2", NULL};
    const char *off[] = {"/coalesce/mode=off", "/observers/count=10", "/stop/episodes=2", NULL};
    char *log = run(batch, barrier, NULL, true);
    ck_assert_uint_eq(
        text_count(log, "\"launches\":500,\"requests\":5000,\"batch_mean\":10.000,\"batch_max\":10,"), 2);
    free(log);
    log = run(batch, off, NULL, true);
    ck_assert_uint_eq(
        text_count(log, "\"launches\":5000,\"requests\":5000,\"batch_mean\":1.000,\"batch_max\":1,"), 2);
    free(log);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reproducible");
    TCase *logs = tcase_create("logs");
    tcase_add_checked_fixture(logs, setup, teardown);
    tcase_set_timeout(logs, 200);
    tcase_add_test(logs, the_same_seed_twice_and_another_seed_not);
    tcase_add_test(logs, environments_spread_over_observers_batch);
    tcase_add_test(logs, environments_spread_over_observers_single);
    tcase_add_test(logs, off_barrier_and_dynamic_batch);
    tcase_add_test(logs, off_barrier_and_dynamic_single);
    tcase_add_test(logs, instruction_sets_batch);
    tcase_add_test(logs, instruction_sets_single);
    tcase_add_test(logs, ten_observers_make_500_launches_in_barrier_and_5000_in_off);
    suite_add_tcase(suite, logs);
    return suite_run(suite);
}
