/* A region: zeroed memory that lives as long as one object, and is given back with it at once. An object that
 * has many arrays takes them all, and then looks once whether there was memory for them.
 *
 * The struct is embedded, all zero at first. One thread at a time; nothing here blocks. */
#ifndef KERNELS_BASE_REGION_H
#define KERNELS_BASE_REGION_H

#include <stdbool.h>
#include <stddef.h>

struct region_block;

struct region {
    struct region_block *newest;
    bool failed; /* a region_take has found no memory */
};

/* An array of `count` elements of so many bytes, aligned for every type of C. NULL: there is no memory, or
 * the product overflows. An array without elements is not NULL. */
void *region_take(struct region *region, size_t count, size_t bytes);

/* Gives all arrays back; the region is then as new. */
void region_free(struct region *region);

#endif
