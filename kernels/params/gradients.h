/* Slabs parallel to a model's trained parameters: gradients, and the moments of optimizers.
 *
 * Belongs to the thread that holds the params. Nothing but gradients_new and its unplaced twin allocates. */
#ifndef KERNELS_PARAMS_GRADIENTS_H
#define KERNELS_PARAMS_GRADIENTS_H

#include "kernels/params/params.h"

struct gradients;

/* A slab parallel to the trained one, in memory of its own; zero. Freed before the params. The params are
 * built or laid out. */
enum status gradients_new(struct gradients **out, struct params *params, struct error *error);
void gradients_free(struct gradients *gradients);

/* The same without memory, to be placed: element 0 at `slab`, where it lies or would lie, aligned to 64
 * bytes. Entries behind which there is no memory must not be reached. */
enum status gradients_new_unplaced(struct gradients **out, struct params *params, struct error *error);
void gradients_place(struct gradients *gradients, void *slab);

/* The params that it is parallel to. */
struct params *gradients_params(struct gradients *gradients);

/* All of it, flat; entries that the last step did not reach are zero once gradients_complete was called. */
struct tensor *gradients_slab(struct gradients *gradients);

/* For the tape. The tensor in which `parameter`'s gradient lies, in its parameter's layout; *fresh: nothing
 * was written since gradients_begin, so overwrite; the call marks it written. */
struct tensor *gradients_take(struct gradients *gradients, const struct parameter *parameter, bool *fresh);
void gradients_begin(struct gradients *gradients);

/* Zeroes the entries that were not written since gradients_begin. The functions below do it first. */
enum status gradients_complete(struct gradients *gradients, struct error *error);

/* One entry's gradient, canonical. */
enum status gradients_read(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                           void *values, struct error *error);

/* Gives an entry canonical values, as if a backward had written them. */
enum status gradients_write(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                            const void *values, struct error *error);

/* Adds `from`'s entry to `to`'s, which was written; or, where it was not since gradients_begin, copies it.
 * Both are parallel to the same params; `from` is complete. */
enum status gradients_add(struct gradients *to, struct gradients *from, const struct parameter *parameter,
                          struct error *error);

/* Square root of the sum of squares over all entries, in double, entry by entry in order of registration (as
 * clip_grad_norm_ counts it). */
enum status gradients_norm(struct gradients *gradients, double *norm, struct error *error);

/* One entry's sum of squares, in double. */
enum status gradients_square_sum(struct gradients *gradients, const struct parameter *parameter, double *sum,
                                 struct error *error);

/* STATUS_INTERNAL that names the first entry, in order of registration, which holds a NaN or an infinity; the
 * same of one entry. */
enum status gradients_check(struct gradients *gradients, struct error *error);
enum status gradients_check_entry(struct gradients *gradients, const struct parameter *parameter,
                                  struct error *error);

#endif
