/* The commands on a job: run, check, evaluate and generate. Included by main.c. */
#ifndef DAEMON_COMMANDS_COMMANDS_H
#define DAEMON_COMMANDS_COMMANDS_H

enum { COMMAND_HELP = -1 };

/* Runs the command argv[0] with the arguments behind it; blocks until its end. Returns the exit code, or
 * COMMAND_HELP: --help was among the arguments, and nothing was done. Output may still be in stdout's buffer.
 */
int command_run(int argc, char **argv);

#endif
