/* The run's logs: episodes.log for people, episodes.jsonl for programs, and the lines of episodes.log on
 * stdout.
 *
 * The supervisor is the only writer. A line is one write(2) on an O_APPEND descriptor; where it does not fit
 * (a full disk), the part that was written is cut off again. episodes.jsonl has every episode, update and
 * epoch; episodes.log and stdout have every `every`th episode or update (/log/every). A model-parallel job's
 * workers report only every `every`th update, with the mean of those between, so both files have just these.
 * With /log/tensorboard each new line of a record in episodes.jsonl makes an
 * event for TensorBoard, too (daemon/tensorboard.h); where that fails, a warning says so once. All values
 * that may differ between two runs of one seed are in the member `timing`. On a terminal a progress line is
 * drawn below the lines. Blocks on the disk alone: a line that stdout cannot take at once is not shown there.
 * Included by the supervisor and commands.c; includes worker/control.h for the records. */
#ifndef DAEMON_RUNLOG_H
#define DAEMON_RUNLOG_H

#include "daemon/runlog_lines.h"
#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"

struct runlog;

enum { RUNLOG_TAIL_LINES = 16, RUNLOG_TAIL_BYTES = 200 };

/* Opens both logs in the directory `dir_fd` (named `path` in messages), and syncs the directory. */
enum status runlog_open(struct runlog **out, int dir_fd, const char *path, const struct job *job,
                        struct error *error);
/* Clears the progress line and closes; NULL is allowed. */
void runlog_close(struct runlog *log);

/* The last lines of episodes.log that this process wrote, oldest first, without their ends; long ones are
 * cut. They are the log's own, until the next record. Returns how many. */
unsigned runlog_tail(const struct runlog *log, const char *lines[RUNLOG_TAIL_LINES]);

/* Clears the progress line before something else is written to the terminal; the next record draws it again.
 */
void runlog_clear_progress(struct runlog *log);

/* Opens the files again by their names, for rotation by rename: no line is lost or split. The old files are
 * synced, and one that cannot be fails the next record. After an error the old files are kept. */
enum status runlog_reopen(struct runlog *log, struct error *error);

/* One line each: of a start; of a resume; of a worker that starts again; of an episode, update or epoch; of
 * the end. `holdings`: what each worker reported last; only a model-parallel job's lines show it. STATUS_IO
 * names the file. Of a resumed run: STATUS_INTERNAL, it computed other numbers than before; STATUS_INVALID,
 * because /stop changed.
 *
 * runlog_resume: after update or episode `update`, at which the running reward was `running_reward`; by a
 * command (cause NULL), once and first, or because of a death, once for each. It reads the logs
 * (daemon/runlog_replay.h), after a death as runlog_reopen leaves them. A line that this process has written
 * is not written again, also where it was moved away since. */
enum status runlog_start(struct runlog *log, struct error *error);
enum status runlog_resume(struct runlog *log, uint64_t update, double running_reward,
                          const struct line_restart *cause, struct error *error);
enum status runlog_restart(struct runlog *log, const struct line_restart *restart, struct error *error);
enum status runlog_record(struct runlog *log, const struct control_message *record,
                          const struct control_status *holdings, struct error *error);
enum status runlog_finish(struct runlog *log, const char *why, const struct control_finished *finished,
                          const struct control_status *holdings, struct error *error);

#endif
