/* Environments in Python, for a process that is no observer: a child, worker/python/command_environments.py,
 * makes and steps them. The commands `evaluate`, `play` and `export` use it. In a job the observers have the
 * environments, and no process stands between.
 *
 * worker/python/python_child.h says how the child is asked. It ignores SIGINT. */
#ifndef WORKER_ENVIRONMENT_PYTHON_ENVIRONMENTS_H
#define WORKER_ENVIRONMENT_PYTHON_ENVIRONMENTS_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

/* The messages:
 *
 *     to the child      first   u32 count, u32 rendering, u32 bytes; the job as JSON
 *                       then    u32 kind, u32 n, u32 which (n); and behind that
 *                         RESET     u32 episode, u32 step; (n) of these pairs
 *                         STEP      the n environments' actions
 *                         RENDER    nothing; n is 1
 *     from the child    first   the description (environment_description.h)
 *                       then
 *                         RESET     observations, masks of the n environments
 *                         STEP      observations, masks, rewards, flags, metrics
 *                         RENDER    u32 width, u32 height; the picture's bytes
 */

struct python_environments_config {
    const char *interpreter; /* a path, or a name in PATH */
    const char *job;         /* the whole job, as JSON */
    uint32_t count;          /* environments; number i is the job's number i */
    int rendering;           /* ENVIRONMENT_TEXT, ENVIRONMENT_RGB, or 0 */
};

/* environment.h's table over such children. environments_config.opened is of python_environments_open. Each
 * call blocks until the child has answered or ended. close gives the user's own close 2 seconds, then kills.
 * One thread. */
extern const struct environment_plugin python_environments_plugin;

/* Starts the child, which makes the environments. *self belongs to the plug-in's close; *spec and *name live
 * as long. SIGCHLD gets its default action. STATUS_NOT_FOUND: there is no such interpreter;
 * STATUS_UNAVAILABLE: a package is missing, the child has ended, or its environment draws no such pictures;
 * STATUS_INVALID: the environments cannot be made; STATUS_CORRUPT: they break their contract; STATUS_IO,
 * STATUS_NO_MEMORY. */
enum status python_environments_open(void **self, const struct environment_spec **spec, const char **name,
                                     const struct python_environments_config *config, struct error *error);

/* What the newest call of the table that failed has failed by, with its status: environments_config.failure.
 */
const struct error *python_environments_failure(const void *self);

#endif
