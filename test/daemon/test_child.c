/* How the exit of a worker process is found and described (daemon/child.h). */
#include "daemon/child.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct child child;
static char text[160];

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
    ck_assert(child_reap(&child, true, text, sizeof text));
    snprintf(wanted, sizeof wanted, "observer 3 (process %d) exited with code 7", (int)child.pid);
    ck_assert_str_eq(text, wanted);
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
    ck_assert(!child_reap(&child, false, text, sizeof text));
    child_kill(&child);
    ck_assert_int_eq(child.state, CHILD_KILLED);
    ck_assert(child_reap(&child, true, text, sizeof text));
    ck_assert_ptr_nonnull(strstr(text, "was killed by signal 9 (Killed)"));
}
END_TEST

START_TEST(a_child_that_another_has_reaped_is_gone)
{
    fork_child(0);
    ck_assert_int_eq(waitpid(child.pid, NULL, 0), child.pid);
    ck_assert(child_reap(&child, false, text, sizeof text));
    ck_assert_ptr_nonnull(strstr(text, "is gone: how it ended is not known"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("child");
    TCase *ends = tcase_create("ends");
    tcase_add_test(ends, an_exit_is_waited_for_and_told);
    tcase_add_test(ends, a_child_that_lives_is_not_reaped);
    tcase_add_test(ends, a_child_that_another_has_reaped_is_gone);
    suite_add_tcase(suite, ends);
    return suite_run(suite);
}
