/* A model, or a shard of one, in safetensors files (kernels/safetensors/safetensors.h).
 *
 * A file may hold a shard (one of several parameter servers'), several files may have to fit before any value
 * changes, and one file may be merged from several. Files are canonical whatever the layouts; values pass
 * through a buffer as large as the largest entry. Blocks on files; belongs to the thread that holds the
 * params. */
#ifndef KERNELS_PARAMS_PARAMS_FILE_H
#define KERNELS_PARAMS_PARAMS_FILE_H

#include "kernels/base/file.h"
#include "kernels/params/gradients.h"
#include "kernels/params/params.h"

/* Some of a model's entries. */
struct params_range {
    uint32_t first, end; /* trained entries with an index in [first, end) */
    bool others;         /* and every buffer and counter */
};
#define PARAMS_RANGE_ALL ((struct params_range){0, UINT32_MAX, true})
#define PARAMS_RANGE_TRAINED ((struct params_range){0, UINT32_MAX, false})

struct params_file; /* open, and found to fit */

/* Opens a file that must hold the entries of `contents`, each with its shape and as F32 or F64 (a counter:
 * I64), and nothing else; with `counters_optional` a counter may be absent. The entries need no memory. The
 * params outlive the file. STATUS_INVALID: the message names the first entries at fault, with both shapes.
 * Other errors as safetensors_open. */
enum status params_file_open(struct params_file **out, struct params *params, struct path path,
                             const struct params_range *contents, bool counters_optional,
                             struct error *error);
void params_file_close(struct params_file *file); /* NULL is nothing */

/* Loads the entries that are in `range` and in the file: into `parallel` (trained entries alone), or with
 * NULL into the params. An absent counter becomes 0. Errors of safetensors_read; STATUS_CORRUPT for an entry
 * that holds a NaN or an infinity. After an error some entries may have been loaded. */
enum status params_file_load(const struct params_file *file, struct gradients *parallel,
                             const struct params_range *range, struct error *error);

/* The values that a file is written from. */
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

/* Writes floating entries as F32 (F64 on a double backend) and counters as I64 of shape [], in order of
 * registration, and syncs the file. A PyTorch model of the same names loads the file strictly. Equal values
 * give equal bytes, whatever their source. After a failure the file may be there, cut short.
 * STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_IO, STATUS_NO_MEMORY; errors of reading a source. */
enum status params_file_save(struct path path, const struct params_saving *saving, struct error *error);

#endif
