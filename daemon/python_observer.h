/* The program of an observer whose environments are in Python: an interpreter, and the script observer.py,
 * which is installed beside this program. Supervisor process; its only thread. */
#ifndef DAEMON_PYTHON_OBSERVER_H
#define DAEMON_PYTHON_OBSERVER_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <limits.h>

struct python_observer {
    char script[PATH_MAX];  /* "": the job's observers are this program */
    const char *command[3]; /* interpreter, script, NULL: what child_spawn executes */
};

/* Finds both for the job, which outlives *out. For a job whose environments are not in Python: nothing.
 * STATUS_NOT_FOUND: the sentence names the interpreter and PATH, or the places where the script should be. */
enum status python_observer_find(struct python_observer *out, const struct job *job, struct error *error);

/* The command; NULL: the observers are this program. */
const char *const *python_observer_command(const struct python_observer *observer);

#endif
