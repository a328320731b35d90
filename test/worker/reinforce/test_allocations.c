/* In steady state our own code allocates no memory: a long job's processes make exactly as many
 * allocations as a short one's. They are counted from outside, by a preloaded library (test/preload). */
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[64];

static void setup(void)
{
    folder_make(folder);
}

static void teardown(void)
{
    folder_remove(folder);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Runs ten observers for `episodes` and writes, sorted, each worker's command line and its count. */
static char *count(const char *job, const char *mode, const char *episodes)
{
    char dir[96], counts_path[96], counts[128], preload[4200];
    static unsigned runs;
    struct process process;
    snprintf(dir, sizeof dir, "%s/run-%u", folder, ++runs);
    snprintf(counts_path, sizeof counts_path, "%s/counts-%u", folder, runs);
    snprintf(counts, sizeof counts, "COUNT_ALLOCATIONS_FILE=%s", counts_path);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", getenv("COUNT_ALLOCATIONS_SO"));
    const char *argv[] = {daemon_path(), "run",       job,     "--set",  "/observers/count=10",
                          "--set",       mode,        "--set", episodes, "--set",
                          "/device=cpu", "--run-dir", dir,     "--set",  "/checkpoint/every_s=null",
                          NULL};
    struct process_options options = {.environment = (const char *[]){counts, preload, NULL}};
    ck_assert_int_eq(process_run(&process, folder, argv, &options, 60), 0);
    char *text = file_read(counts_path), *lines[64], *sorted = calloc(1, strlen(text) + 64), *end = sorted;
    size_t line_count = 0;
    for (char *line = strtok(text, "\n"); line != NULL && line_count < 64; line = strtok(NULL, "\n")) {
        char *last = strrchr(line, ' ');
        ck_assert_ptr_nonnull(last);
        char *pid = last;
        while (pid > line && pid[-1] != ' ')
            pid--;
        memmove(pid, last + 1, strlen(last)); /* "COMMAND PID COUNT" without the pid */
        if (strstr(line, "--role") != NULL)
            lines[line_count++] = line;
    }
    qsort(lines, line_count, sizeof lines[0], by_text);
    for (size_t i = 0; i < line_count; i++)
        end = stpcpy(stpcpy(end, lines[i]), "\n");
    ck_assert_uint_eq(line_count, 11);
    free(text);
    return sorted;
}

static void expect_no_growth(const char *job, const char *mode)
{
    char *one = count(job, mode, "/stop/episodes=1"), *six = count(job, mode, "/stop/episodes=6");
    ck_assert_str_eq(one, six);
    free(one);
    free(six);
}

START_TEST(batched_rounds_allocate_nothing)
{
    expect_no_growth("config/cartpole-batch.json", "/coalesce/mode=barrier");
}
END_TEST

START_TEST(single_rounds_allocate_nothing)
{
    expect_no_growth("config/cartpole-batch.json", "/coalesce/mode=off");
}
END_TEST

START_TEST(episodes_until_done_allocate_nothing)
{
    expect_no_growth("config/cartpole.json", "/coalesce/mode=dynamic");
}
END_TEST

int main(void)
{
    const char *sanitizer = getenv("SAN");
    if (getenv("COUNT_ALLOCATIONS_SO") == NULL || (sanitizer != NULL && sanitizer[0] != '\0')) {
        puts("skipped: counting needs $COUNT_ALLOCATIONS_SO, and sanitizers bring their own allocator");
        return 77;
    }
    Suite *suite = suite_create("allocations");
    TCase *steady = tcase_create("steady state");
    tcase_add_checked_fixture(steady, setup, teardown);
    tcase_set_timeout(steady, 200);
    tcase_add_test(steady, batched_rounds_allocate_nothing);
    tcase_add_test(steady, single_rounds_allocate_nothing);
    tcase_add_test(steady, episodes_until_done_allocate_nothing);
    suite_add_tcase(suite, steady);
    return suite_run(suite);
}
