/* Counts descriptors, and raises the limit. Supervisor process; its only thread. */
#include "daemon/descriptors.h"

#include "worker/roster.h"

#include <errno.h>
#include <sys/resource.h>

/* The most that any one process of the job needs: a control line or connection for each worker, a socket for
 * each worker that it dials, a segment of each worker where there are segments, and some for its own files
 * and libraries (seen: 15). */
static rlim_t descriptors_needed(const struct roster *roster)
{
    enum { OWN = 32 };
    const rlim_t workers = roster_workers(roster);
    return OWN + workers + roster->listeners + (roster->segments ? workers : 0);
}

enum status descriptors_raise_limit(const struct job *job, struct error *error)
{
    const struct roster roster = roster_of(job);
    const rlim_t needed = descriptors_needed(&roster);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return error_set_errno(error, errno, "cannot read the limit on open files");
    if (limit.rlim_max < needed) /* RLIM_INFINITY is the largest number */
        return error_set(error, STATUS_INVALID,
                         "a job of %u workers needs %llu open files in a process, and the hard limit (ulimit "
                         "-Hn) is %llu: expected a higher limit, or fewer workers",
                         roster_workers(&roster), (unsigned long long)needed,
                         (unsigned long long)limit.rlim_max);
    const rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (soft < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) != 0 && soft < needed)
        return error_set_errno(error, errno, "cannot raise the limit on open files to %llu",
                               (unsigned long long)limit.rlim_max);
    return STATUS_OK;
}
