/* Finds the files that are installed with this program, and loads a plug-in. The files are plug-ins, workers
 * in Python, and programs that are commands. They lie in ../lib/coalesced, seen from the program's folder; in
 * a checkout, where the program is in build/release, they lie in that folder and among the sources. No other
 * module knows these folders. Any thread. */
#ifndef KERNELS_BASE_PROGRAM_FILES_H
#define KERNELS_BASE_PROGRAM_FILES_H

#include "kernels/base/status.h"

#include <limits.h>

enum program_part {
    PROGRAM_PLUGIN,  /* also beside the program and above it; or only in $COALESCED_PLUGINS, if that is set */
    PROGRAM_WORKER,  /* programs in Python; in a checkout worker/python */
    PROGRAM_COMMAND, /* coalesced-NAME; in a checkout scripts */
    PROGRAM_PARTS
};

/* The path of `file` in the first folder of that part that has one. Opens nothing. STATUS_UNAVAILABLE: there
 * is no such plug-in, or the program's own folder cannot be found; STATUS_NOT_FOUND: there is no such other
 * file. `error` may be NULL. */
enum status program_find(char path[PATH_MAX], enum program_part part, const char *file, struct error *error);

/* Loads the shared object at `path`, for as long as the process lives, and finds its function `name`. The
 * caller calls it as what it is. STATUS_UNAVAILABLE; the sentence begins with a verb, for the caller to put
 * the file in front. */
enum status plugin_load(void (**function)(void), const char *path, const char *name, struct error *error);

#endif
