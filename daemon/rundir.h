/* The run directory: one job's place on disk, and the folder of its sockets.
 *
 *     lock            flock'ed by the supervisor for as long as it lives; holds its pid
 *     job.json        the job as resolved
 *     episodes.log    for people      episodes.jsonl  for programs     (daemon/runlog.h)
 *     checkpoints/    (worker/checkpoint/checkpoint.h)
 *     previous-N/     what earlier runs left
 *
 * Sockets do not live here, because a socket's path may have at most 107 bytes: they live in a 0700 folder
 * of $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/coalesced or /tmp/coalesced-UID, named by a hash of the run
 * directory's real path, so that two runs never meet and a leftover of a killed run is ours to clear. */
#ifndef DAEMON_RUNDIR_H
#define DAEMON_RUNDIR_H

#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"

struct rundir {
    char path[4096];                     /* as it was asked for */
    char real[CONTROL_PATH_BYTES];       /* absolute, without links */
    int fd;                              /* the directory */
    int lock_fd;                         /* held until rundir_close */
    char address[CONTROL_ADDRESS_BYTES]; /* "ipc://…": with ".N" behind it, server N's endpoint */
};

/* Makes (with its parents) and locks the directory `path`; or, when `path` is NULL, NAME under
 * $STATE_DIRECTORY or ./runs. Moves an earlier run's files to previous-N, writes job.json, prepares the
 * folder of sockets. What of the job depends on the machine is settled first (job_resolve). Errors:
 * STATUS_BUSY names the holder's pid; STATUS_PERMISSION, STATUS_IO name the file; STATUS_INVALID when a
 * socket's path would not fit. On error nothing stays locked. */
enum status rundir_open(struct rundir *dir, const char *path, struct job *job, struct error *error);

/* The same for a run that goes on: nothing is moved or made but the lock; `job` must be the run's own, and
 * takes over what is kept of it (resume_adopt); job.json is written anew. STATUS_NOT_FOUND: no run is there;
 * STATUS_INVALID, STATUS_CORRUPT as resume_adopt. */
enum status rundir_resume(struct rundir *dir, const char *path, struct job *job, struct error *error);

/* Removes the sockets that are still there, and lets go of the lock. */
void rundir_close(struct rundir *dir);

#endif
