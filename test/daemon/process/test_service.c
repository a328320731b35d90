/* The datagrams to the service manager (daemon/process/service.h). service_init is called once in a process,
 * so each check needs a process of its own: Check's fork mode, not CK_FORK=no. */
#include "daemon/process/service.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char folder[64];
static int manager;

/* A bound socket: `name` is a path, or after '@' an abstract name. */
static void listen_at(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    ck_assert_uint_lt(length, sizeof address.sun_path);
    memcpy(address.sun_path, name, length);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(manager, 0);
    ck_assert_int_eq(bind(manager, (struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
                     0);
}

static void open_manager(void)
{
    char path[96];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/notify", folder);
    listen_at(path);
    setenv("NOTIFY_SOCKET", path, 1);
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

static void close_manager(void)
{
    close(manager);
    folder_remove(folder);
}

/* The next datagram; "" when there is none. */
static const char *heard(void)
{
    static char text[4096];
    ssize_t got = recv(manager, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = '\0';
    return text;
}

static struct monotime at_us(uint64_t us)
{
    return (struct monotime){us * 1000};
}

START_TEST(a_path_is_told)
{
    service_init();
    service_notify("READY=1");
    service_notify("STATUS=episode %d\nERRNO=%d", 12, 5);
    ck_assert_str_eq(heard(), "READY=1");
    ck_assert_str_eq(heard(), "STATUS=episode 12\nERRNO=5");
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(an_abstract_name_is_told)
{
    char name[64];
    close(manager);
    snprintf(name, sizeof name, "@coalesced-test-%ld", (long)getpid());
    listen_at(name);
    setenv("NOTIFY_SOCKET", name, 1);
    service_init();
    service_notify("READY=1");
    ck_assert_str_eq(heard(), "READY=1");
}
END_TEST

/* An address of 107 bytes, the most there can be, and longer ones, which are ignored. */
START_TEST(a_name_is_used_up_to_its_longest)
{
    static const size_t lengths[] = {107, 108, 120};
    char name[121];
    close(manager);
    memset(name, 'n', sizeof name);
    name[snprintf(name, sizeof name, "@coalesced-test-%ld-", (long)getpid())] = 'n';
    name[107] = '\0';
    listen_at(name);
    name[107] = 'n';
    name[lengths[_i]] = '\0';
    setenv("NOTIFY_SOCKET", name, 1);
    setenv("WATCHDOG_USEC", "3000000", 1);
    service_init();
    service_notify("READY=1");
    ck_assert_str_eq(heard(), _i == 0 ? "READY=1" : "");
    ck_assert_int_eq(monotime_is_never(service_watchdog(at_us(1))), _i > 0);
}
END_TEST

/* The last of these is a relative path to the manager's socket. */
START_TEST(no_socket_is_silence)
{
    static const char *const names[] = {NULL, "", "/", "@", "notify"};
    if (names[_i] == NULL)
        unsetenv("NOTIFY_SOCKET");
    else
        setenv("NOTIFY_SOCKET", names[_i], 1);
    setenv("WATCHDOG_USEC", "1000000", 1);
    ck_assert_int_eq(chdir(folder), 0);
    service_init();
    service_notify("READY=1");
    ck_assert(monotime_is_never(service_watchdog(at_us(1))));
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(nothing_is_told_before_init)
{
    service_notify("READY=1");
    ck_assert(monotime_is_never(service_watchdog(at_us(1))));
    ck_assert_str_eq(heard(), "");
}
END_TEST

/* A manager that is gone or does not read does not stop the daemon (the check would time out). */
START_TEST(a_manager_that_is_gone_or_full_stops_nobody)
{
    unsigned told = 0;
    service_init();
    for (unsigned i = 0; i < 10000; i++)
        service_notify("STATUS=episode %u", i);
    while (heard()[0] != '\0')
        told++;
    ck_assert_uint_gt(told, 0);
    ck_assert_uint_lt(told, 10000);
    close(manager);
    service_notify("STOPPING=1");
}
END_TEST

START_TEST(a_text_too_long_is_left_out_whole)
{
    char longest[512], longer[513];
    memset(longest, 'x', sizeof longest);
    memset(longer, 'x', sizeof longer);
    longest[sizeof longest - 1] = longer[sizeof longer - 1] = '\0';
    service_init();
    service_notify("%s", longer);
    service_notify("%s", longest);
    ck_assert_str_eq(heard(), longest);
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(the_watchdog_is_pet_at_half_its_time)
{
    char pid[32];
    setenv("WATCHDOG_USEC", "3000000", 1);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (_i == 1) /* WATCHDOG_PID is optional */
        setenv("WATCHDOG_PID", pid, 1);
    service_init();
    ck_assert_uint_eq(service_watchdog(at_us(100000000)).ns, at_us(101500000).ns);
    ck_assert_str_eq(heard(), "WATCHDOG=1");
    ck_assert_uint_eq(service_watchdog(at_us(101499999)).ns, at_us(101500000).ns);
    ck_assert_str_eq(heard(), "");
    ck_assert_uint_eq(service_watchdog(at_us(101500000)).ns, at_us(103000000).ns);
    ck_assert_str_eq(heard(), "WATCHDOG=1");
    ck_assert_uint_eq(service_watchdog(at_us(200000000)).ns, at_us(201500000).ns);
    ck_assert_str_eq(heard(), "WATCHDOG=1");
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(another_processes_watchdog_is_not_ours)
{
    char pid[32];
    snprintf(pid, sizeof pid, "%ld", (long)getppid());
    const char *const pids[] = {pid, "0", "", "abc", "-1"};
    setenv("WATCHDOG_USEC", "3000000", 1);
    setenv("WATCHDOG_PID", pids[_i], 1);
    service_init();
    ck_assert(monotime_is_never(service_watchdog(at_us(1))));
    service_notify("READY=1"); /* all else works */
    ck_assert_str_eq(heard(), "READY=1");
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(a_watchdog_time_that_is_none_is_ignored)
{
    static const char *const times[] = {"", "0", "-5", "+5", " 5", "5s", "0x10", "abc", "3000000 "};
    setenv("WATCHDOG_USEC", times[_i], 1);
    service_init();
    ck_assert(monotime_is_never(service_watchdog(at_us(1))));
    service_notify("READY=1");
    ck_assert_str_eq(heard(), "READY=1");
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(workers_inherit_none_of_it)
{
    setenv("WATCHDOG_USEC", "3000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    if (_i == 1) /* nor the watchdog's variables where there is no socket */
        unsetenv("NOTIFY_SOCKET");
    service_init();
    ck_assert_ptr_null(getenv("NOTIFY_SOCKET"));
    ck_assert_ptr_null(getenv("WATCHDOG_USEC"));
    ck_assert_ptr_null(getenv("WATCHDOG_PID"));
    service_notify("READY=1"); /* the environment is not needed any more */
    ck_assert_str_eq(heard(), _i == 0 ? "READY=1" : "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("service");
    TCase *manager_case = tcase_create("manager");
    tcase_add_checked_fixture(manager_case, open_manager, close_manager);
    tcase_add_test(manager_case, a_path_is_told);
    tcase_add_test(manager_case, an_abstract_name_is_told);
    tcase_add_loop_test(manager_case, a_name_is_used_up_to_its_longest, 0, 3);
    tcase_add_loop_test(manager_case, no_socket_is_silence, 0, 5);
    tcase_add_test(manager_case, nothing_is_told_before_init);
    tcase_add_test(manager_case, a_manager_that_is_gone_or_full_stops_nobody);
    tcase_add_test(manager_case, a_text_too_long_is_left_out_whole);
    tcase_add_loop_test(manager_case, the_watchdog_is_pet_at_half_its_time, 0, 2);
    tcase_add_loop_test(manager_case, another_processes_watchdog_is_not_ours, 0, 5);
    tcase_add_loop_test(manager_case, a_watchdog_time_that_is_none_is_ignored, 0, 9);
    tcase_add_loop_test(manager_case, workers_inherit_none_of_it, 0, 2);
    suite_add_tcase(suite, manager_case);
    return suite_run(suite);
}
