/* Names in folders, sorted by their bytes, so that they have one order on every machine and in every locale.
 * Names that begin with a dot are never listed. Blocks on the disk; any thread, one at a time per listing. */
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

/* Appends, sorted among themselves, the folders in `path`, or what is not a folder and whose name ends with
 * .jpg, .jpeg or .png in whatever case. A symbolic link counts as what it leads to. STATUS_NOT_FOUND: no such
 * folder; STATUS_NO_MEMORY; otherwise what the system says. */
enum status listing_append(struct listing *listing, const char *path, enum listing_kind kind,
                           struct error *error);

#endif
