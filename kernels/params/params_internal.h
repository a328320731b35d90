/* What params.c, params_place.c and gradients.c share: the params' own struct, and the slabs parallel to the
 * trained one. */
#ifndef KERNELS_PARAMS_PARAMS_INTERNAL_H
#define KERNELS_PARAMS_PARAMS_INTERNAL_H

#include "kernels/params/params.h"

enum { ENTRY_ALIGNMENT_BYTES = 64 };

struct params {
    struct backend *backend;
    struct parameter **entries; // (capacity), `count` of them used; each stays where it is
    uint32_t count, capacity;
    bool laid_out;               // offsets stand, no more entries come
    bool built;                  // laid out, and the slabs' memory is the params' own
    struct tensor slab, buffers; // data NULL: not placed as a whole
    uint32_t first;              // the first trained entry's number in the model of which these are a part
    struct arena *scratch;       // for gradients_add; empty between two calls
    struct gradients *parallels; // every gradients of these params
};

struct gradients {
    struct params *params;
    struct gradients *next;
    bool owned; // the slab's memory is ours to give back
    struct tensor slab;
    struct tensor *entries; // (params->count) by parameter index, each in its parameter's layout
    bool *written;          // (params->count) since gradients_begin
};

/* A flat tensor of `elements` without memory. */
struct tensor params_slab_of(const struct backend *backend, size_t elements, const char *name);

/* Takes memory for a slab from the backend, zero. 0 elements: it stays without. */
enum status params_slab_new(struct tensor *slab, struct backend *backend, struct error *error);
void params_slab_free(struct tensor *slab, struct backend *backend);

/* What an entry parallel to `parameter` is, in its present layout, before it has a place. */
struct tensor params_unplaced(const struct parameter *parameter);

/* Where `parameter`'s part of a slab with memory lies. */
void *params_address(const struct tensor *slab, const struct parameter *parameter);

/* Says that `parameter`'s part of every parallel slab lies in `layout`. */
void gradients_adopt(struct params *params, const struct parameter *parameter, const void *layout);

#endif
