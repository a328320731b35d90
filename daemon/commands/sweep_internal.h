/* What the files sweep*.c share: the sweep. Its process; one thread. */
#ifndef DAEMON_COMMANDS_SWEEP_INTERNAL_H
#define DAEMON_COMMANDS_SWEEP_INTERNAL_H

#include "daemon/commands/arguments.h"
#include "daemon/commands/sweep_grid.h"
#include "daemon/commands/sweep_report.h"
#include "daemon/commands/sweep_rule.h"
#include "daemon/commands/sweep_run.h"
#include "daemon/run/rundir.h"
#include "kernels/base/monotime.h"

#include <poll.h>

struct sweep {
    const struct arguments *arguments;
    struct sweep_grid grid;
    char dir[RUNDIR_PATH_BYTES];
    int lock_fd, signal_fd;
    struct sweep_run *runs; /* (grid.runs) */
    struct curve_keys keys;
    struct sweep_report report;
    unsigned stops;           /* signals that end the sweep */
    struct sweep_peer *peers; /* (grid.runs) for the rule */
    double *scratch;          /* (grid.runs) for the rule */
    struct pollfd *polled;    /* (1 + grid.runs) */
    struct monotime drawn;    /* the table, the last time */
    bool is_dirty;            /* the table on the screen is not as it should be */
};

/* Reads --over, checks the job with each combination of values, makes and locks the directory, and finds out
 * which runs are there already. *code is not 0: the command line or a job is wrong, which is printed, and no
 * file is touched. STATUS_BUSY: another sweep is at work in the directory; STATUS_IO and others of the
 * directory; STATUS_NO_MEMORY. sweep_close follows in every case. */
enum status sweep_open(struct sweep *sweep, const struct arguments *arguments, int *code,
                       struct error *error);
void sweep_close(struct sweep *sweep);

#endif
