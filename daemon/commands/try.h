/* The command `coalesced try`: checks environments against environment.h. Processes: the command, which
 * watches, and for each environment a child of it, which runs the plug-in. */
#ifndef DAEMON_COMMANDS_TRY_H
#define DAEMON_COMMANDS_TRY_H

#include "daemon/commands/arguments.h"
#include "kernels/base/status.h"

/* Tries the plug-in or the built-in environment that the arguments name; of a plug-in without --name, all of
 * its environments. Prints a line for each check. STATUS_INVALID: it is no plug-in, or has no such
 * environment. STATUS_CORRUPT: a clause is broken. STATUS_INTERNAL: it crashed. STATUS_TIMEOUT: a call took
 * longer than --limit-s. */
enum status try_environments(const struct arguments *arguments, struct error *error);

#endif
