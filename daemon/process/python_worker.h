/* Finds the program of workers in Python: observers of an environment in Python, or trainers of a class.
 * The program is an interpreter and a script, observer.py or trainer.py, which is installed beside this
 * program. The supervisor's or a command's only thread; blocks on files. */
#ifndef DAEMON_PROCESS_PYTHON_WORKER_H
#define DAEMON_PROCESS_PYTHON_WORKER_H

#include "daemon/process/spawn.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <limits.h>

struct python_worker {
    uint8_t role; /* of these workers, enum wire_role; 0: none is in Python */
    char script[PATH_MAX];
    struct spawn_command command;
};

/* Finds both for the job, which outlives *out. For a job whose workers are all this program: nothing.
 * STATUS_NOT_FOUND: the sentence names the interpreter and PATH, or the places where the script should be. */
enum status python_worker_find(struct python_worker *out, const struct job *job, struct error *error);

/* The command of a worker of this role; NULL: it is this program. */
const struct spawn_command *python_worker_command(const struct python_worker *python_worker, uint8_t role);

#endif
