/* Versions of an object's parameters, for rounds that are `async`. A step may then come while other contexts
 * have still to walk, and need the values that their forward read. The step writes its values to another
 * slot. The old values stay where they are until their last reader is done.
 *
 *     params_lay_out(params, …);                    instead of params_build
 *     dist_versions_new(&versions, params, participants + 1, …);
 *     params_begin(params, seed, 0, params_count(params), …);
 *
 * A version is one copy of the trained slab. The params are placed on one version at a time. Pieces are the
 * readers: a context's first piece reads the version that is newest when its forward begins, and the
 * context's other pieces read the same one. So a context holds at most one version, and sees no other before
 * it has walked. With one context of each participant at a time, participants + 1 slots are enough: the
 * versions that they hold, and the next one.
 *
 * Belongs to the thread that owns the object. Only dist_versions_new allocates; nothing blocks. */
#ifndef WORKER_AUTOGRAD_DIST_VERSIONS_H
#define WORKER_AUTOGRAD_DIST_VERSIONS_H

#include "kernels/params/params.h"

struct dist_versions;

enum { DIST_VERSIONS_MAX = 257 }; /* DIST_PARTICIPANTS_MAX + 1 */

/* Takes memory for `slots` versions, and for the buffers, which have one; the params, laid out and without a
 * place, are placed on the first, zero. STATUS_UNAVAILABLE: a backend whose memory is not the host's;
 * STATUS_INVALID: fewer than 2 slots, or more than DIST_VERSIONS_MAX; STATUS_NO_MEMORY. */
enum status dist_versions_new(struct dist_versions **out, struct params *params, uint32_t slots,
                              struct error *error);

/* Takes the params' place away. No version may have a reader (asserted). NULL is allowed. */
void dist_versions_free(struct dist_versions *versions);

uint32_t dist_versions_slots(const struct dist_versions *versions);

/* ---- for a piece (dist_context.c) ---- */

/* One more reader of the newest version, whose slot is returned, and one less. */
uint32_t dist_versions_hold(struct dist_versions *versions);
void dist_versions_drop(struct dist_versions *versions, uint32_t slot);

/* Places the params on a version that has a reader, or on the newest one. A pass over the entries' pointers.
 */
void dist_versions_place(struct dist_versions *versions, uint32_t slot);
void dist_versions_place_newest(struct dist_versions *versions);

/* ---- for changing the values ---- */

/* True: dist_versions_advance would answer STATUS_OK. */
bool dist_versions_can_advance(const struct dist_versions *versions);

/* Begins a new version with the values of the last one, and places the params on it: in the same slot when it
 * has no reader, otherwise as a copy in a free slot. STATUS_BUSY: all slots have readers. */
enum status dist_versions_advance(struct dist_versions *versions, struct error *error);

#endif
