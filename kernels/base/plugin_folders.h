/* The program's own plug-ins, and a plug-in's entry. Any thread. */
#ifndef KERNELS_BASE_PLUGIN_FOLDERS_H
#define KERNELS_BASE_PLUGIN_FOLDERS_H

#include "kernels/base/status.h"

#include <limits.h>

/* The path of the program's own plug-in `file`: in the folder that COALESCED_PLUGINS names, if it is set;
 * else in the program's folder, the one above it, or ../lib/coalesced, whichever has the file first. Loads
 * nothing. STATUS_UNAVAILABLE: none has it. */
enum status plugin_find(char path[PATH_MAX], const char *file, struct error *error);

/* Loads the shared object at `path`, for as long as the process lives, and finds its function `name`. The
 * caller calls it as what it is. STATUS_UNAVAILABLE; the sentence begins with a verb, for the caller to put
 * the file in front. */
enum status plugin_load(void (**function)(void), const char *path, const char *name, struct error *error);

#endif
