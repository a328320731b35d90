/* Slabs parallel to a model's trained parameters: gradients, and the moments of optimizers.
 *
 * A slab knows the entries that the present step has written, so that nothing is zeroed which a backward
 * overwrites. Belongs to the thread that holds the params. Only gradients_new and gradients_new_unplaced
 * allocate. */
#ifndef KERNELS_PARAMS_GRADIENTS_H
#define KERNELS_PARAMS_GRADIENTS_H

#include "kernels/kernels.h"

struct gradients;
struct parameter; /* kernels/params/params.h */
struct params;

/* A new slab with memory of its own, zero. It is freed before the params, which are built or laid out.
 * STATUS_NO_MEMORY. */
enum status gradients_new(struct gradients **out, struct params *params, struct error *error);
void gradients_free(struct gradients *gradients);

/* A new slab without memory. gradients_place sets the address of element 0, in memory or not, aligned to 64
 * bytes. Entries without memory must not be used. */
enum status gradients_new_unplaced(struct gradients **out, struct params *params, struct error *error);
void gradients_place(struct gradients *gradients, void *slab);

/* The params to which the slab is parallel. */
struct params *gradients_params(struct gradients *gradients);

/* The whole slab, flat. Entries that the last step did not write are zero after gradients_complete. */
struct tensor *gradients_slab(struct gradients *gradients);

/* For the tape: the tensor of `parameter`'s gradient, in the parameter's layout. *fresh: nothing was written
 * since gradients_begin, so the caller overwrites it. The call marks it written. */
struct tensor *gradients_take(struct gradients *gradients, const struct parameter *parameter, bool *fresh);
void gradients_begin(struct gradients *gradients);

/* The tensor of an entry's gradient that was written since gradients_begin; NULL: it was not. Between two
 * nodes of a walk that uses each parameter once, a written entry is complete. */
const struct tensor *gradients_written(const struct gradients *gradients, const struct parameter *parameter);

/* Zeroes the entries that were not written since gradients_begin. The functions below call it first. */
enum status gradients_complete(struct gradients *gradients, struct error *error);

/* One entry's gradient, canonical. */
enum status gradients_read(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                           void *values, struct error *error);

/* Writes canonical values to an entry, as a backward would. */
enum status gradients_write(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                            const void *values, struct error *error);

/* Adds `from`'s entry to `to`'s; copies it where `to`'s was not written since gradients_begin. Both slabs are
 * parallel to the same params, and `from` is complete. */
enum status gradients_add(struct gradients *to, struct gradients *from, const struct parameter *parameter,
                          struct error *error);

/* One entry's sum of squares, in double. */
enum status gradients_square_sum(struct gradients *gradients, const struct parameter *parameter, double *sum,
                                 struct error *error);

/* The sum of squares of all entries, in double: on the CPU the entries' sums in order of registration, on a
 * GPU one sum over the slab. Its square root is the gradient's norm. */
enum status gradients_squares(struct gradients *gradients, double *sum, struct error *error);

/* Searches all entries, in order of registration, for a NaN or an infinity. STATUS_INTERNAL: one was found;
 * the message names the entry. */
enum status gradients_check(struct gradients *gradients, struct error *error);

#endif
