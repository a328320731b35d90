/* What people and programs see of a sweep: a table that is redrawn on a terminal, a line for each change
 * where standard output is none, the table at the end, and the file sweep.json. The sweep's process; one
 * thread; blocks on standard output and the file. */
#ifndef DAEMON_SWEEP_REPORT_H
#define DAEMON_SWEEP_REPORT_H

#include "daemon/curve.h"
#include "daemon/sweep_run.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct sweep_report {
    const struct sweep_grid *grid;
    const struct sweep_run *runs; /* (count) */
    size_t count;
    const char *dir;        /* the sweep's */
    struct curve_keys keys; /* of the table's numbers */
    bool is_screen;         /* standard output is a terminal */
    unsigned rows;          /* of the table on the screen; 0: there is none */
};

/* Tells that a run's state has changed: writes sweep.json, and a line where there is no screen. STATUS_IO. */
enum status sweep_report_change(struct sweep_report *report, const struct sweep_run *run,
                                struct error *error);

/* Redraws the table on a screen. Where the screen has fewer rows than the table, the running runs come first.
 */
void sweep_report_draw(struct sweep_report *report);

/* Removes the table from the screen. */
void sweep_report_clear(struct sweep_report *report);

/* Prints the whole table, the best of the runs that finished or were solved, and the reasons of those that
 * failed. */
void sweep_report_print(struct sweep_report *report);

/* Writes DIR/sweep.json, whole or not at all: an array with an object for each run: `run`, its name;
 * `values`, by pointer; `state`; the newest number of each key, where there is one; `reason`, where it
 * failed. */
enum status sweep_report_write(const struct sweep_report *report, struct error *error);

/* Marks the runs that DIR/sweep.json calls stopped by the median rule. No such file is no error. */
void sweep_report_read_hopeless(const char *dir, struct sweep_run *runs, size_t count);

#endif
