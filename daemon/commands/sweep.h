/* The command `coalesced sweep`: one job with several values, a run for each combination, several at a time.
 *
 *     DIR/NAME/       the run directory of a run (daemon/run/rundir.h), with messages.log: its standard error
 *     DIR/sweep.json  all runs: values, state, newest numbers
 *     DIR/sweep.svg   their curves (daemon/commands/plot.h), where gnuplot is
 *     DIR/sweep.lock  locked by the sweep; holds its process id
 *
 * The command's process, which has no other thread. It waits for signals and for its runs' output by
 * descriptor: the table and the median rule are as far as the runs' standard output, that is /log/every. */
#ifndef DAEMON_COMMANDS_SWEEP_H
#define DAEMON_COMMANDS_SWEEP_H

#include "daemon/commands/arguments.h"
#include "kernels/base/status.h"

/* Runs the sweep to its end. *code: 0, or the exit code of the first run that failed, in the table's order;
 * of a wrong command line or job, which is printed. STATUS_BUSY: another sweep is at work in the directory;
 * STATUS_IO: a file of the sweep cannot be written, after which its runs are stopped. */
enum status sweep(const struct arguments *arguments, int *code, struct error *error);

#endif
