/* Keeps the lines of a run's episodes.jsonl that a page draws.
 *
 *     record     the line of an episode or an update
 *     milestone  the line of an epoch, or of an episode with an evaluation
 *     event      the line of a start, a resume, a death, an end; or a note, a line that no log has
 *
 * Memory is constant. When the records or the milestones are too many, every second one goes; from then on a
 * line that is kept stands for twice as many. Of the events the newest stay. The caller's thread alone. */
#ifndef DAEMON_LOG_RUN_HISTORY_H
#define DAEMON_LOG_RUN_HISTORY_H

#include "kernels/base/file.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum {
    HISTORY_LINES_MAX = 1024,     /* of each of the three kinds */
    HISTORY_BYTES_MAX = 1 << 20,  /* of the lines of one kind; a single line may have more */
    HISTORY_BLOCK_BYTES = 4 << 20 /* a longer line of the file is skipped */
};

struct run_history;

/* STATUS_NO_MEMORY. */
enum status run_history_new(struct run_history **out, struct error *error);
void run_history_free(struct run_history *history); /* NULL is allowed */

/* Takes the next line; a newline at its end is not kept. A line is skipped if there is no memory for it. */
void run_history_take(struct run_history *history, const char *line, size_t length);

/* Takes an event that no log has: of this kind, now. `text` may be anything. */
void run_history_note(struct run_history *history, const char *event, const char *text);

/* Takes the whole lines that came to RUN/episodes.jsonl since the last call. Where the file is another one
 * now, or was cut, forgets all lines and begins anew. Damaged lines are left out when they are written.
 * Errors of file_open_below; STATUS_IO, STATUS_NO_MEMORY. */
enum status run_history_read(struct run_history *history, struct path run, struct error *error);

/* Forgets all lines, but keeps the notes. */
void run_history_clear(struct run_history *history);

/* Writes what a page receives for a run, as members of an object, on one line:
 *
 *     "records":[[STEPS, LINE], …]        oldest first; STEPS: the environments' steps, the samples or the
 *                                         tokens up to the line
 *     "events":[[NUMBER, LINE], …]        oldest first; NUMBER: of the episode or update before it
 *     "checkpoints":[[NUMBER, UNIX_S], …] those that are in the run's folder now, oldest first
 *     "job":{…}                           RUN/job.json, or null
 *
 * `whole`: all lines, and the job; else the lines that came since the last run_history_told, and the newest
 * record. Blocks on the run's folder. */
void run_history_write(struct run_history *history, struct path run, bool whole, FILE *out);
void run_history_told(struct run_history *history);

#endif
