/* The commands that work on a job or a checkpoint. Each reads its own arguments (argv[0] is the command's
 * name), prints its own errors, and returns the exit code, or COMMAND_HELP when --help was among the
 * arguments. Output may still be in stdout's buffer when a command returns. Included by main.c. */
#ifndef DAEMON_COMMANDS_H
#define DAEMON_COMMANDS_H

enum { COMMAND_HELP = -1 };

int command_run(int argc, char **argv);
int command_check(int argc, char **argv);
int command_evaluate(int argc, char **argv);
int command_generate(int argc, char **argv);

#endif
