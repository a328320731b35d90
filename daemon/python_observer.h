/* The program of an observer whose environments are in Python: an interpreter, and the script observer.py,
 * which is installed beside this program. Supervisor process; its only thread. */
#ifndef DAEMON_PYTHON_OBSERVER_H
#define DAEMON_PYTHON_OBSERVER_H

#include "daemon/child.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <limits.h>

struct python_observer {
    char script[PATH_MAX]; /* "": the job's observers are this program */
    struct child_command command;
};

/* Finds both for the job, which outlives *out. For a job whose environments are not in Python: nothing.
 * STATUS_NOT_FOUND: the sentence names the interpreter and PATH, or the places where the script should be. */
enum status python_observer_find(struct python_observer *out, const struct job *job, struct error *error);

/* The command; NULL: the observers are this program. */
const struct child_command *python_observer_command(const struct python_observer *observer);

#endif
