/* Where the program's own plug-ins lie: the folder in COALESCED_PLUGINS, if that is set; else the program's
 * own, the one above it, and ../lib/coalesced. Any thread; nothing is loaded. */
#ifndef KERNELS_BASE_PLUGIN_FOLDERS_H
#define KERNELS_BASE_PLUGIN_FOLDERS_H

#include "kernels/base/status.h"

#include <limits.h>
#include <stdint.h>

enum { PLUGIN_FOLDERS_MAX = 3 };

struct plugin_folders {
    uint32_t count;
    char path[PLUGIN_FOLDERS_MAX][PATH_MAX]; /* in the order in which they are looked into */
};

/* STATUS_UNAVAILABLE: the program's folder cannot be found, or the variable is too long. */
enum status plugin_folders_find(struct plugin_folders *folders, struct error *error);

/* The path of `file` in the first folder that has one. STATUS_NOT_FOUND, without a sentence. */
enum status plugin_folders_have(const struct plugin_folders *folders, const char *file, char path[PATH_MAX]);

#endif
