/* The run's logs: episodes.log for people, episodes.jsonl for programs, and the same lines on stdout.
 *
 * The supervisor is the one writer. A line is one write(2) on an O_APPEND descriptor; a write that fails
 * halfway (a full disk) is cut back, so that no torn line stays. episodes.jsonl has every episode, update and
 * epoch; episodes.log and stdout have every `every`th episode or update. All that may differ between two runs
 * of one seed stands in the member `timing`. On a terminal a progress line is redrawn below the lines. Blocks
 * on the disk only: lines that stdout cannot take at once are not shown there. A model-parallel job's workers
 * report only every `every`th update, with the mean of those between: both logs have just these. */
#ifndef DAEMON_RUNLOG_H
#define DAEMON_RUNLOG_H

#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"

struct runlog;

/* Opens both logs in the directory `dir_fd` (named `path` in messages). */
enum status runlog_open(struct runlog **out, int dir_fd, const char *path, const struct job *job,
                        struct error *error);
/* Clears the progress line and closes; NULL is allowed. */
void runlog_close(struct runlog *log);

/* Whose holdings (references, contexts) a model-parallel job's lines tell: `workers` of them by number, kept
 * by reference and read whenever such a line is written. Before: none. */
void runlog_show_holdings(struct runlog *log, const struct control_status *holdings, uint32_t workers);

/* Takes the progress line away before something else is written to the terminal; the next record draws it.
 */
void runlog_clear_progress(struct runlog *log);

/* Opens the files anew under their names, for rotation by rename: no line is lost or split. */
enum status runlog_reopen(struct runlog *log, struct error *error);

/* The start's line, or that of a resume after update `update` (daemon/runlog_replay.h), which reads the logs
 * first; the lines of an episode, update or epoch; and the end's. STATUS_IO names the file; nothing torn
 * stays. STATUS_INTERNAL: a resumed run computed other numbers than it had before; STATUS_INVALID: because
 * /stop changed (daemon/runlog_replay.h). */
enum status runlog_start(struct runlog *log, struct error *error);
enum status runlog_resume(struct runlog *log, uint64_t update, struct error *error);
enum status runlog_episode(struct runlog *log, const struct control_episode *record, struct error *error);
enum status runlog_update(struct runlog *log, const struct control_update *record, struct error *error);
enum status runlog_epoch(struct runlog *log, const struct control_epoch *record, struct error *error);
enum status runlog_finish(struct runlog *log, const char *why, const struct control_finished *finished,
                          struct error *error);

#endif
