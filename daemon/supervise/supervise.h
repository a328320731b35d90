/* Runs one job from its start to its end: starts its workers, watches them, writes the logs, obeys signals.
 *
 * The room: daemon/supervise is the parent process of a job's workers. It decides which deaths end the job
 * and what starts again. It decides nothing about training: the lead reports what happened, and when the job
 * is over.
 *
 *     roster       the workers of a job, by number (worker/roster.h)
 *     lead         the worker that reports records and the job's end
 *     replaceable  a worker whose successor can take its place while the others go on
 *     incarnation  one process among those that were the same worker, one after the other
 *     generation   all workers between two starts of all of them
 *     child        a worker's process, and its state here (daemon/hosts/child.h)
 *     event        what can happen to a worker: a message, silence, exit, a time that has come
 *     record       an episode, update or epoch that the lead reports, and that becomes lines in the logs
 *     follow-on    a worker's failure that another worker's death has caused
 *     to drain     the lead finishes the running round, writes a checkpoint, and says FINISHED
 *
 *     supervise.c          the loop, the reaction to each event, and which deaths end the job
 *     generation.h         how workers start, how many, and in which order they leave
 *     placement.h          on which host a worker starts
 *     run_view.h          status, page and metrics, and where the workers' time went
 *
 * The end, in order: the lead says FINISHED; the clients leave; the servers leave, from the highest number
 * down; the logs close.
 *
 * One thread; no ZeroMQ, no math library, so that fork is safe at any time. */
#ifndef DAEMON_SUPERVISE_SUPERVISE_H
#define DAEMON_SUPERVISE_SUPERVISE_H

#include "daemon/hosts/rendezvous.h"
#include "daemon/log/runlog.h"
#include "daemon/run/rundir.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

struct supervise_config {
    struct job *job; /* /log may change when the job file is read again */
    struct rundir *dir;
    struct runlog *log;
    const char *job_path; /* read again on SIGHUP */
    const char *const *overrides;
    size_t override_count;
    struct rendezvous *rendezvous; /* of this host, the leader, with the others; NULL: the job has one host */
};

/* Runs the job to its end, and blocks until then. STATUS_OK: finished, solved, or stopped by a signal.
 * Otherwise *error is the first failure, and names the worker. No worker is left behind. From the call on,
 * the process takes SIGCHLD, SIGINT, SIGTERM, SIGHUP and SIGUSR1 through a descriptor, and ignores SIGPIPE.
 */
enum status supervise(const struct supervise_config *config, struct error *error);

#endif
