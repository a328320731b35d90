/* Other programs than this one: finds the program of workers in Python. The supervisor's or a command's only
 * thread; blocks. */
#ifndef DAEMON_PROCESS_PYTHON_PROGRAM_H
#define DAEMON_PROCESS_PYTHON_PROGRAM_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <limits.h>
#include <stdbool.h>

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

#endif
