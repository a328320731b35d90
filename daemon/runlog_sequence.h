/* Whether the lines of a log follow each other as a run writes them. Pure; any thread.
 *
 * The lines of episodes or updates ascend by `step`. An epoch's line follows the line of the epoch's last
 * update. Three things are as they should be, too:
 *
 *   - The log begins with any line: its beginning was moved away, for rotation.
 *   - An epoch ends early, at a job's last update; in the run that goes on it ends again. Between two lines
 * of one epoch there is an event.
 *   - A run that ends before the log does tells of its last epoch out of order, at its end: an event or the
 * end of the file follows (runlog_replay.h). episodes.log has no events: there, any line may follow. */
#ifndef DAEMON_RUNLOG_SEQUENCE_H
#define DAEMON_RUNLOG_SEQUENCE_H

#include "daemon/runlog_lines.h"

#include <stdbool.h>
#include <stdint.h>

struct sequence {
    uint64_t step;          /* from one line to the next; 0: any (episodes.log, as /log/every has changed) */
    uint64_t epoch_updates; /* 0: the data has no epochs */
    const char *unit;       /* "episode" or "update" */
    bool has_updates;       /* an epoch's line names its last update (episodes.jsonl) */
    bool begun;
    uint64_t last;    /* the newest episode or update */
    uint64_t epoch;   /* the highest epoch */
    uint64_t due;     /* the end of the epoch whose line comes next */
    bool due_is_here; /* that line has come: the next epoch's is due behind a later update */
    bool is_told;     /* no event since the newest epoch\'s line */
    bool late;        /* the newest line is an epoch's, out of order */
};

enum { SEQUENCE_EXPECTED_BYTES = 96 };

/* The file begins at the line behind episode or update `last`: a run's start (0), or its resumption. */
void sequence_begin(struct sequence *sequence, uint64_t last);

/* Takes an event. */
void sequence_take_event(struct sequence *sequence);

/* Takes the next line that is no event. False: it is not the one to follow; `expected` says which is, and the
 * sequence is as before. */
bool sequence_take(struct sequence *sequence, struct line_key key, char expected[SEQUENCE_EXPECTED_BYTES]);

/* The last episode or update after which every line up to there is in the log. UINT64_MAX: the log has no
 * line that could tell. */
uint64_t sequence_covered(const struct sequence *sequence);

#endif
