/* The spaces of an environment in Python, for a command that has no observers to ask: observer.py makes one
 * environment, describes it and ends. The command's thread; blocks while Python starts. */
#ifndef DAEMON_COMMANDS_PYTHON_SPACES_H
#define DAEMON_COMMANDS_PYTHON_SPACES_H

#include "kernels/base/status.h"
#include "worker/environment/environment_description.h"
#include "worker/job/job.h"

/* Makes one of the job's environments, which are in Python, as the job's observers would: Python looks for a
 * class of one's own from the working directory. What the environment says on standard error is shown only
 * when it fails; the sentence is observer.py's then. STATUS_INVALID: the environment cannot be made, or what
 * Python printed is no description; STATUS_CORRUPT: the environment breaks its contract; STATUS_UNAVAILABLE:
 * a package is missing, or Python ended otherwise. Other errors as python_worker_find and program_run.
 * environment_description_fini follows after either result. */
enum status python_spaces_read(struct environment_description *out, const struct job *job,
                               struct error *error);

#endif
