/* The lines that a resumed run finds in its own logs.
 *
 * A resumed run computes the episodes or updates after its checkpoint again. Where the job is reproducible
 * they must come out the same: a line that is in the log is compared, without `timing`, and not written
 * twice. Elsewhere the line in the log stands: under the rules of /server/round other than "all" the order of
 * arrival changes the numbers, and on a GPU a policy's launches of other sizes do.
 *
 * Epochs: a job evaluates its last epoch even where /evaluation/every would skip it, so a run that goes on
 * with another /stop evaluates other epochs. An evaluation that only one of two lines has is not compared.
 * The log keeps every evaluation: a line with one stands, and a line without one is followed, once, by the
 * line that has it. An epoch that an earlier end cut short in the middle of what is logged has one line, too.
 *
 * The supervisor's only thread; blocks on the disk. */
#ifndef DAEMON_RUNLOG_REPLAY_H
#define DAEMON_RUNLOG_REPLAY_H

#include "daemon/runlog_lines.h"
#include "kernels/base/status.h"

#include <stdbool.h>

struct replay;

/* Reads episodes.log and episodes.jsonl of the directory `dir_fd` (named `path` in messages). A last line
 * without its end, of a writer that was killed, is cut off the file with a warning. STATUS_IO names the file.
 */
enum status replay_open(struct replay **out, int dir_fd, const char *path, const struct job *job,
                        struct error *error);
void replay_close(struct replay *replay); /* NULL is allowed */

/* The last episode or update in episodes.jsonl; 0: none. */
uint64_t replay_last_number(const struct replay *replay);

/* Whether `text`, of no record, was the last line of episodes.log when it was read. */
bool replay_ends_with(const struct replay *replay, const char *text);

/* Compares a line for episodes.jsonl with the line of the same episode, update or epoch in it; called in the
 * file's order. *known: the line need not be written, because it is there, or because a later one is (the
 * file's beginning may have been moved away). STATUS_INTERNAL: the two differ; the text names the episode or
 * update and shows both from the first difference on. STATUS_INVALID: they differ in the learning rate,
 * because /stop changed and the schedule is linear. */
enum status replay_compare(struct replay *replay, const char *line, bool *known, struct error *error);

/* Whether episodes.log has the line `text`, where episodes.jsonl has the record's line `json`. Both files
 * have the same epochs, but for the last line: a kill may have come between the two writes. */
bool replay_has_text(const struct replay *replay, const char *json, const char *text);

#endif
