/* Continuing a run: --resume and each new generation go on from a checkpoint. A run's numbers depend on the
 * job's keys except /stop, /checkpoint, /supervise, /hosts, /listen, /metrics and /log. In a model-parallel
 * job they depend on /log, too: its lines are means over so many updates.
 *
 * Supervisor process, before it forks, or a follower's; its only thread; blocks on files. */
#ifndef DAEMON_RUN_RESUME_H
#define DAEMON_RUN_RESUME_H

#include "daemon/log/runlog.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/job/job.h"

#include <stdbool.h>

/* Reads RUN/job.json, `path`. STATUS_CORRUPT: it is no job file; others as job_read_file. */
enum status resume_read_job(struct job *job, struct path path, struct error *error);

/* Copies the numbers of threads that the file of `job` leaves to the machine from `began`, the job with which
 * the run began. The sums of gradients depend on these numbers. */
void resume_keep(struct job *job, const struct job *began);

/* Has `job` keep the threads of the run's job file `path` (resume_keep), and compares the two: the keys that
 * numbers depend on must be equal. STATUS_NOT_FOUND: there is no such file. STATUS_CORRUPT: it is no job
 * file. STATUS_INVALID names the keys that differ. */
enum status resume_adopt(struct path path, struct job *job, struct error *error);

/* Whether a sound checkpoint of the run in the directory has the numbers of `job`: for a run without its
 * job.json. */
bool resume_recognizes(struct path run, const struct job *job);

/* The identity of a run of `job`, with a new id. */
struct run_identity resume_identity(const struct job *job);

struct resume_point {
    char checkpoint[CHECKPOINT_PATH_BYTES]; /* its folder; "": the run starts again from its beginning */
    struct run_place place;                 /* that it names, in the logs */
    uint64_t update;                        /* the last update or episode in it */
    double running_reward;                  /* reinforce: after that episode; else 0 */
};

/* Goes back to a checkpoint of the run in the directory `run`. Takes the newest sound one whose place both
 * logs confirm; if there is none, the newest whose place one log confirms; if there is none, the newest. A
 * damaged log is no reason to lose what was learned. Where the run has no checkpoint, it goes back to its
 * beginning.
 *
 * Sets later checkpoints aside, and cuts the logs behind the place (runlog_resume, with `cause`). Says each
 * in a line, and warns of each newer checkpoint that it passes over. STATUS_IO, STATUS_PERMISSION,
 * STATUS_NO_MEMORY; STATUS_INVALID: all sound checkpoints are another run's, or an older version of the
 * program has written one. */
enum status resume_go_back(struct resume_point *point, struct path run, struct runlog *log,
                           const struct line_restart *cause, struct error *error);

/* The last line of the run's episodes.jsonl, which the caller frees; "": the line is not whole; NULL: there
 * is no such file. */
char *resume_last_line(struct path run);

/* Whether the run in the directory has ended, is of this job, and /stop asks for no more than it did. Opens
 * nothing but the directory, and its log and job.json, to read. */
bool resume_is_over(const char *run_dir, const struct job *job);

#endif
