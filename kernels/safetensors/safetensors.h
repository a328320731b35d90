/* The room of safetensors files: reader and writer. It includes kernels/base/; kernels/params/ and the check
 * of a job's files include it.
 *
 *     8 bytes N, little-endian | N bytes of JSON | data
 *     {"name": {"dtype": "F32", "shape": [64, 3, 7, 7], "data_offsets": [begin, end]}, ...,
 *      "__metadata__": {"key": "value", ...}}
 *
 * (github.com/huggingface/safetensors, README.md, "Format".) A file is input, and the reader trusts nothing
 * in it. It checks that
 *   - N <= 100,000,000 and within the file;
 *   - the header is one JSON object in UTF-8 without duplicate names; an entry has exactly three members;
 *   - shapes and offsets are integers from 0 to 2^53;
 *   - the tensors, in order of their offsets, fill the data to its last byte without holes or overlaps;
 *   - end - begin is the product of the shape times the dtype's size, without overflow;
 *   - __metadata__ holds strings alone.
 * To bound the cost of a header, it may hold 2^20 JSON values (a tensor has about ten) and a tensor
 * SAFETENSORS_RANK_MAX dimensions. Any violation is STATUS_CORRUPT; the message names the file, the tensor
 * and the expected value.
 *
 * Blocks on file I/O. */
#ifndef KERNELS_SAFETENSORS_SAFETENSORS_H
#define KERNELS_SAFETENSORS_SAFETENSORS_H

#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F64,
    SAFETENSORS_I32,
    SAFETENSORS_I64,
    SAFETENSORS_OTHER
};
enum { SAFETENSORS_RANK_MAX = 8 };

struct safetensors_entry {
    const char *name;
    enum safetensors_dtype dtype; /* OTHER: sound, but of a dtype that we do not compute in; see dtype_text */
    char dtype_text[12];
    uint32_t rank;
    uint64_t size[SAFETENSORS_RANK_MAX];
    size_t bytes;    /* of the values: little-endian, row-major */
    uint64_t offset; /* of the values, from the file's first byte; set by the reader */
};

struct safetensors; /* an open file; entries in order of their offsets */

/* Reads the header; the values stay in the file, which is kept open. STATUS_NOT_FOUND, STATUS_PERMISSION,
 * STATUS_IO, STATUS_CORRUPT, STATUS_NO_MEMORY. */
enum status safetensors_open(struct safetensors **out, const char *path, struct error *error);

void safetensors_close(struct safetensors *file);

size_t safetensors_count(const struct safetensors *file);
const struct safetensors_entry *safetensors_at(const struct safetensors *file, size_t index);
const struct safetensors_entry *safetensors_find(const struct safetensors *file,
                                                 const char *name); /* or NULL */

/* Reads an entry's values to `values`, which has room for entry->bytes. STATUS_IO; STATUS_CORRUPT: the file
 * was cut short after it was opened. */
enum status safetensors_read(const struct safetensors *file, const struct safetensors_entry *entry,
                             void *values, struct error *error);

/* The source of the values when a file is written. They need not be in memory all at once. */
struct safetensors_stream {
    /* Copies entry `index`'s values to `values`, which has room for them. Called once for each entry, in
     * order. */
    enum status (*fill)(void *context, size_t index, void *values, struct error *error);
    void *context;
    /* Optional: called with every byte of the file, in order. */
    void (*written)(void *observer, const void *bytes, size_t count);
    void *observer;
};

/* Writes entries (name, dtype, rank, size, bytes; a dtype OTHER is written as its dtype_text) in the given
 * order, with the header padded with spaces to a multiple of 8. The steps: write `path`.tmp, fsync, rename,
 * fsync of the folder. After a failure the old file stands; if only the last step fails the new file stands
 * and may not survive a loss of power. Equal entries give equal bytes, and the reader accepts every written
 * file. STATUS_INVALID: a duplicate or reserved name, one that is not UTF-8, bytes that do not fit the shape;
 * STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_IO, STATUS_NO_MEMORY; an error of `fill`. */
enum status safetensors_write(const char *path, const struct safetensors_entry *entries, size_t count,
                              const struct safetensors_stream *stream, struct error *error);

#endif
