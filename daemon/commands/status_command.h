/* status, list and stop: ask the runs on this host what they do (daemon/watch/status_socket.h), and show it.
 *
 * RUN is a run's directory, or its name as `list` shows it, if one run alone has that name. The command's
 * process; blocks. */
#ifndef DAEMON_COMMANDS_STATUS_COMMAND_H
#define DAEMON_COMMANDS_STATUS_COMMAND_H

#include "daemon/commands/arguments.h"

/* Prints the tables of the run, or of all runs where none is named; with --json the run's document, or
 * {"runs": [...]}; with --watch again every second, until the run has ended or the command is interrupted.
 * STATUS_NOT_FOUND: the run that is named does not run. STATUS_INVALID: several have this name. */
enum status status_show(const struct arguments *arguments, struct error *error);

/* One line for each run. */
enum status status_list(const struct arguments *arguments, struct error *error);

/* Sends the run SIGTERM, and waits for its end. */
enum status status_stop(const struct arguments *arguments, struct error *error);

#endif
