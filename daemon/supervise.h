/* The supervisor: forks the workers, watches them, writes the logs, obeys signals.
 *
 * One thread; no ZeroMQ, no math library, so that fork is safe at any time. It decides nothing about
 * training: the lead (worker/roster.h) says what happened and when the job is over. What it does when a
 * worker says or does something is one table, [state of the worker][event], in supervise_table.c.
 *
 * The end, in order: the lead finishes its round and says FINISHED; the clients leave; the servers leave,
 * from the highest number down; the logs close. A worker that dies unasked ends the job. */
#ifndef DAEMON_SUPERVISE_H
#define DAEMON_SUPERVISE_H

#include "daemon/resume.h"
#include "daemon/rundir.h"
#include "daemon/runlog.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

struct supervise_config {
    struct job *job; /* `log` may change when the job file is read again */
    struct rundir *dir;
    struct runlog *log;
    const struct resume_point *resume; /* NULL: a fresh start */
    const char *job_path;              /* for SIGHUP */
    const char *const *overrides;
    size_t override_count;
};

/* Runs the job to its end. STATUS_OK: finished, solved, or stopped by a signal. Otherwise *error is the
 * first thing that went wrong, naming the worker. No worker is left behind. Blocks until then. Takes over
 * SIGCHLD, SIGINT, SIGTERM, SIGHUP and SIGUSR1 of the process. */
enum status supervise(const struct supervise_config *config, struct error *error);

#endif
