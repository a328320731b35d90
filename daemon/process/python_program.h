/* Other programs than this one: Python. Finds the program of workers in Python, and runs a program to its
 * end, between files in memory: the caller writes its input before it starts, and reads its output after its
 * end. The supervisor's or a command's only thread; blocks. */
#ifndef DAEMON_PROCESS_PYTHON_PROGRAM_H
#define DAEMON_PROCESS_PYTHON_PROGRAM_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <limits.h>
#include <stdbool.h>

enum { PROGRAM_WORDS_BYTES = 4096 };

struct program {
    /* Descriptors of the files in memory, closed on exec. */
    int input, output, words; /* standard input, output and error */
};

/* Observers of an environment in Python, or trainers of a class: an interpreter runs observer.py or
 * trainer.py, which is installed beside this program. */
struct python_worker {
    uint8_t role;            /* of these workers, enum wire_role; 0: none is in Python */
    const char *interpreter; /* the job's: a path or a name in PATH */
    char script[PATH_MAX];
};

/* Finds both for the job, which outlives *out. For a job whose workers are all this program: nothing.
 * STATUS_NOT_FOUND: the sentence names the interpreter and PATH, or the places where the script should be. */
enum status python_worker_find(struct python_worker *out, const struct job *job, struct error *error);

/* Whether execvp would find the program, a path or a name in PATH. */
bool program_exists(const char *name);

/* program_close follows after either result. */
enum status program_open(struct program *program, struct error *error);

/* Runs argv[0], a path or a name in PATH, with its input read from the beginning. The program gets no blocked
 * signals of the caller; the caller's SIGCHLD gets its default action. *how is waitpid's status.
 * STATUS_NOT_FOUND: there is no such program. */
enum status program_run(const struct program *program, char *const argv[], int *how, struct error *error);

/* The end of what the program has said on standard error, zero-terminated. A blank stands for each zero. */
void program_read_words(char words[PROGRAM_WORDS_BYTES], const struct program *program);

/* "exit code 3" or "signal 9", of waitpid's status. */
void program_name_end(char text[32], int how);

void program_close(const struct program *program);

#endif
