/* The run directory: one job's place on disk.
 *
 * The room: daemon/run keeps a job's run on disk, and lets it go on from there (resume.h).
 *
 *     run         one training of a job, over all its starts and resumes
 *     identity    a run's id and the job's keys that its numbers depend on
 *     place       a position in a log, which a checkpoint names (daemon/log/log_file.h)
 *
 *     lock            flock'ed by the supervisor as long as it lives; holds its process id
 *     job.json        the job, every key with its value
 *     episodes.log    for people      episodes.jsonl  for programs     (daemon/log/runlog.h)
 *     episodes.log.cut, episodes.jsonl.cut             lines behind a checkpoint (daemon/log/log_file.h)
 *     episodes.log.damaged, episodes.jsonl.damaged     logs that confirmed no checkpoint
 *     checkpoints/    (worker/checkpoint/checkpoint.h)
 *     previous-N/     the same files of an earlier run
 *
 * The run's sockets lie elsewhere (daemon/process/socket_folder.h). Supervisor process, before it forks; its
 * only thread; blocks on files. */
#ifndef DAEMON_RUN_RUNDIR_H
#define DAEMON_RUN_RUNDIR_H

#include "worker/control.h"
#include "worker/job/job.h"

#include <stdbool.h>

enum { RUNDIR_PATH_BYTES = 4096 };

/* The path of the run directory: `path`; where that is NULL, NAME below $STATE_DIRECTORY or ./runs.
 * STATUS_INVALID: it is too long. */
enum status rundir_choose(char chosen[RUNDIR_PATH_BYTES], const char *path, const struct job *job,
                          struct error *error);

struct rundir {
    char path[RUNDIR_PATH_BYTES];        /* as on the command line */
    char real[CONTROL_PATH_BYTES];       /* absolute, without links: for messages */
    int fd;                              /* the directory, open from rundir_open to rundir_close */
    int lock_fd;                         /* locked until rundir_close */
    bool resumed;                        /* its run goes on; false: a run begins */
    char address[CONTROL_ADDRESS_BYTES]; /* of its sockets (daemon/process/socket_folder.h); "": none */
};

/* Opens and locks the directory of rundir_choose, which is the run of messages from then on (log_run).
 * Resolves the job (job_resolve), writes job.json, and makes the folder of sockets (socket_folder_open).
 * After an error nothing stays locked. STATUS_BUSY names the process that holds the lock; STATUS_PERMISSION
 * and STATUS_IO name the file; STATUS_INVALID: a path is too long.
 *
 * The directory is made with its parents where it is missing. Without `resume` an earlier run's files move to
 * previous-N. With `resume` they stay, and `job` must be the run's own job (STATUS_INVALID names the keys
 * that differ; STATUS_CORRUPT: job.json is no job file; STATUS_NOT_FOUND: there are logs or checkpoints and
 * no job.json). A job.json that is missing or damaged is written anew, with a warning, where a sound
 * checkpoint has the numbers of `job`. Where there is no run, one begins, and a line in the log says so. */
enum status rundir_open(struct rundir *dir, const char *path, struct job *job, bool resume,
                        struct error *error);

/* The directory, below which the run's files are: where it is now, if it was renamed since. */
struct path rundir_path(const struct rundir *dir);

/* Removes the sockets that are still there, and unlocks the directory. */
void rundir_close(struct rundir *dir);

#endif
