/* --resume: whether a job is the one that a run directory began with, and where it goes on.
 *
 * What a run has computed stands for one job; only when it stops, what it logs, when it saves and how it is
 * watched may change on the way; of a model-parallel job not what it logs, for its lines are means over so
 * many updates. What depended on the machine when the run began (/trainers/threads, /threads) is kept, unless
 * the job file says it itself. The supervisor's process, before it forks; blocks on files. */
#ifndef DAEMON_RESUME_H
#define DAEMON_RESUME_H

#include "kernels/base/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/job/job.h"

/* Takes over from the job that a run began with what its file leaves to the machine. */
void resume_keep(struct job *job, const struct job *began);

/* Compares `job` with the job file of the run, `path`, after resume_keep. STATUS_NOT_FOUND: there
 * is no such file; STATUS_CORRUPT: it is no job file; STATUS_INVALID names the keys that differ. */
enum status resume_adopt(const char *path, struct job *job, struct error *error);

struct resume_point {
    char checkpoint[CHECKPOINT_PATH_BYTES]; /* "": the run goes on from its beginning */
    uint64_t update;                        /* the last that is in it */
};

/* Finds the newest sound checkpoint of the run in `run_dir`, with a warning for each newer one that is
 * damaged; none at all is told, and no error. STATUS_IO, STATUS_NO_MEMORY. */
enum status resume_find(struct resume_point *point, const char *run_dir, struct error *error);

#endif
