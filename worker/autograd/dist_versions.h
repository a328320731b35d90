/* Versions of an object's parameters, for rounds that are `async`: a step may be taken while other contexts
 * have still to walk what they read, so it writes the new values elsewhere, and the old ones stay where they
 * are until the last piece that read them is gone.
 *
 *     params_lay_out(params, …);                    instead of params_build
 *     dist_versions_new(&versions, params, participants + 1, …);
 *     params_begin(params, seed, 0, params_count(params), …);
 *
 * A version is one copy of the trained slab; the params are placed on one of them at a time. Pieces count as
 * readers: the first of a context of the version that was newest when its forward began, and those that come
 * while it is there of the same. So a context holds one version at the most, and sees no other before it has
 * walked; and with one context of each participant at a time, participants + 1 slots are enough: for those
 * that they hold, and the next.
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

/* Takes the params' place away. Nobody reads a version any more. NULL is allowed. */
void dist_versions_free(struct dist_versions *versions);

uint32_t dist_versions_slots(const struct dist_versions *versions);

/* ---- for a piece (dist.c) ---- */

/* One more reader of the newest version; its number. */
uint64_t dist_versions_hold(struct dist_versions *versions);
void dist_versions_hold_same(struct dist_versions *versions, uint64_t version); /* one that has a reader */
void dist_versions_drop(struct dist_versions *versions, uint64_t version);

/* Places the params on a version that has a reader; on the newest one. A pass over the entries' pointers. */
void dist_versions_place(struct dist_versions *versions, uint64_t version);
void dist_versions_place_newest(struct dist_versions *versions);

/* ---- for whoever changes the values ---- */

/* True: dist_versions_advance would answer STATUS_OK. */
bool dist_versions_can_advance(const struct dist_versions *versions);

/* Begins a new version, placed, with the values of the last one: in the same slot when nobody reads it,
 * otherwise as a copy in a free one. STATUS_BUSY: all slots are being read. */
enum status dist_versions_advance(struct dist_versions *versions, struct error *error);

#endif
