/* Another program, run to its end between files in memory: what it reads is written before it starts, and
 * what it prints is read after it has ended. For gnuplot and Python. Blocks; the command's thread. */
#ifndef DAEMON_PROGRAM_H
#define DAEMON_PROGRAM_H

#include "kernels/base/status.h"

enum { PROGRAM_WORDS_BYTES = 4096 };

struct program {
    int input, output,
        words; /* standard input, output and error: descriptors of files in memory, closed on exec */
};

/* program_close follows after either result. */
enum status program_open(struct program *program, struct error *error);

/* Runs argv[0], a path or a name in PATH, with its input read from the beginning. The program gets no blocked
 * signals of the caller. *how is waitpid's status. STATUS_NOT_FOUND: there is no such program. */
enum status program_run(const struct program *program, char *const argv[], int *how, struct error *error);

/* The end of what the program has said on standard error, zero-terminated. */
void program_read_words(char words[PROGRAM_WORDS_BYTES], const struct program *program);

/* "exit code 3" or "signal 9", of waitpid's status. */
void program_name_end(char text[32], int how);

void program_close(const struct program *program);

#endif
