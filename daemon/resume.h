/* --resume: whether a job is the one that a run directory was made for, and the checkpoint from which it goes
 * on.
 *
 * Supervisor process, before it forks; blocks on files. Includes worker/job and worker/checkpoint; rundir.c,
 * supervise_signals.c and commands.c include this. */
#ifndef DAEMON_RESUME_H
#define DAEMON_RESUME_H

#include "kernels/base/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/job/job.h"

/* Copies the numbers of threads that the file of `job` leaves to the machine from `began`, the job with which
 * the run began. The sums of gradients depend on these numbers. */
void resume_keep(struct job *job, const struct job *began);

/* Compares `job`, after resume_keep, with the run's job file `path`. They may differ in /stop, /log,
 * /checkpoint, /supervise, /hosts and /listen alone, and in a model-parallel job not in /log: its lines are
 * means over so many updates. STATUS_NOT_FOUND: there is no such file. STATUS_CORRUPT: it is no job file.
 * STATUS_INVALID names the keys that differ. */
enum status resume_adopt(struct path path, struct job *job, struct error *error);

struct resume_point {
    char checkpoint[CHECKPOINT_PATH_BYTES]; /* its folder; "": the run starts again from its beginning */
    uint64_t update;                        /* the last update or episode in it */
    double running_reward;                  /* reinforce: after that episode; else 0 */
};

/* Finds the newest sound checkpoint of the run in the directory `run`, whose logs have every line up to
 * update or episode `covered` (daemon/runlog_coverage.h), and logs it; sets each checkpoint aside that is
 * later; warns of each newer one that is damaged. To find none is no error. STATUS_IO, STATUS_PERMISSION,
 * STATUS_NO_MEMORY. */
enum status resume_find(struct resume_point *point, struct path run, uint64_t covered, struct error *error);

#endif
