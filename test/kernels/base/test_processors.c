/* The number of processors. This test has a sched_getaffinity(2) of its own, which answers as a small
 * machine, as a machine with more processors than a cpu_set_t holds, or with an error. */
#include "kernels/base/thread.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

static size_t machine; /* processors; 0: the call fails */
static int failure;

/* As Linux: a mask that is too small for the machine is refused. */
int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    (void)pid;
    errno = machine > 8 * bytes ? EINVAL : failure;
    if (errno != 0)
        return -1;
    memset(set, 0, bytes);
    for (size_t i = 0; i < machine; i += 2) /* every other one is another's */
        CPU_SET_S(i, bytes, set);
    return 0;
}

START_TEST(test_machines_of_any_size)
{
    static const size_t sizes[] = {2, 64, 1024, 1026, 4096, 8000};
    machine = sizes[_i];
    failure = 0;
    ck_assert_uint_eq(processors_count(), machine / 2);
}
END_TEST

START_TEST(test_a_kernel_that_does_not_say)
{
    machine = 4;
    failure = ENOSYS;
    ck_assert_uint_eq(processors_count(), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("processors");
    TCase *tcase = tcase_create("processors");
    tcase_add_loop_test(tcase, test_machines_of_any_size, 0, 6);
    tcase_add_test(tcase, test_a_kernel_that_does_not_say);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
