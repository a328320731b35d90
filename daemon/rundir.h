/* The run directory: one job's place on disk.
 *
 *     lock            flock'ed by the supervisor as long as it lives; holds its process id
 *     job.json        the job, every key with its value
 *     episodes.log    for people      episodes.jsonl  for programs     (daemon/runlog.h)
 *     checkpoints/    (worker/checkpoint/checkpoint.h)
 *     previous-N/     the same files of an earlier run
 *
 * Supervisor process, before it forks; blocks on files. The run's sockets lie elsewhere
 * (daemon/socket_folder.h). Included by commands.c and the supervisor. */
#ifndef DAEMON_RUNDIR_H
#define DAEMON_RUNDIR_H

#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"

#include <stdbool.h>

struct rundir {
    char path[4096];                     /* as on the command line */
    char real[CONTROL_PATH_BYTES];       /* absolute, without links */
    int fd;                              /* the directory */
    int lock_fd;                         /* locked until rundir_close */
    char address[CONTROL_ADDRESS_BYTES]; /* of its sockets (daemon/socket_folder.h); "": none */
};

/* Opens and locks the directory `path`; where that is NULL, NAME below $STATE_DIRECTORY or ./runs. Resolves
 * the job (job_resolve), writes job.json, and makes the folder of sockets (socket_folder_open). After an
 * error nothing stays locked. STATUS_BUSY names the process that holds the lock; STATUS_PERMISSION and
 * STATUS_IO name the file; STATUS_INVALID: a path is too long.
 *
 * Without `resume` the directory is made with its parents, and an earlier run's files move to previous-N.
 * With `resume` its files stay, and `job` must be the run's own job (errors of resume_adopt).
 * STATUS_NOT_FOUND: there is no run. */
enum status rundir_open(struct rundir *dir, const char *path, struct job *job, bool resume,
                        struct error *error);

/* Removes the sockets that are still there, and unlocks the directory. */
void rundir_close(struct rundir *dir);

#endif
