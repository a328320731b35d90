/* How the exit of a worker process is found and described (daemon/hosts/child.h). */
#include "daemon/hosts/child.h"
#include "test/workplace.h"

#include <check.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct child child;

/* A child process that exits with `code` at once. */
static void fork_child(int code)
{
    child = (struct child){.state = CHILD_READY, .name = "observer 3"};
    child.pid = fork();
    ck_assert_int_ge(child.pid, 0);
    if (child.pid == 0)
        _exit(code);
}

START_TEST(an_exit_is_waited_for_and_told)
{
    char wanted[64];
    fork_child(7);
    ck_assert(child_reap(&child, true));
    snprintf(wanted, sizeof wanted, "observer 3 (process %d) exited with code 7", (int)child.pid);
    ck_assert_str_eq(child.end, wanted);
}
END_TEST

START_TEST(a_child_that_lives_is_not_reaped)
{
    child = (struct child){.state = CHILD_READY, .name = "observer 3"};
    child.pid = fork();
    if (child.pid == 0) {
        pause();
        _exit(0);
    }
    ck_assert(!child_reap(&child, false));
    child_kill(&child);
    ck_assert_int_eq(child.state, CHILD_KILLED);
    ck_assert(child_reap(&child, true));
    ck_assert_ptr_nonnull(strstr(child.end, "was killed by signal 9 (Killed)"));
}
END_TEST

START_TEST(a_child_that_another_has_reaped_is_gone)
{
    fork_child(0);
    ck_assert_int_eq(waitpid(child.pid, NULL, 0), child.pid);
    ck_assert(child_reap(&child, false));
    ck_assert_ptr_nonnull(strstr(child.end, "is gone: how it ended is not known"));
}
END_TEST

/* The reset of a line arrives ahead of what the worker has said last. */
START_TEST(the_last_words_of_a_child_with_unread_orders_are_heard)
{
    static struct control_message message;
    int line[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
    child = (struct child){.state = CHILD_READY, .name = "observer 3", .fd = line[0]};
    ck_assert_int_eq(control_send(line[0], CONTROL_HURRY, NULL, 0), STATUS_OK);
    ck_assert_int_eq(control_send(line[1], CONTROL_READY, NULL, 0), STATUS_OK);
    close(line[1]);
    ck_assert_int_eq(child_receive(&child, &message), STATUS_AGAIN);
    ck_assert_int_eq(child_fd(&child), -1);
    ck_assert_int_eq(child_receive(&child, &message), STATUS_OK);
    ck_assert_uint_eq(message.kind, CONTROL_READY);
    ck_assert_int_eq(child_receive(&child, &message), STATUS_AGAIN);
    child_bury(&child);
}
END_TEST

START_TEST(a_child_that_takes_no_orders_is_killed)
{
    int line[2], status = 0;
    enum { ORDERS_MAX = 100000 };
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
    child = (struct child){.state = CHILD_READY, .name = "observer 3", .fd = line[0]};
    child.pid = fork();
    if (child.pid == 0) {
        pause();
        _exit(0);
    }
    for (unsigned i = 0; i < ORDERS_MAX && waitpid(child.pid, &status, WNOHANG) == 0; i++)
        child_order(&child, CONTROL_HURRY, NULL, 0);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(line[0]);
    close(line[1]);
}
END_TEST

static bool dies_at_once;

/* The C library's, but one child is dead when this returns. */
pid_t fork(void)
{
    siginfo_t end;
    pid_t (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "fork");
    const pid_t pid = next();
    if (pid == 0 && dies_at_once)
        raise(SIGKILL);
    if (pid > 0 && dies_at_once)
        waitid(P_PID, (id_t)pid, &end, WEXITED | WNOWAIT);
    dies_at_once = false;
    return pid;
}

/* It is killed before START is sent. */
START_TEST(a_child_that_dies_at_once_is_reaped)
{
    const struct control_start start = {.worker = 1, .role = WIRE_ROLE_OBSERVER};
    const struct spawn_segments segments = {0};
    const struct spawn_setting setting = {.run_fd = STDIN_FILENO, .segments = &segments};
    struct error error = {0};
    child = (struct child){.state = CHILD_GONE, .deaths = 3};
    dies_at_once = true;
    ck_assert_msg(child_spawn(&child, &start, "{}", 2, &setting, &error) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(child.deaths, 3);
    ck_assert(child_reap(&child, false));
    ck_assert_ptr_nonnull(strstr(child.end, "was killed by signal 9 (Killed)"));
    close(child.fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("child");
    TCase *ends = tcase_create("ends");
    tcase_add_test(ends, an_exit_is_waited_for_and_told);
    tcase_add_test(ends, a_child_that_lives_is_not_reaped);
    tcase_add_test(ends, a_child_that_another_has_reaped_is_gone);
    tcase_add_test(ends, a_child_that_takes_no_orders_is_killed);
    tcase_add_test(ends, a_child_that_dies_at_once_is_reaped);
    tcase_add_test(ends, the_last_words_of_a_child_with_unread_orders_are_heard);
    suite_add_tcase(suite, ends);
    return suite_run(suite);
}
