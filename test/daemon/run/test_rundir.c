/* Run directories (daemon/run/rundir.h): locks, earlier runs, sockets, and files of others, which stay. */
#include "daemon/run/rundir.h"
#include "test/daemon/paths.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct job job;
static struct rundir dir;
static struct error error;

/* The socket folder is $XDG_RUNTIME_DIR/coalesced; the working directory is the check's own. */
static void open_place(void)
{
    static const char text[] = "{\"kind\":\"reinforce\",\"seed\":7}";
    char *problems = NULL;
    workplace_open();
    ck_assert_int_eq(chdir(workplace.folder), 0);
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("STATE_DIRECTORY");
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    free(problems);
    error = (struct error){0};
}

static void open_run(struct rundir *run, const char *path)
{
    enum status status = rundir_open(run, path, &job, false, &error);
    ck_assert_msg(status == STATUS_OK, "cannot open %s: %s", path != NULL ? path : "NULL", error.text);
}

/* Expects a failure whose message has `words`, and that nothing is left open. */
static void refuse_run(const char *path, enum status status, const char *words)
{
    ck_assert_int_eq(rundir_open(&dir, path, &job, false, &error), status);
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.text, words) != NULL, "expected \"%s\" in: %s", words, error.text);
    ck_assert(dir.fd == -1 && dir.lock_fd == -1 && dir.address[0] == '\0');
}

/* The path of the first worker's socket. */
static const char *socket_path(const struct rundir *run)
{
    static char path[CONTROL_ADDRESS_BYTES + 8];
    ck_assert_int_eq(strncmp(run->address, "ipc://", 6), 0);
    snprintf(path, sizeof path, "%s.0", run->address + 6);
    return path;
}

/* ---- the directory ---- */

START_TEST(nested_directories_are_made)
{
    open_run(&dir, "a/b//c/");
    struct stat made, held;
    ck_assert_int_eq(stat("a/b/c", &made), 0);
    ck_assert_int_eq(fstat(dir.fd, &held), 0);
    ck_assert(S_ISDIR(held.st_mode) && held.st_ino == made.st_ino);
    ck_assert(path_exists("a/b/c/lock"));
    rundir_close(&dir);
}
END_TEST

START_TEST(a_file_where_a_directory_should_be_is_named)
{
    text_write("taken", "mine\n");
    refuse_run("taken", STATUS_IO, "cannot open the run directory taken: ");
    refuse_run("taken/run", STATUS_IO, "cannot make the directory taken/run: ");
    path_expect_text("taken", "mine\n");
}
END_TEST

START_TEST(a_path_of_no_length_or_too_long_is_invalid)
{
    char path[4097];
    memset(path, 'a', sizeof path);
    path[4096] = '\0';
    refuse_run("", STATUS_INVALID, "the run directory's path has 0 bytes: expected 1..4095");
    refuse_run(path, STATUS_INVALID, "the run directory's path has 4096 bytes: expected 1..4095");
}
END_TEST

START_TEST(without_a_path_it_is_the_jobs_name_under_runs)
{
    open_run(&dir, NULL);
    ck_assert_str_eq(dir.path, "runs/tiny");
    ck_assert(path_exists("runs/tiny/job.json"));
    rundir_close(&dir);
}
END_TEST

/* systemd separates several state directories by colons. */
START_TEST(a_service_has_the_first_of_its_state_directories)
{
    char state[256], wanted[160];
    snprintf(wanted, sizeof wanted, "%s/state/tiny", workplace.folder);
    snprintf(state, sizeof state, "%s/state%s", workplace.folder, _i == 0 ? "" : ":/proc/nowhere");
    setenv("STATE_DIRECTORY", state, 1);
    open_run(&dir, NULL);
    ck_assert_str_eq(dir.path, wanted);
    ck_assert(path_exists("state/tiny/job.json"));
    rundir_close(&dir);
    open_run(&dir, "own"); /* a path from the command line comes first */
    ck_assert_str_eq(dir.path, "own");
    rundir_close(&dir);
}
END_TEST

/* ---- its files ---- */

START_TEST(job_json_is_the_resolved_job)
{
    struct job read;
    char *problems = NULL;
    size_t bytes, read_bytes;
    open_run(&dir, "run");
    ck_assert_int_eq(job_read_file(&read, path_of("run/job.json"), NULL, 0, NULL, &problems), STATUS_OK);
    char *given = job_format(&job, &bytes), *got = job_format(&read, &read_bytes);
    ck_assert_str_eq(got, given);
    path_expect_text("run/job.json", given);
    ck_assert_str_eq(read.name, "tiny"); // which no key of the text said
    free(given);
    free(got);
    free(problems);
    rundir_close(&dir);
}
END_TEST

