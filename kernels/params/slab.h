/* A slab: one flat tensor of rank 1 that holds many entries, in the backend's memory. Private to
 * kernels/params/. */
#ifndef KERNELS_PARAMS_SLAB_H
#define KERNELS_PARAMS_SLAB_H

#include "kernels/backend.h"

/* Every entry begins at a multiple of this. */
enum { SLAB_ALIGNMENT_BYTES = 64 };

/* A slab of `elements`, without memory. `name` is kept, not copied. */
struct tensor slab_describe(const struct backend *backend, size_t elements, const char *name);

/* Takes memory from the backend and fills it with zeros. A slab of 0 elements stays without.
 * STATUS_NO_MEMORY. */
enum status slab_new(struct tensor *slab, struct backend *backend, struct error *error);
void slab_free(struct tensor *slab, struct backend *backend);

/* The address of the element `offset` of a slab with memory. */
void *slab_address(const struct tensor *slab, size_t offset);

#endif
