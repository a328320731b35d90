/* Finds the files that are installed with this program: plug-ins, workers in Python, and programs that are
 * commands. They lie in ../lib/coalesced, seen from the program's folder; in a checkout, where the program is
 * in build/release, they lie in that folder and among the sources. The one place that knows these folders.
 * Any thread; nothing is loaded or started. */
#ifndef KERNELS_BASE_PROGRAM_FOLDERS_H
#define KERNELS_BASE_PROGRAM_FOLDERS_H

#include "kernels/base/status.h"

#include <limits.h>
#include <stdint.h>

enum program_part {
    PROGRAM_PLUGIN,  /* also beside the program and above it; or only in $COALESCED_PLUGINS, if that is set */
    PROGRAM_WORKER,  /* observer.py and trainer.py; in a checkout worker/python */
    PROGRAM_COMMAND, /* coalesced-NAME; in a checkout scripts */
    PROGRAM_PARTS
};

enum { PROGRAM_FOLDERS_MAX = 3 };

struct program_folders {
    uint32_t count;
    char path[PROGRAM_FOLDERS_MAX][PATH_MAX]; /* in the order in which they are looked into */
};

/* STATUS_UNAVAILABLE: the program's folder cannot be found, or the variable is too long. */
enum status program_folders_find(struct program_folders *folders, enum program_part part,
                                 struct error *error);

/* The path of `file` in the first folder that has one. STATUS_NOT_FOUND, without a sentence. */
enum status program_folders_have(const struct program_folders *folders, const char *file,
                                 char path[PATH_MAX]);

#endif
