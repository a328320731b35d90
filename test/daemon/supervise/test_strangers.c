/* A real job whose agent's socket strangers flood from its first moment on: it trains as if nobody had come,
 * and says on standard error that somebody did. */
#include "test/process.h"
#include "test/worker/net/flood.h"
#include "test/workplace.h"

#include <check.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB                                                                                                  \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":3},\"rollout\":{\"steps\":50},"     \
    "\"stop\":{\"episodes\":150}}"

enum { HELD = 1500 };

static struct process job;

static void start_job(void)
{
    char runtime[128];
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, NULL};
    snprintf(runtime, sizeof runtime, "XDG_RUNTIME_DIR=%s", workplace.folder);
    const char *environment[] = {runtime, "RUNTIME_DIRECTORY", NULL};
    process_start(&job, workplace.folder, argv,
                  &(struct process_options){.environment = environment, .file_bytes_max = 0});
}

static void await_address(char address[256])
{
    char pattern[128];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/coalesced/*.sock.0", workplace.folder);
    for (unsigned i = 0; glob(pattern, 0, NULL, &found) != 0; i++) {
        ck_assert_uint_lt(i, 10000);
        sleep_ms(2);
    }
    snprintf(address, 256, "ipc://%s", found.gl_pathv[0]);
    globfree(&found);
}

/* More than may wait, of which none says a word; and then garbage, again and again. */
static void flood(const char *path)
{
    for (unsigned i = 0; i < HELD; i++)
        flood_connect(path);
    for (unsigned round = 0;; round++) {
        const int fd = flood_connect(path);
        if (round % 2 == 0 || flood_greet(fd, "PLAIN"))
            flood_write(fd, flood_bytes, 1 + round % 4096);
        close(fd);
    }
}

/* Waits until the socket takes connections, some time after its file appears: one that is refused would end
 * the flood at once. On a loaded machine the job could also end before the flood, whose priority is the
 * least, has done anything. */
static void greet_as_strangers(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    for (unsigned greeted = 0, tries = 0; greeted < 20; tries++) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_uint_lt(tries, 10000);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            greeted++;
        else
            sleep_ms(2);
        close(fd);
    }
}

START_TEST(strangers_change_nothing)
{
    char address[256];
    workplace_write_job(JOB);
    start_job();
    ck_assert_int_eq(process_wait(&job, 60), 0);
    char *alone = log_numbers(workplace.jsonl), *err = process_err(&job);
    ck_assert_uint_eq(text_count(alone, "\n"), 150);
    ck_assert_ptr_null(strstr(err, "strangers"));
    free(err);
    remove(workplace.jsonl);

    start_job();
    await_address(address);
    greet_as_strangers(address + strlen("ipc://"));
    const pid_t flooding = flood_start(flood, address);
    const int code = process_wait(&job, 120);
    flood_stop(flooding);
    char *flooded = log_numbers(workplace.jsonl);
    err = process_err(&job);
    ck_assert_msg(code == 0, "exit %d: %s", code, err);
    ck_assert_str_eq(flooded, alone);
    ck_assert_msg(strstr(err, "strangers at this worker's socket since the start: ") != NULL, "%s", err);
    free(alone);
    free(flooded);
    free(err);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strangers");
    TCase *tcase = tcase_create("a job");
    tcase_add_checked_fixture(tcase, workplace_open, workplace_close);
    tcase_add_test(tcase, strangers_change_nothing);
    tcase_set_timeout(tcase, 200);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
