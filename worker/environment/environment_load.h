/* Finds a plug-in's table by what a job or a person writes: the name of a built-in environment (classic.h),
 * or the path of a plug-in.
 *
 * A built-in name wins over a file of that name in the working directory, which ./NAME means. A path with a
 * slash, or one that ends in .so, is never a built-in name.
 *
 * A loaded file stays loaded until the process ends. Blocks while reading the file, and runs its code. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_LOAD_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_LOAD_H

#include "kernels/base/status.h"
#include "worker/environment/environment.h"

#include <stdbool.h>

/* Whether the plug-in has an environment of this name. */
bool environment_has_name(const struct environment_plugin *plugin, const char *name);

/* Whether it is the name of a built-in environment. */
bool environment_is_built_in(const char *name);

/* Whether it is one, with a sentence that names all. STATUS_NOT_FOUND. */
enum status environment_check_built_in(const char *name, struct error *error);

/* Whether the file of the plug-in `from` can be read; no code of the file runs. STATUS_NOT_FOUND,
 * STATUS_PERMISSION. */
enum status environment_check_file(const char *from, struct error *error);

/* Of a built-in name the table of all built-in environments. Else loads the plug-in `from`, a shared object;
 * a relative path begins at the working directory, and a file's name that is not there is looked for among
 * the program's own plug-ins (kernels/base/program_files.h). *out lives as long as the process.
 * STATUS_NOT_FOUND and STATUS_PERMISSION: of the file. STATUS_INVALID: it is no shared object, lacks
 * environment_plugin(), is of another version or size, or its table has a gap. Each sentence begins with
 * `from`. */
enum status environment_load(const struct environment_plugin **out, const char *from, struct error *error);

#endif
