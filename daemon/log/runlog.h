/* Writes the run's logs: episodes.log for people, episodes.jsonl for programs, and the lines of episodes.log
 * on stdout.
 *
 * The room: daemon/log writes down what a run does, and reads it back.
 *
 *     record         an episode, an update or an epoch, as the lead reports it (worker/control.h)
 *     line           a record or an event, as text
 *     event          a line that is no record: a start, a resume, a restart, an end
 *     log            a file of lines on the disk (log_file.h)
 *     place          a position in a log: lines, bytes, and a digest of the lines so far
 *     rotation       someone renames a log, and the run goes on in a new file
 *     progress line  the line below all others on a terminal, which redraws (progress.h)
 *     timing         the member of a line for all values that two runs of one seed may differ in
 *
 * The supervisor is the only writer. episodes.jsonl has every episode, update and epoch. episodes.log and
 * stdout have every `every`th episode or update (/log/every), and the one that ends the job by /stop. A
 * model-parallel job's workers report these alone, with the mean of those between, so both files have just
 * these. After a resume with a later /stop, the line of the earlier end stays.
 *
 * With /log/tensorboard each record also makes an event for TensorBoard (tensorboard.h). Where that fails, a
 * warning says so once. A line that stdout cannot take at once is not shown there. Supervisor process; its
 * only thread; blocks on the disk alone. */
#ifndef DAEMON_LOG_RUNLOG_H
#define DAEMON_LOG_RUNLOG_H

#include "daemon/log/progress.h"
#include "kernels/base/file.h"
#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"
#include "worker/run_place.h"

#include <stdbool.h>

struct runlog;

/* RUNLOG_LINE_BYTES: room for the longest line: the references of each worker to the objects of each other
 * one, `"N":COUNT,` with at most 18 bytes; a trainer's loss and the counts of each worker; and every double
 * with at most 330. An episode's line is shorter: 64 metrics with names of 63 bytes, each of which may
 * take 6. */
enum {
    RUNLOG_WORKERS_MAX = JOB_SERVERS_MAX + JOB_TRAINERS_MAX,
    RUNLOG_LINE_BYTES = 8192 + 128 * RUNLOG_WORKERS_MAX + 18 * RUNLOG_WORKERS_MAX * RUNLOG_WORKERS_MAX,
    RUNLOG_TAIL_LINES = 16,
    RUNLOG_TAIL_BYTES = 200,
    EPISODE_MEANS_BYTES = CONTROL_METRICS_MAX * (2 * CONTROL_METRIC_NAME_BYTES + 330),
};

/* Opens both logs in the run's directory, which outlives the log. `identity`: of the run; where the log
 * names a run, its id stands in place of identity->id. */
enum status runlog_open(struct runlog **out, struct path run, const struct job *job,
                        const struct run_identity *identity, struct error *error);
/* Clears the progress line and closes; NULL is allowed. */
void runlog_close(struct runlog *log);

/* From now on `take` gets each line of episodes.jsonl once it is in the file. */
void runlog_listen(struct runlog *log, void (*take)(void *arg, const char *line, size_t length), void *arg);

/* What the workers use, in sum: the `timing` of the next records has it. */
struct run_use {
    double cores;            /* processors that they keep busy */
    uint64_t resident_bytes; /* 0: not known, and no line has any of the three */
    double queue;            /* requests that wait */
};
void runlog_note_use(struct runlog *log, const struct run_use *use);

/* The last lines of episodes.log that this process wrote, oldest first, without their ends; long ones are
 * cut. They are the log's own, until the next record. Returns how many. */
unsigned runlog_tail(const struct runlog *log, const char *lines[RUNLOG_TAIL_LINES]);

/* Adds a message of the daemon to these lines. */
void runlog_note_message(struct runlog *log, const char *text);

/* Clears the progress line before something else is written to the terminal; the next record draws it again.
 */
void runlog_clear_progress(struct runlog *log);

/* Takes how far an evaluation has come, as the sum over the workers, and draws it. */
void runlog_evaluating(struct runlog *log, struct control_share evaluating);

