/* Run directories and the folder of their sockets (daemon/rundir.h): locks, earlier runs, and files that are
 * not ours to touch. */
#include "daemon/rundir.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOCKET_NAME_BYTES = 1 + 32 + 5 + 2 }; /* "/", 128 bits in hex, ".sock", ".0" */

static struct job job;
static struct rundir dir;
static struct error error;

/* The socket folder is $XDG_RUNTIME_DIR/coalesced; the working directory is the check's own. */
static void open_place(void)
{
    static const char text[] = "{\"kind\":\"reinforce\",\"seed\":7}";
    struct job_problems problems = {0};
    workplace_open();
    ck_assert_int_eq(chdir(workplace.folder), 0);
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("STATE_DIRECTORY");
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    job_problems_fini(&problems);
    error = (struct error){0};
}

static void open_run(struct rundir *run, const char *path)
{
    enum status status = rundir_open(run, path, &job, &error);
    ck_assert_msg(status == STATUS_OK, "cannot open %s: %s", path != NULL ? path : "NULL", error.text);
}

/* Expects a failure whose message has `words`, and that nothing is left open. */
static void refuse_run(const char *path, enum status status, const char *words)
{
    ck_assert_int_eq(rundir_open(&dir, path, &job, &error), status);
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.text, words) != NULL, "expected \"%s\" in: %s", words, error.text);
    ck_assert(dir.fd == -1 && dir.lock_fd == -1 && dir.address[0] == '\0');
}

/* The path of a worker's socket. */
static const char *server_path(const struct rundir *run, unsigned server)
{
    static char path[CONTROL_ADDRESS_BYTES + 8];
    ck_assert_int_eq(strncmp(run->address, "ipc://", 6), 0);
    snprintf(path, sizeof path, "%s.%u", run->address + 6, server);
    return path;
}

static const char *socket_path(const struct rundir *run)
{
    return server_path(run, 0);
}

static bool there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void expect_file(const char *path, const char *wanted)
{
    char *text = file_read(path);
    ck_assert_msg(there(path), "%s is not there", path);
    ck_assert_str_eq(text, wanted);
    free(text);
}

