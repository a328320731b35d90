/* A model, or a part of one, in safetensors files (kernels/safetensors/safetensors.h).
 *
 * A process may own a part of the model's entries (a parameter server among several), has to compare several
 * files before anything may change, or puts one file together out of several. Files are canonical, whatever
 * the layouts; values pass through room for the largest entry. Blocks on files; belongs to the thread that
 * holds the params. */
#ifndef KERNELS_PARAMS_PARAMS_FILE_H
#define KERNELS_PARAMS_PARAMS_FILE_H

#include "kernels/params/gradients.h"

/* Some of a model's entries. */
struct params_range {
    uint32_t first, end; /* trained entries with an index in [first, end) */
    bool others;         /* and every buffer and counter */
};
#define PARAMS_RANGE_ALL ((struct params_range){0, UINT32_MAX, true})
#define PARAMS_RANGE_TRAINED ((struct params_range){0, UINT32_MAX, false})

struct params_file; /* open, and found to fit */

/* Opens a file that has to hold the entries of `contents`, each with its shape and as F32 or F64 (a counter:
 * I64), and nothing else; with `counters_optional`, a counter may be absent. Whether the entries have a place
 * does not matter. STATUS_INVALID names the first few at fault with both shapes; otherwise the errors of
 * safetensors_open. The params outlive the file. */
enum status params_file_open(struct params_file **out, struct params *params, const char *path,
                             const struct params_range *contents, bool counters_optional,
                             struct error *error);
void params_file_close(struct params_file *file); /* NULL is nothing */

/* Loads those entries of `range` that the file is to hold: into `parallel` (gradients_take, trained entries
 * alone), or with NULL into the params. An absent counter becomes 0. Errors of safetensors_read, and
 * STATUS_CORRUPT for an entry that holds a NaN or an infinity, with which nobody could compute on: some
 * entries may have been loaded then. */
enum status params_file_load(const struct params_file *file, struct gradients *parallel,
                             const struct params_range *range, struct error *error);

/* What is to be saved. */
struct params_saving {
    struct params *params;
    struct gradients *parallel;   /* not NULL: its entries and not the params' */
    struct params_range contents; /* of the file that is written */
    struct params_file *const
        *sources;        /* (source_count) an entry that one of these holds comes from there; */
    size_t source_count; /* the others must have a place */
    void (*written)(void *observer, const void *bytes, size_t count); /* optional: sees the file's bytes */
    void *observer;
};

/* Floating entries as F32 (F64 on a double backend), counters as I64 of shape [], in order of registration.
 * Equal values give equal bytes, whatever came from where. Files and errors as safetensors_write. */
enum status params_file_save(const char *path, const struct params_saving *saving, struct error *error);

#endif
