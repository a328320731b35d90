/* From the path that a job or a person gives to a plug-in's table. A file that was loaded stays loaded until
 * the process ends; its path is searched nowhere but where it points to. Blocks while the file is read, and
 * runs code of the file. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_LOAD_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_LOAD_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

/* Loads the plug-in `path`, a shared object; a relative path begins at the working directory. *out lives as
 * long as the process. STATUS_NOT_FOUND and STATUS_PERMISSION: of the file. STATUS_INVALID: it is no shared
 * object, lacks environment_plugin(), is of another version or size, or its table has a gap. Each sentence
 * begins with the path. */
enum status environment_load(const struct environment_plugin **out, const char *path, struct error *error);

#endif