static void bind_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_uint_lt(strlen(path), sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

/* ---- the directory ---- */

START_TEST(nested_directories_are_made)
{
    open_run(&dir, "a/b//c/");
    struct stat made, held;
    ck_assert_int_eq(stat("a/b/c", &made), 0);
    ck_assert_int_eq(fstat(dir.fd, &held), 0);
    ck_assert(S_ISDIR(held.st_mode) && held.st_ino == made.st_ino);
    ck_assert(there("a/b/c/lock"));
    rundir_close(&dir);
}
END_TEST

START_TEST(a_file_where_a_directory_should_be_is_named)
{
    write_file("taken", "mine\n");
    refuse_run("taken", STATUS_IO, "cannot open the run directory taken: ");
    refuse_run("taken/run", STATUS_IO, "cannot make the directory taken/run: ");
    expect_file("taken", "mine\n");
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
    ck_assert(there("runs/tiny/job.json"));
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
    ck_assert(there("state/tiny/job.json"));
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
    struct job_problems problems = {0};
    size_t bytes, read_bytes;
    open_run(&dir, "run");
    ck_assert_int_eq(job_read_file(&read, "run/job.json", NULL, 0, &problems), STATUS_OK);
    char *given = job_format(&job, &bytes), *got = job_format(&read, &read_bytes);
    ck_assert_str_eq(got, given);
    expect_file("run/job.json", given);
    ck_assert_str_eq(read.name, "tiny"); // which no key of the text said
    free(given);
    free(got);
    job_problems_fini(&problems);
    rundir_close(&dir);
}
END_TEST

START_TEST(each_earlier_run_moves_to_a_folder_of_its_own)
{
    open_run(&dir, "run");
    ck_assert(!there("run/previous-1")); // nothing was there to move
    rundir_close(&dir);
    write_file("run/job.json", "job 1");
    write_file("run/episodes.log", "log 1");
    write_file("run/episodes.jsonl", "jsonl 1");
    write_file("run/notes", "not a run's");
    open_run(&dir, "run");
    rundir_close(&dir);
    ck_assert(there("run/job.json") && !there("run/episodes.log") && !there("run/episodes.jsonl"));
    write_file("run/episodes.jsonl", "jsonl 2");
    open_run(&dir, "run");
    rundir_close(&dir);
    expect_file("run/previous-1/job.json", "job 1");
    expect_file("run/previous-1/episodes.log", "log 1");
    expect_file("run/previous-1/episodes.jsonl", "jsonl 1");
    expect_file("run/previous-2/episodes.jsonl", "jsonl 2");
    ck_assert(there("run/previous-2/job.json") && !there("run/previous-2/episodes.log"));
    ck_assert(!there("run/previous-3"));
    expect_file("run/notes", "not a run's");
}
END_TEST

/* Checkpoints are moved with their run, even if nothing else is left of it. */
START_TEST(checkpoints_move_with_their_run)
{
    ck_assert_int_eq(mkdir("run", 0777), 0);
    ck_assert_int_eq(mkdir("run/checkpoints", 0777), 0);
    write_file("run/checkpoints/00000004", "a checkpoint");
    open_run(&dir, "run");
    rundir_close(&dir);
    ck_assert(!there("run/checkpoints"));
    expect_file("run/previous-1/checkpoints/00000004", "a checkpoint");
}
END_TEST

/* A previous-N that exists, as a file or folder, is not used. */
START_TEST(what_stands_at_previous_n_is_left_alone)
{
    ck_assert_int_eq(mkdir("run", 0777), 0);
    write_file("run/previous-1", "a file");
    write_file("run/episodes.log", "log");
    open_run(&dir, "run");
    rundir_close(&dir);
    expect_file("run/previous-1", "a file");
    expect_file("run/previous-2/episodes.log", "log");
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
        write_file("run/episodes.log", "running\n");
        ck_assert_int_eq(write(up[1], "!", 1), 1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(up[0], &byte, 1), 1);
    snprintf(words, sizeof words, "run is in use by process %d", (int)holder);
    refuse_run("run", STATUS_BUSY, words);
    refuse_run("run", STATUS_BUSY, words); // the first refusal let go of nothing
    expect_file("run/episodes.log", "running\n");
    ck_assert(!there("run/previous-1"));
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
    write_file("run/lock", "a number that is longer than any pid is\n");
    open_run(&dir, "run");
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    expect_file("run/lock", pid);
    rundir_close(&dir);
}
END_TEST

START_TEST(close_lets_another_open)
{
    struct rundir second;
    open_run(&dir, "run");
    ck_assert_int_eq(rundir_open(&second, "run", &job, &error), STATUS_BUSY);
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
    write_file("precious", "precious\n");
    ck_assert_int_eq(symlink("../precious", "run/lock"), 0);
    refuse_run("run", STATUS_IO, "cannot open run/lock as a regular file: ");
    expect_file("precious", "precious\n");
    ck_assert(!there("run/job.json"));
}
END_TEST

/* ---- the folder of sockets ---- */

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

START_TEST(the_address_is_in_the_folder_that_is_ours)
{
    char runtime[200], wanted[200];
    struct stat info;
    snprintf(runtime, sizeof runtime, "%s/service:/proc/nowhere", workplace.folder);
    snprintf(wanted, sizeof wanted, "%s/%s", workplace.folder, _i == 0 ? "coalesced" : "service");
    if (_i == 1) /* RUNTIME_DIRECTORY comes before XDG_RUNTIME_DIR */
        setenv("RUNTIME_DIRECTORY", runtime, 1);
    if (_i == 2) {
        unsetenv("XDG_RUNTIME_DIR");
        snprintf(wanted, sizeof wanted, "/tmp/coalesced-%u", geteuid());
    }
    umask(0);
    open_run(&dir, "run");
    ck_assert_int_eq(strncmp(socket_path(&dir), wanted, strlen(wanted)), 0);
    ck_assert_uint_eq(strlen(socket_path(&dir)), strlen(wanted) + SOCKET_NAME_BYTES);
    ck_assert_int_eq(lstat(wanted, &info), 0);
    ck_assert_uint_eq(info.st_mode, S_IFDIR | 0700);
    bind_socket(socket_path(&dir));
    rundir_close(&dir);
}
END_TEST

START_TEST(the_longest_address_fits_and_the_next_is_refused)
{
    char folder[128], words[64];
    const size_t longest = sizeof((struct sockaddr_un *)0)->sun_path - 1 - SOCKET_NAME_BYTES;
    const size_t over[] = {0, 1, SOCKET_NAME_BYTES, SOCKET_NAME_BYTES + 1};
    memset(folder, 'd', sizeof folder);
    memcpy(folder, workplace.folder, strlen(workplace.folder));
    folder[strlen(workplace.folder)] = '/';
    folder[longest + over[_i]] = '\0';
    setenv("RUNTIME_DIRECTORY", folder, 1);
    if (_i == 0) {
        open_run(&dir, "run");
        ck_assert_uint_eq(strlen(socket_path(&dir)), 107);
        bind_socket(socket_path(&dir));
        rundir_close(&dir);
        return;
    }
    /* Either the socket's path is too long, or already that of the folder. */
    if (over[_i] <= SOCKET_NAME_BYTES)
        snprintf(words, sizeof words, "a path of %zu bytes: expected at most 107", 107 + over[_i]);
    else
        snprintf(words, sizeof words, "expected fewer than 108 bytes");
    refuse_run("run", STATUS_INVALID, words);
    unsetenv("RUNTIME_DIRECTORY");
    open_run(&dir, "run"); // nothing stayed locked
    rundir_close(&dir);
}
END_TEST

/* The longest path is that of the worker with the highest number. */
START_TEST(a_job_with_more_servers_needs_a_shorter_folder)
{
    static const char text[] =
        "{\"kind\":\"parameter-server\",\"server\":{\"count\":11},\"stop\":{\"updates\":1}}";
    char folder[128];
    struct job_problems problems = {0};
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    job_problems_fini(&problems);
    memset(folder, 'd', sizeof folder);
    memcpy(folder, workplace.folder, strlen(workplace.folder));
    folder[strlen(workplace.folder)] = '/';
    folder[107 - SOCKET_NAME_BYTES] = '\0';
    setenv("RUNTIME_DIRECTORY", folder, 1);
    refuse_run("run", STATUS_INVALID, "a path of 108 bytes: expected at most 107"); // with ".10"
    folder[107 - SOCKET_NAME_BYTES - 1] = '\0';
    setenv("RUNTIME_DIRECTORY", folder, 1);
    open_run(&dir, "run");
    bind_socket(server_path(&dir, 10));
    rundir_close(&dir);
}
END_TEST

START_TEST(a_socket_folder_that_others_may_enter_is_refused)
{
    static const mode_t modes[] = {0755, 0750, 0701, 0702, 0740};
    ck_assert_int_eq(mkdir("coalesced", 0700), 0);
    ck_assert_int_eq(chmod("coalesced", modes[_i]), 0);
    refuse_run("run", STATUS_PERMISSION, "/coalesced: expected a directory of user ");
    ck_assert_int_eq(chmod("coalesced", 0700), 0);
    open_run(&dir, "run");
    rundir_close(&dir);
}
END_TEST

START_TEST(a_socket_folder_that_is_none_is_refused)
{
    ck_assert_int_eq(mkdir("elsewhere", 0700), 0);
    if (_i == 0)
        ck_assert_int_eq(symlink("elsewhere", "coalesced"), 0);
    else
        write_file("coalesced", "");
    ck_assert_int_eq(chmod(_i == 0 ? "elsewhere" : "coalesced", 0700), 0);
    refuse_run("run", STATUS_PERMISSION, "/coalesced: expected a directory of user ");
}
END_TEST

START_TEST(another_users_socket_folder_is_refused)
{
    if (geteuid() != 0) /* only root can make one */
        return;
    ck_assert_int_eq(mkdir("coalesced", 0700), 0);
    ck_assert_int_eq(chown("coalesced", 65534, 65534), 0);
    refuse_run("run", STATUS_PERMISSION, "/coalesced: expected a directory of user 0 with mode 0700");
}
END_TEST

/* ---- files with a socket's name ---- */

static void find_socket_path(char path[CONTROL_ADDRESS_BYTES])
{
    open_run(&dir, "run");
    snprintf(path, CONTROL_ADDRESS_BYTES, "%s", socket_path(&dir));
    rundir_close(&dir);
}

START_TEST(a_leftover_socket_is_removed)
{
    char path[CONTROL_ADDRESS_BYTES];
    find_socket_path(path);
    bind_socket(path);
    open_run(&dir, "run");
    ck_assert_str_eq(socket_path(&dir), path);
    ck_assert(!there(path));
    rundir_close(&dir);
}
END_TEST

START_TEST(close_removes_its_socket)
{
    open_run(&dir, "run");
    char path[CONTROL_ADDRESS_BYTES];
    snprintf(path, CONTROL_ADDRESS_BYTES, "%s", socket_path(&dir));
    bind_socket(path);
    rundir_close(&dir);
    ck_assert(!there(path));
}
END_TEST

/* Leftovers of an earlier run that had more servers, or as many. */
START_TEST(every_servers_socket_is_removed)
{
    char paths[JOB_SERVERS_MAX][CONTROL_ADDRESS_BYTES];
    open_run(&dir, "run");
    for (unsigned server = 0; server < JOB_SERVERS_MAX; server++)
        snprintf(paths[server], sizeof paths[server], "%s", server_path(&dir, server));
    if (_i == 0)
        rundir_close(&dir);
    for (unsigned server = 0; server < JOB_SERVERS_MAX; server++)
        bind_socket(paths[server]);
    if (_i == 0)
        open_run(&dir, "run");
    else
        rundir_close(&dir);
    for (unsigned server = 0; server < JOB_SERVERS_MAX; server++)
        ck_assert(!there(paths[server]));
    rundir_close(&dir);
}
END_TEST

/* A process that was refused the lock removes no socket. */
START_TEST(a_refused_open_leaves_the_holders_socket)
{
    struct rundir second;
    open_run(&dir, "run");
    bind_socket(socket_path(&dir));
    ck_assert_int_eq(rundir_open(&second, "run", &job, &error), STATUS_BUSY);
    rundir_close(&second);
    ck_assert(there(socket_path(&dir)));
    rundir_close(&dir);
}
END_TEST

static void make_stranger(const char *path, int kind)
{
    static const char *const target = "target.sock";
    if (kind == 0) {
        write_file(path, "a stranger's\n");
    } else if (kind == 1) {
        ck_assert_int_eq(mkdir(path, 0700), 0);
    } else {
        if (!there(target))
            bind_socket(target);
        char absolute[160];
        snprintf(absolute, sizeof absolute, "%s/%s", workplace.folder, target);
        ck_assert_int_eq(symlink(absolute, path), 0);
    }
}

/* A file, a directory and a link to a socket are refused by name, and not removed. */
START_TEST(a_stranger_in_the_sockets_place_is_refused_and_left_alone)
{
    char path[CONTROL_ADDRESS_BYTES], words[CONTROL_ADDRESS_BYTES + 32];
    struct stat before, after;
    find_socket_path(path);
    make_stranger(path, _i);
    ck_assert_int_eq(lstat(path, &before), 0);
    snprintf(words, sizeof words, "%s is in the way", path);
    refuse_run("run", STATUS_PERMISSION, words);
    rundir_close(&dir); // which a caller may do after a failure, and which must not take it away either
    ck_assert_int_eq(lstat(path, &after), 0);
    ck_assert(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    if (_i == 0)
        expect_file(path, "a stranger's\n");
    ck_assert_int_eq(remove(path), 0);
    open_run(&dir, "run"); // nothing stayed locked
    rundir_close(&dir);
    ck_assert_int_eq(_i == 2, there("target.sock"));
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
    tcase_add_loop_test(sockets, the_address_is_in_the_folder_that_is_ours, 0, 3);
    tcase_add_loop_test(sockets, the_longest_address_fits_and_the_next_is_refused, 0, 4);
    tcase_add_test(sockets, a_job_with_more_servers_needs_a_shorter_folder);
    tcase_add_loop_test(sockets, a_socket_folder_that_others_may_enter_is_refused, 0, 5);
    tcase_add_loop_test(sockets, a_socket_folder_that_is_none_is_refused, 0, 2);
    tcase_add_test(sockets, another_users_socket_folder_is_refused);
    tcase_add_test(sockets, a_leftover_socket_is_removed);
    tcase_add_test(sockets, close_removes_its_socket);
    tcase_add_loop_test(sockets, every_servers_socket_is_removed, 0, 2);
    tcase_add_test(sockets, a_refused_open_leaves_the_holders_socket);
    tcase_add_loop_test(sockets, a_stranger_in_the_sockets_place_is_refused_and_left_alone, 0, 3);
    return suite_run(suite);
}
