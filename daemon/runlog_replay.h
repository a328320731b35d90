/* What a resumed run finds in its logs: which updates and epochs they tell of already, and in what words.
 *
 * A resumed run computes again what came after its checkpoint. Where the job is reproducible (/server/round
 * is "all"), it must compute the same; a line that is there already is compared, without `timing`, and not
 * written twice. Under the other rules the order of arrival has its say, and the line that is there stands.
 *
 * A job's last epoch is evaluated whether or not its turn has come, so that a run which goes on with another
 * end evaluates other epochs. What only one of two lines of an epoch tells of an evaluation is not compared.
 * The log keeps the evaluation, which is true of the model at that update: a line that has one stands, and
 * one that has none is followed, once, by the line that has. An epoch that an earlier end cuts short in the
 * midst of what is logged is told once, too. The supervisor's only thread; blocks on the disk. */
#ifndef DAEMON_RUNLOG_REPLAY_H
#define DAEMON_RUNLOG_REPLAY_H

#include "daemon/runlog_lines.h"
#include "kernels/base/status.h"

#include <stdbool.h>

struct replay;

/* Reads episodes.log and episodes.jsonl of the directory `dir_fd` (named `path` in messages) once. A last
 * line that its writer did not finish is cut off the file, with a warning. STATUS_IO names the file. */
enum status replay_open(struct replay **out, int dir_fd, const char *path, const struct job *job,
                        struct error *error);
void replay_close(struct replay *replay); /* NULL is allowed */

/* The last update that episodes.jsonl tells of; 0: none. */
uint64_t replay_last_update(const struct replay *replay);

/* Compares a line for episodes.jsonl with the one that is there; lines come in the order of the file. *known:
 * it is there, and not to be written; one that was moved away with an older file is taken to be.
 * STATUS_INTERNAL: they differ; the text names the update and holds where the two part. STATUS_INVALID: in
 * the learning rate, because the job's end is another and the schedule linear. */
enum status replay_compare(struct replay *replay, const struct line *line, bool *known, struct error *error);

/* Whether episodes.log has the line `text`, whose like `json` episodes.jsonl has. Of an epoch that it tells
 * of in some other line it is taken to have this one, too, unless this one came last: then a kill may have
 * come between the two files. */
bool replay_has_text(const struct replay *replay, const struct line *json, const struct line *text);

#endif
