/* The room of safetensors files: reader and writer. It includes kernels/base/; kernels/params/ includes it.
 *
 *     header     a JSON object that describes the tensors; N bytes after the 8 bytes that say N
 *     entry      one tensor of the header: name, dtype, shape, place in the data
 *     offset     a byte's distance from the beginning of the data
 *     metadata   text beside the tensors, under the name __metadata__
 *
 *     8 bytes N, little-endian | N bytes of JSON | data
 *     {"name": {"dtype": "F32", "shape": [64, 3, 7, 7], "data_offsets": [begin, end]}, ...,
 *      "__metadata__": {"key": "value", ...}}
 *
 * (github.com/huggingface/safetensors, README.md, "Format".) A file is input, and the reader trusts nothing
 * in it. It checks that
 *   - N <= 100,000,000 and within the file;
 *   - the header is one JSON object in UTF-8 without two entries of one name; an entry has exactly three
 *     members;
 *   - shapes and offsets are integers from 0 to 2^53;
 *   - the tensors, in order of their offsets, fill the data to its last byte without holes or overlaps;
 *   - end - begin is the product of the shape times the dtype's size, without overflow.
 * __metadata__ is not used, and not checked. To bound the cost of a header, it may hold 2^20 JSON values (a
 * tensor has about ten) and a tensor SAFETENSORS_RANK_MAX dimensions. Any violation is STATUS_CORRUPT; the
 * message names the file, the tensor and the expected value.
 *
 * Blocks on file I/O. */
#ifndef KERNELS_SAFETENSORS_SAFETENSORS_H
#define KERNELS_SAFETENSORS_SAFETENSORS_H

#include "kernels/base/file.h"
#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_RANK_MAX = 8 };

struct safetensors_entry {
    const char *name;
    const char *dtype; /* the format's name: "F32", "BF16", … */
    uint32_t rank;
    uint64_t size[SAFETENSORS_RANK_MAX];
    size_t bytes;    /* of the values: little-endian, row-major */
    uint64_t offset; /* of the values, from the file's first byte; set by the reader */
};

/* An open file. The reader's callers read these members alone. */
struct safetensors {
    char *path;
    struct safetensors_entry *entries; /* (count) sorted by name */
    size_t count;
    int fd;
    uint64_t data, data_bytes; /* where the values begin in the file, and how many bytes there are */
    struct cJSON *json;        /* the header: the entries' names lie in it */
};

/* Reads the header; the values stay in the file, which is kept open. STATUS_NOT_FOUND, STATUS_PERMISSION,
 * STATUS_IO, STATUS_CORRUPT, STATUS_NO_MEMORY. */
enum status safetensors_open(struct safetensors **out, struct path path, struct error *error);

void safetensors_close(struct safetensors *file); /* NULL is nothing */

/* NULL: no entry has this name. */
const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name);

/* Reads an entry's values to `values`, which has room for entry->bytes. STATUS_IO; STATUS_CORRUPT: the file
 * was cut short after it was opened. */
enum status safetensors_read(const struct safetensors *file, const struct safetensors_entry *entry,
                             void *values, struct error *error);

/* Formats what precedes the values in a file of these entries: the length, and the header, padded with spaces
 * to a multiple of 8. The values follow in the entries' order. The names are UTF-8 and differ, none is
 * "__metadata__" (kernels/params/params.h sees to that). Returns malloc'ed memory of *bytes, or NULL: no
 * memory. */
char *safetensors_format(const struct safetensors_entry *entries, size_t count, size_t *bytes);

#endif
