/* What people and programs see of a sweep: a table that is redrawn on a terminal, a line for each change
 * where standard output is none, the table at the end, and the file sweep.json. The sweep's process; one
 * thread; blocks on standard output and the file. */
#ifndef DAEMON_COMMANDS_SWEEP_REPORT_H
#define DAEMON_COMMANDS_SWEEP_REPORT_H

#include "daemon/commands/curve.h"
#include "daemon/commands/sweep_run.h"
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
    char *others;           /* lines of sweep.json, of runs of earlier command lines; NULL: none */
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
 * failed. Behind the runs of this command line stand those of earlier ones, which sweep_report_read found. */
enum status sweep_report_write(const struct sweep_report *report, struct error *error);

/* Reads DIR/sweep.json before this sweep writes it. Marks those of report->runs, which are `runs`, that the
 * median rule has stopped, and keeps the lines of other runs: a sweep that is resumed with other --over
 * loses none. No such file is no error. STATUS_NO_MEMORY. sweep_report_fini frees the lines. */
enum status sweep_report_read(struct sweep_report *report, struct sweep_run *runs, struct error *error);
void sweep_report_fini(struct sweep_report *report);

#endif