START_TEST(each_earlier_run_moves_to_a_folder_of_its_own)
{
    open_run(&dir, "run");
    ck_assert(!path_exists("run/previous-1")); // nothing was there to move
    rundir_close(&dir);
    text_write("run/job.json", "job 1");
    text_write("run/episodes.log", "log 1");
    text_write("run/episodes.jsonl", "jsonl 1");
    text_write("run/notes", "not a run's");
    open_run(&dir, "run");
    rundir_close(&dir);
    ck_assert(path_exists("run/job.json") && !path_exists("run/episodes.log") &&
              !path_exists("run/episodes.jsonl"));
    text_write("run/episodes.jsonl", "jsonl 2");
    open_run(&dir, "run");
    rundir_close(&dir);
    path_expect_text("run/previous-1/job.json", "job 1");
    path_expect_text("run/previous-1/episodes.log", "log 1");
    path_expect_text("run/previous-1/episodes.jsonl", "jsonl 1");
    path_expect_text("run/previous-2/episodes.jsonl", "jsonl 2");
    ck_assert(path_exists("run/previous-2/job.json") && !path_exists("run/previous-2/episodes.log"));
    ck_assert(!path_exists("run/previous-3"));
    path_expect_text("run/notes", "not a run's");
}
END_TEST

/* Checkpoints are moved with their run, even if nothing else is left of it. */
START_TEST(checkpoints_move_with_their_run)
{
    ck_assert_int_eq(mkdir("run", 0777), 0);
    ck_assert_int_eq(mkdir("run/checkpoints", 0777), 0);
    text_write("run/checkpoints/00000004", "a checkpoint");
    open_run(&dir, "run");
    rundir_close(&dir);
    ck_assert(!path_exists("run/checkpoints"));
    path_expect_text("run/previous-1/checkpoints/00000004", "a checkpoint");
}
END_TEST

/* A previous-N that exists, as a file or folder, is not used. */
START_TEST(what_stands_at_previous_n_is_left_alone)
{
    ck_assert_int_eq(mkdir("run", 0777), 0);
    text_write("run/previous-1", "a file");
    text_write("run/episodes.log", "log");
    open_run(&dir, "run");
    rundir_close(&dir);
    path_expect_text("run/previous-1", "a file");
    path_expect_text("run/previous-2/episodes.log", "log");
}
END_TEST

/* ---- the lock ---- */