/* Draws a change of the progress line that came too soon after another to be drawn. Cheap. */
void runlog_redraw(struct runlog *log);

/* How far the run has come. */
const struct progress *runlog_progress(const struct runlog *log);

/* ---- places ---- */

/* The place behind the newest lines. */
void runlog_place(const struct runlog *log, struct run_place *place);

/* Whether a checkpoint of this place has the run's seed and job. STATUS_CORRUPT with a sentence: it has not.
 */
enum status runlog_owns(const struct runlog *log, const struct run_place *place, struct error *why);

/* Whether at least `least` logs confirm the place (daemon/log/log_file.h). STATUS_CORRUPT with a sentence:
 * fewer do. STATUS_IO, STATUS_NO_MEMORY. */
enum status runlog_confirm(const struct runlog *log, const struct run_place *place, unsigned least,
                           struct error *why);

/* Whether a rotation has renamed a log. Its lines still go to the renamed file. */
bool runlog_is_moved(const struct runlog *log);

/* Goes on in new files, where the files were renamed. `place`: of a checkpoint that is visible now; lines
 * behind it move to the new files, so a resume need not cut a file that was renamed. An error names the file;
 * then the lines go on into the old one. */
enum status runlog_continue(struct runlog *log, const struct run_place *place, struct error *error);

/* ---- lines ---- */

/* A worker died: a successor takes its place, or all workers start again. */
struct line_restart {
    const char *role; /* NULL: none died, all start again with another number of observers or trainers */
    uint16_t worker;
    uint32_t incarnation; /* the successor's; where all start again, the one that died */
    uint32_t generation;  /* where all start again; else 0 */
    const char *reason;   /* a sentence, which may quote anything */
};

/* One line each: of a start; of a resume; of a worker that starts again; of an episode, update or epoch; of
 * the end, which also is a line on stdout alone. `holdings`: what each worker reported last. Only a
 * model-parallel job's lines show it: an epoch what each worker holds, the end the sums, which are 0 after an
 * orderly end. STATUS_IO names the file.
 *
 * runlog_finish: `why` is "finished", "solved", "stopped" or "failed". `reason`: why it failed, a sentence
 * that may quote anything; else NULL.
 *
 * runlog_resume: from the checkpoint of `place`, after update or episode `update`, at which the running
 * reward was `running_reward`; NULL: from the run's beginning. By a command (cause NULL), or because of a
 * death. Moves the lines behind the place to NAME.cut, and says so. A line of such an episode, update or
 * epoch is written again when it is computed again, but not shown on stdout again. */
enum status runlog_start(struct runlog *log, struct error *error);
enum status runlog_resume(struct runlog *log, const struct run_place *place, uint64_t update,
                          double running_reward, const struct line_restart *cause, struct error *error);
enum status runlog_restart(struct runlog *log, const struct line_restart *restart, struct error *error);
enum status runlog_record(struct runlog *log, const struct control_message *record,
                          const struct control_status *holdings, struct error *error);
enum status runlog_finish(struct runlog *log, const char *why, const char *reason,
                          const struct control_finished *finished, const struct control_status *holdings,
                          struct error *error);

/* A run's path, from the current folder on if it lies below. */
const char *runlog_short_path(const char *path);

/* The command that uses what a run of this kind has trained: "play", "evaluate" or "generate". */
const char *runlog_command(const char *kind);

/* "finished", "solved", "stopped" or "failed", where the event is one of these; else NULL. */
const char *runlog_end(const char *event);

/* Whether the line of episodes.jsonl says that a run has ended by this job's /stop: finished or solved, and
 * /stop was the same. */
bool runlog_ends_job(const char *line, const struct job *job);

/* Writes "\tNAME: MEAN" for each metric of ended episodes, "-" where no episode has ended, and a zero. Names
 * are made fit to show (kernels/base/text.h). A count or a name that no worker should send is cut. Pure. */
void episode_means_text(char out[EPISODE_MEANS_BYTES], const struct control_metrics *metrics);

#endif
