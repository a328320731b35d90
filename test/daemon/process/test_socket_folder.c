/* The folder of sockets (daemon/process/socket_folder.h): where it is, whose it must be, the longest path,
 * leftovers of earlier runs, and files of others, which stay. */
#include "daemon/process/socket_folder.h"
#include "test/daemon/paths.h"
#include "test/workplace.h"
#include "worker/roster.h"

#include <check.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>

enum { SOCKET_NAME_BYTES = 1 + 32 + 5 + 2 }; /* "/", 128 bits in hex, ".sock", ".0" */

/* In place of the system's, for a machine without the group. */
static struct group *readers;
struct group *getgrnam(const char *name)
{
    return strcmp(name, "coalesced") == 0 ? readers : NULL;
}

static char address[CONTROL_ADDRESS_BYTES];
static const char *const identity = "a run";
static struct error error;

/* The socket folder is $XDG_RUNTIME_DIR/coalesced. */
static void open_place(void)
{
    workplace_open();
    ck_assert_int_eq(chdir(workplace.folder), 0);
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
    error = (struct error){0};
    address[0] = '\0';
}

static void open_sockets(unsigned listeners)
{
    enum status status = socket_folder_open(address, identity, listeners, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_int_eq(strncmp(address, "ipc://", 6), 0);
}

/* Expects a failure whose message has `words`, and no address. */
static void refuse_sockets(unsigned listeners, enum status status, const char *words)
{
    address[0] = '\0';
    ck_assert_int_eq(socket_folder_open(address, identity, listeners, &error), status);
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.text, words) != NULL, "expected \"%s\" in: %s", words, error.text);
    ck_assert_str_eq(address, "");
}

static const char *socket_path(unsigned worker)
{
    static char path[CONTROL_ADDRESS_BYTES + 8];
    snprintf(path, sizeof path, "%s.%u", address + 6, worker);
    return path;
}

/* Has $RUNTIME_DIRECTORY name a folder whose path has so many bytes. */
static void set_folder_bytes(size_t bytes)
{
    char folder[128];
    memset(folder, 'd', sizeof folder);
    memcpy(folder, workplace.folder, strlen(workplace.folder));
    folder[strlen(workplace.folder)] = '/';
    folder[bytes] = '\0';
    setenv("RUNTIME_DIRECTORY", folder, 1);
}

/* ---- the folder ---- */

START_TEST(the_folder_is_the_services_or_the_sessions_or_below_tmp)
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
    open_sockets(1);
    ck_assert_int_eq(strncmp(socket_path(0), wanted, strlen(wanted)), 0);
    ck_assert_uint_eq(strlen(socket_path(0)), strlen(wanted) + SOCKET_NAME_BYTES);
    ck_assert_int_eq(lstat(wanted, &info), 0);
    ck_assert_uint_eq(info.st_mode, S_IFDIR | 0700);
    path_bind_socket(socket_path(0));
    socket_folder_clear(address);
    ck_assert(!path_exists(socket_path(0)));
}
END_TEST

START_TEST(a_folder_without_a_parent_cannot_be_made)
{
    setenv("RUNTIME_DIRECTORY", "/proc/nowhere/at/all", 1);
    refuse_sockets(1, STATUS_IO, "cannot make the socket folder /proc/nowhere/at/all: ");
}
END_TEST

START_TEST(the_longest_address_fits_and_the_next_is_refused)
{
    char words[64];
    const size_t longest = sizeof((struct sockaddr_un *)0)->sun_path - 1 - SOCKET_NAME_BYTES;
    const size_t over[] = {0, 1, SOCKET_NAME_BYTES, SOCKET_NAME_BYTES + 1};
    set_folder_bytes(longest + over[_i]);
    if (_i == 0) {
        open_sockets(1);
        ck_assert_uint_eq(strlen(socket_path(0)), 107);
        path_bind_socket(socket_path(0));
        return;
    }
    /* Either the socket's path is too long, or already that of the folder. */
    if (over[_i] <= SOCKET_NAME_BYTES)
        snprintf(words, sizeof words, "a path of %zu bytes: expected at most 107", 107 + over[_i]);
    else
        snprintf(words, sizeof words, "expected fewer than 108 bytes");
    refuse_sockets(1, STATUS_INVALID, words);
}
END_TEST

/* The longest path is that of the worker with the highest number. */
START_TEST(more_listeners_need_a_shorter_folder)
{
    set_folder_bytes(107 - SOCKET_NAME_BYTES);
    refuse_sockets(11, STATUS_INVALID, "a path of 108 bytes: expected at most 107"); /* with ".10" */
    set_folder_bytes(107 - SOCKET_NAME_BYTES - 1);
    open_sockets(11);
    path_bind_socket(socket_path(10));
}
END_TEST

START_TEST(a_folder_that_others_may_enter_is_refused)
{
    static const mode_t modes[] = {0755, 0750, 0701, 0702, 0740};
    ck_assert_int_eq(mkdir("coalesced", 0700), 0);
    ck_assert_int_eq(chmod("coalesced", modes[_i]), 0);
    refuse_sockets(1, STATUS_PERMISSION, "/coalesced: expected a directory of user ");
    ck_assert_int_eq(chmod("coalesced", 0700), 0);
    open_sockets(1);
}
END_TEST

