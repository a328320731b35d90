/* Starts threads, and words a refusal with the limits that may have caused it. Any thread. */
#include "kernels/base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static void add_limit(char limits[THREAD_LIMITS_BYTES], int resource, rlim_t unit, const char *name)
{
    struct rlimit limit;
    const size_t length = strlen(limits);
    if (getrlimit((__rlimit_resource_t)resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(limits + length, THREAD_LIMITS_BYTES - length, "%s%llu %s",
                 length == 0 ? " (limits: " : ", ", (unsigned long long)(limit.rlim_cur / unit), name);
}

void thread_limits(char limits[THREAD_LIMITS_BYTES])
{
    limits[0] = '\0';
    add_limit(limits, RLIMIT_NPROC, 1, "processes");
    add_limit(limits, RLIMIT_AS, 1024, "KiB of memory");
    const size_t length = strlen(limits);
    if (length > 0)
        snprintf(limits + length, THREAD_LIMITS_BYTES - length, ")");
}

enum status thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *what,
                         struct error *error)
{
    char limits[THREAD_LIMITS_BYTES];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed == 0)
        return STATUS_OK;
    thread_limits(limits);
    return error_set_errno(error, failed, "cannot start %s%s", what, limits);
}

/* A cpu_set_t holds 1,024 processors, and the kernel refuses a set that is too small for the machine with
 * EINVAL; so the buffer grows. */
uint32_t processors_count(void)
{
    uint32_t processors = 1;
    for (size_t most = CPU_SETSIZE; most <= 64 * CPU_SETSIZE; most *= 2) {
        cpu_set_t *set = CPU_ALLOC(most);
        if (set == NULL)
            return 1;
        int failed = sched_getaffinity(0, CPU_ALLOC_SIZE(most), set);
        if (failed == 0)
            processors = (uint32_t)CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
        CPU_FREE(set);
        if (failed == 0 || errno != EINVAL)
            break;
    }
    return processors;
}