START_TEST(a_directory_in_use_names_the_process)
{
    char words[64];
    int up[2], byte;
    ck_assert_int_eq(pipe(up), 0);
    pid_t holder = fork();
    if (holder == 0) {
        open_run(&dir, "run");
        text_write("run/episodes.log", "running\n");
        ck_assert_int_eq(write(up[1], "!", 1), 1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(up[0], &byte, 1), 1);
    snprintf(words, sizeof words, "run is in use by process %d", (int)holder);
    refuse_run("run", STATUS_BUSY, words);
    refuse_run("run", STATUS_BUSY, words); // the first refusal let go of nothing
    path_expect_text("run/episodes.log", "running\n");
    ck_assert(!path_exists("run/previous-1"));
    /* A lock ends with its holder, however that ended. */
    kill(holder, SIGKILL);
    ck_assert_int_eq(waitpid(holder, NULL, 0), holder);
    open_run(&dir, "run");
    rundir_close(&dir);
}
END_TEST

START_TEST(the_lock_holds_its_holders_pid)
{
    char pid[32];
    ck_assert_int_eq(mkdir("run", 0777), 0);
    text_write("run/lock", "a number that is longer than any pid is\n");
    open_run(&dir, "run");
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    path_expect_text("run/lock", pid);
    rundir_close(&dir);
}
END_TEST

START_TEST(close_lets_another_open)
{
    struct rundir second;
    open_run(&dir, "run");
    ck_assert_int_eq(rundir_open(&second, "run", &job, false, &error), STATUS_BUSY);
    rundir_close(&dir);
    ck_assert(dir.fd == -1 && dir.lock_fd == -1 && dir.address[0] == '\0');
    open_run(&second, "run");
    rundir_close(&dir); // a second time: nothing of the second's is let go
    refuse_run("run", STATUS_BUSY, "run is in use by process ");
    rundir_close(&second);
}
END_TEST

/* The lock is written to: a link in its place would let another user choose the file. */
START_TEST(a_lock_that_is_a_link_is_refused)
{
    ck_assert_int_eq(mkdir("run", 0777), 0);
    text_write("precious", "precious\n");
    ck_assert_int_eq(symlink("../precious", "run/lock"), 0);
    refuse_run("run", STATUS_IO, "run/lock: found a symbolic link, expected a regular file");
    path_expect_text("precious", "precious\n");
    ck_assert(!path_exists("run/job.json"));
}
END_TEST

/* ---- its sockets ---- */

START_TEST(the_address_belongs_to_the_real_path)
{
    char first[CONTROL_ADDRESS_BYTES], absolute[160];
    snprintf(absolute, sizeof absolute, "%s/./run", workplace.folder);
    ck_assert_int_eq(symlink("run", "link"), 0);
    const char *const same[] = {"run", absolute, "link", "run/../run/"};
    open_run(&dir, "run");
    memcpy(first, dir.address, sizeof first);
    rundir_close(&dir);
    for (unsigned i = 0; i < 4; i++) {
        open_run(&dir, same[i]);
        ck_assert_str_eq(dir.address, first);
        rundir_close(&dir);
    }
    open_run(&dir, "run2");
    ck_assert_str_ne(dir.address, first);
    ck_assert_uint_eq(strlen(dir.address), strlen(first));
    rundir_close(&dir);
}
END_TEST

START_TEST(close_removes_its_socket)
{
    open_run(&dir, "run");
    char path[CONTROL_ADDRESS_BYTES];
    snprintf(path, CONTROL_ADDRESS_BYTES, "%s", socket_path(&dir));
    path_bind_socket(path);
    rundir_close(&dir);
    ck_assert(!path_exists(path));
}
END_TEST

/* A rundir_open that fails at its sockets leaves a file there and lets go of the lock; so does a rundir_close
 * after it. */
START_TEST(a_refused_socket_leaves_nothing_locked)
{
    char path[CONTROL_ADDRESS_BYTES];
    open_run(&dir, "run");
    snprintf(path, sizeof path, "%s", socket_path(&dir));
    rundir_close(&dir);
    text_write(path, "a stranger's\n");
    refuse_run("run", STATUS_PERMISSION, "is in the way");
    rundir_close(&dir);
    path_expect_text(path, "a stranger's\n");
    ck_assert_int_eq(remove(path), 0);
    open_run(&dir, "run");
    rundir_close(&dir);
}
END_TEST

/* A process that was refused the lock removes no socket. */
START_TEST(a_refused_open_leaves_the_holders_socket)
{
    struct rundir second;
    open_run(&dir, "run");
    path_bind_socket(socket_path(&dir));
    ck_assert_int_eq(rundir_open(&second, "run", &job, false, &error), STATUS_BUSY);
    rundir_close(&second);
    ck_assert(path_exists(socket_path(&dir)));
    rundir_close(&dir);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, open_place, workplace_close);
    suite_add_tcase(suite, tests);
    return tests;
}

int main(void)
{
    Suite *suite = suite_create("rundir");
    TCase *directory = add_case(suite, "directory");
    tcase_add_test(directory, nested_directories_are_made);
    tcase_add_test(directory, a_file_where_a_directory_should_be_is_named);
    tcase_add_test(directory, a_path_of_no_length_or_too_long_is_invalid);
    tcase_add_test(directory, without_a_path_it_is_the_jobs_name_under_runs);
    tcase_add_loop_test(directory, a_service_has_the_first_of_its_state_directories, 0, 2);
    tcase_add_test(directory, job_json_is_the_resolved_job);
    tcase_add_test(directory, each_earlier_run_moves_to_a_folder_of_its_own);
    tcase_add_test(directory, checkpoints_move_with_their_run);
    tcase_add_test(directory, what_stands_at_previous_n_is_left_alone);
    TCase *lock = add_case(suite, "lock");
    tcase_add_test(lock, a_directory_in_use_names_the_process);
    tcase_add_test(lock, the_lock_holds_its_holders_pid);
    tcase_add_test(lock, close_lets_another_open);
    tcase_add_test(lock, a_lock_that_is_a_link_is_refused);
    TCase *sockets = add_case(suite, "sockets");
    tcase_add_test(sockets, the_address_belongs_to_the_real_path);
    tcase_add_test(sockets, close_removes_its_socket);
    tcase_add_test(sockets, a_refused_socket_leaves_nothing_locked);
    tcase_add_test(sockets, a_refused_open_leaves_the_holders_socket);
    return suite_run(suite);
}
