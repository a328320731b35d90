/* What params.c and gradients.c share: the params' own struct, and the slabs parallel to the trained one. */
#ifndef KERNELS_PARAMS_INTERNAL_H
#define KERNELS_PARAMS_INTERNAL_H

#include "kernels/params.h"

struct params {
    struct backend *backend;
    struct parameter **entries; // (capacity), `count` of them used; each stays where it is
    uint32_t count, capacity;
    bool built;
    struct tensor slab, buffers;
    struct arena *scratch;       // for settling; empty between two calls
    struct gradients *parallels; // every gradients of these params
};

struct gradients {
    struct params *params;
    struct gradients *next;
    struct tensor slab;
    struct tensor *entries; // (params->count) by parameter index, each in its parameter's layout
    bool *written;          // (params->count) since gradients_begin
};

/* Takes a slab for `elements` from the backend, zero. 0 elements: a tensor without data. */
enum status params_slab_new(struct tensor *slab, struct backend *backend, size_t elements, const char *name,
                            struct error *error);
void params_slab_free(struct tensor *slab, struct backend *backend);

/* The part of a slab that belongs to `parameter`, in its present layout. */
struct tensor params_part(const struct tensor *slab, const struct parameter *parameter);

/* Brings `parameter`'s part of every parallel slab into `layout`. */
enum status gradients_settle(struct params *params, const struct parameter *parameter, const void *layout,
                             struct error *error);

#endif
