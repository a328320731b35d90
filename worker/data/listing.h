/* Names of files in folders, sorted by their bytes: one order on every machine and in every locale. Names
 * that begin with a dot are never listed. Blocks on the disk; any thread, one at a time per listing. */
#ifndef WORKER_DATA_LISTING_H
#define WORKER_DATA_LISTING_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct listing {
    char *text; /* all names, each ended by a zero */
    size_t used, room;
    size_t *at; /* where in `text` each begins */
    size_t count, slots;
};
void listing_fini(struct listing *listing);

static inline const char *listing_name(const struct listing *listing, size_t i)
{
    return listing->text + listing->at[i];
}

enum listing_kind { LISTING_FOLDERS, LISTING_IMAGES };

/* Appends the folders in `path` (LISTING_FOLDERS), or the entries that are no folders and end with .jpg,
 * .jpeg or .png in any letter case (LISTING_IMAGES), sorted among themselves. A symbolic link counts as its
 * target. STATUS_NOT_FOUND: no such folder. STATUS_NO_MEMORY. Otherwise the status of the system's error. */
enum status listing_append(struct listing *listing, const char *path, enum listing_kind kind,
                           struct error *error);

#endif
