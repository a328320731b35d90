/* The structs of params and of gradients, for the files of this room. */
#ifndef KERNELS_PARAMS_PARAMS_INTERNAL_H
#define KERNELS_PARAMS_PARAMS_INTERNAL_H

#include "kernels/params/params.h"

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

#endif