/* The members of the group coalesced may look into the folder, and no one else may: not even they may write.
 */
START_TEST(a_folder_for_the_group_coalesced_is_good)
{
    static const mode_t good[] = {0750, 0710, 0740}, bad[] = {0770, 0751, 0755};
    struct stat info;
    ck_assert_int_eq(mkdir("coalesced", 0700), 0);
    ck_assert_int_eq(stat("coalesced", &info), 0);
    readers = &(struct group){.gr_gid = info.st_gid};
    umask(0);
    ck_assert_int_eq(chmod("coalesced", bad[_i]), 0);
    refuse_sockets(1, STATUS_PERMISSION, "or 0750 if its group is coalesced");
    ck_assert_int_eq(chmod("coalesced", good[_i]), 0);
    open_sockets(1);
    ck_assert_uint_eq(umask(0), 077); /* the workers' sockets are not for the group */
    readers = &(struct group){.gr_gid = info.st_gid + 1};
    refuse_sockets(1, STATUS_PERMISSION, "or 0750 if its group is coalesced");
}
END_TEST

START_TEST(a_link_or_file_in_the_folders_place_is_refused)
{
    ck_assert_int_eq(mkdir("elsewhere", 0700), 0);
    if (_i == 0)
        ck_assert_int_eq(symlink("elsewhere", "coalesced"), 0);
    else
        text_write("coalesced", "");
    ck_assert_int_eq(chmod(_i == 0 ? "elsewhere" : "coalesced", 0700), 0);
    refuse_sockets(1, STATUS_PERMISSION, "/coalesced: expected a directory of user ");
}
END_TEST

START_TEST(another_users_folder_is_refused)
{
    if (geteuid() != 0) /* only root can make one */
        return;
    ck_assert_int_eq(mkdir("coalesced", 0700), 0);
    ck_assert_int_eq(chown("coalesced", 65534, 65534), 0);
    refuse_sockets(1, STATUS_PERMISSION, "/coalesced: expected a directory of user 0 with mode 0700");
}
END_TEST

/* ---- files with a socket's name ---- */

/* A run with one listener removes all sockets that its directory's runs can have had: at its start (0) and at
 * its end (1). */
START_TEST(every_listeners_socket_is_removed)
{
    open_sockets(1);
    for (unsigned worker = 0; worker < ROSTER_LISTENERS_MAX; worker++)
        path_bind_socket(socket_path(worker));
    if (_i == 0)
        open_sockets(1);
    else
        socket_folder_clear(address);
    for (unsigned worker = 0; worker < ROSTER_LISTENERS_MAX; worker++)
        ck_assert(!path_exists(socket_path(worker)));
}
END_TEST

static void make_stranger(const char *path, int kind)
{
    char target[160];
    snprintf(target, sizeof target, "%s/target.sock", workplace.folder);
    if (kind == 0) {
        text_write(path, "a stranger's\n");
    } else if (kind == 1) {
        ck_assert_int_eq(mkdir(path, 0700), 0);
    } else {
        path_bind_socket("target.sock");
        ck_assert_int_eq(symlink(target, path), 0);
    }
}

/* A file, a directory and a link to a socket are refused by name, and not removed. */
START_TEST(a_stranger_in_a_sockets_place_is_refused_and_stays)
{
    char path[CONTROL_ADDRESS_BYTES + 8], words[CONTROL_ADDRESS_BYTES + 32];
    struct stat before, after;
    open_sockets(1);
    snprintf(path, sizeof path, "%s", socket_path(0));
    make_stranger(path, _i);
    ck_assert_int_eq(lstat(path, &before), 0);
    snprintf(words, sizeof words, "%s is in the way", path);
    refuse_sockets(1, STATUS_PERMISSION, words);
    ck_assert_int_eq(lstat(path, &after), 0);
    ck_assert(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    if (_i == 0)
        path_expect_text(path, "a stranger's\n");
    ck_assert_int_eq(remove(path), 0);
    open_sockets(1);
    ck_assert_int_eq(_i == 2, path_exists("target.sock"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("socket_folder");
    TCase *tests = tcase_create("socket_folder");
    tcase_add_checked_fixture(tests, open_place, workplace_close);
    tcase_add_loop_test(tests, the_folder_is_the_services_or_the_sessions_or_below_tmp, 0, 3);
    tcase_add_test(tests, a_folder_without_a_parent_cannot_be_made);
    tcase_add_loop_test(tests, the_longest_address_fits_and_the_next_is_refused, 0, 4);
    tcase_add_test(tests, more_listeners_need_a_shorter_folder);
    tcase_add_loop_test(tests, a_folder_that_others_may_enter_is_refused, 0, 5);
    tcase_add_loop_test(tests, a_folder_for_the_group_coalesced_is_good, 0, 3);
    tcase_add_loop_test(tests, a_link_or_file_in_the_folders_place_is_refused, 0, 2);
    tcase_add_test(tests, another_users_folder_is_refused);
    tcase_add_loop_test(tests, every_listeners_socket_is_removed, 0, 2);
    tcase_add_loop_test(tests, a_stranger_in_a_sockets_place_is_refused_and_stays, 0, 3);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
