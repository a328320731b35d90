/* The supervisor: forks the workers, watches them, writes the logs, obeys signals.
 *
 * The room: daemon/ is the service around one job: the command line (main, arguments, commands), the run
 * directory (rundir, socket_folder, resume, job_files), the logs (runlog_*), the workers' supervisor
 * (supervise_*, child) and the service manager (service). It may include the frame of
 * worker/, its job, data, checkpoint, server and parallel rooms, and kernels/base; scripts/rooms has the
 * list. Nothing includes it.
 *
 * One thread; no ZeroMQ, no math library, so that fork is safe at any time. The supervisor decides nothing
 * about training: the lead (worker/roster.h) reports what happened and when the job is over. Its files, and
 * what each decides, are listed in supervise_internal.h.
 *
 * A worker that dies, or must be killed, starts again. A replaceable one (worker/roster.h) starts alone,
 * under its next incarnation. After the death of any other worker all workers are killed and start again
 * under the job's next generation, from the newest sound checkpoint. supervise_exit.c says which deaths end
 * the job.
 *
 * The end, in order: the lead finishes its round and says FINISHED; the clients leave; the servers leave,
 * from the highest number down; the logs close. */
#ifndef DAEMON_SUPERVISE_SUPERVISE_H
#define DAEMON_SUPERVISE_SUPERVISE_H

#include "daemon/hosts/place.h"
#include "daemon/log/runlog.h"
#include "daemon/run/resume.h"
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
    struct place *place; /* of this host, the leader, among others; NULL: the job has one host */
};

/* Runs the job to its end, and blocks until then. STATUS_OK: finished, solved, or stopped by a signal.
 * Otherwise *error is the first failure, and names the worker. No worker is left behind. From the call on,
 * the process takes SIGCHLD, SIGINT, SIGTERM, SIGHUP and SIGUSR1 through a descriptor, and ignores SIGPIPE.
 */
enum status supervise(const struct supervise_config *config, struct error *error);

#endif
