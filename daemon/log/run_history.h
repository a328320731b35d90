/* Keeps the run so far for the page: the curve of the reward or loss, and marks where workers started again.
 * The memory is constant: of a long curve every second, fourth … point stays. Pure; the supervisor's only
 * thread. */
#ifndef DAEMON_LOG_RUN_HISTORY_H
#define DAEMON_LOG_RUN_HISTORY_H

#include "worker/control.h"

#include <stdio.h>

enum { HISTORY_POINTS = 2048, HISTORY_MARKS = 64, HISTORY_TEXT_BYTES = 160 };

struct history_point {
    double number, value; /* the episode or update; the running reward or the loss */
};

struct run_history {
    struct history_point points[HISTORY_POINTS];
    uint32_t point_count, stride; /* every stride-th record has a point; 0: none has come */
    uint64_t records;
    struct history_point newest;
    double told; /* the newest number that readers have; run_history_add takes it back with the curve */
    struct {
        double number;
        char text[HISTORY_TEXT_BYTES];
    } marks[HISTORY_MARKS]; /* a ring: mark i lies at i mod HISTORY_MARKS */
    uint64_t mark_count;
};

/* Takes an episode or update. One that was computed again after a death moves the curve back to it. */
void run_history_add(struct run_history *history, const struct control_message *record);

/* What happened behind the newest number. */
void run_history_mark(struct run_history *history, const char *text);

/* Writes JSON arrays: [[number, value], ...] of the points that readers do not have (is_first: of all) and
 * the newest record; [[number, "text"], ...]. */
void run_history_write_points(const struct run_history *history, bool is_first, FILE *out);
void run_history_write_marks(const struct run_history *history, FILE *out);

/* Writes `text` as a JSON string. */
void run_history_write_string(FILE *out, const char *text);

#endif
