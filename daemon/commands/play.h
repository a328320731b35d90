/* The command `coalesced play`. The command's process; one thread. */
#ifndef DAEMON_COMMANDS_PLAY_H
#define DAEMON_COMMANDS_PLAY_H

#include "daemon/commands/arguments.h"
#include "kernels/base/status.h"

/* Plays arguments->checkpoint with the job of its run, prints a line for each episode, and renders as
 * arguments->render says: NULL for nothing, "text" to standard output, else a film's path. Errors as
 * job_files_of_checkpoint, policy_play and the film's. */
enum status play(const struct arguments *arguments, struct job *job, struct error *error);

#endif
