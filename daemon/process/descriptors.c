/* Counts the descriptors that a job needs, and raises the limit on open files. Supervisor process; its only
 * thread. */
#include "daemon/process/descriptors.h"

#include "daemon/watch/status_socket.h"
#include "worker/roster.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sys/resource.h>

/* What the supervisor opens beside what is open when it begins to listen. */
enum {
    FORK = 3, /* the other end of a line, the note of its call, a file that the new process opens */
    STATUS = STATUS_WAITS + 1, /* a client comes before the oldest one goes */
    LOGS = 1,                  /* a new one, before the old one is left */
    TENSORBOARD = 1,
    FILES = 4, /* of a call that closes what it opens, such as the search for the newest checkpoint */
    LATER = FORK + STATUS + LOGS + TENSORBOARD + FILES,
    LINK = 2, /* of a job of several hosts: its line, and the directory that it starts in */
};

/* Open when the supervisor begins to listen, but for what it has inherited: the standard ones, the run's
 * directory and lock, two logs, the signals, the service manager's socket. */
enum { BEFORE = 3 + 2 + 2 + 1 + 1, OWN = 30 };

_Static_assert(BEFORE + LATER + LINK <= OWN, "a job that is let in has what its supervisor needs");

/* A line for each worker, and its segment. */
static rlim_t workers_need(const struct roster *roster)
{
    const rlim_t workers = roster_workers(roster);
    return roster->segments ? 2 * workers : workers;
}

/* A process of the job needs at most: a control line or connection for each worker, a socket for each worker
 * that it dials, a segment of each worker where there are segments, and some for its own files and libraries
 * (seen in a worker: 15). */
enum status descriptors_raise_limit(const struct job *job, struct error *error)
{
    const struct roster roster = roster_of(job);
    const rlim_t needed = OWN + workers_need(&roster) + roster.listeners;
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

/* One of them is the folder's own. Without /proc there is no telling. */
static rlim_t count_open(void)
{
    DIR *folder = opendir("/proc/self/fd");
    rlim_t count = 0;
    if (folder == NULL)
        return RLIM_INFINITY;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1;
}

unsigned descriptors_spare(const struct job *job, bool has_hosts)
{
    const struct roster roster = roster_of(job);
    const rlim_t workers = has_hosts ? LINK + 2 * (rlim_t)ROSTER_WORKERS_MAX : workers_need(&roster);
    const rlim_t open = count_open();
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || open >= limit.rlim_cur ||
        limit.rlim_cur - open <= workers + LATER)
        return 0;
    const rlim_t spare = limit.rlim_cur - open - workers - LATER;
    return spare < UINT_MAX ? (unsigned)spare : UINT_MAX;
}
