/* Shared by the files of the room:
 *
 *     safetensors.c          dtypes, sizes and names     safetensors_read.c     a file's frame and values
 *     safetensors_grammar.c  the header's JSON grammar   safetensors_write.c    the writer
 *     safetensors_header.c   the header's entries: dtype, shape, offsets, names, metadata */
#ifndef KERNELS_SAFETENSORS_SAFETENSORS_INTERNAL_H
#define KERNELS_SAFETENSORS_SAFETENSORS_INTERNAL_H

#include "kernels/safetensors/safetensors.h"

#include <stdbool.h>

enum {
    SAFETENSORS_LENGTH_BYTES = 8,
    SAFETENSORS_HEADER_BYTES_MAX = 100000000, /* the format's own limit */
    SAFETENSORS_VALUES_MAX = 1 << 20,         /* JSON values of a header; a tensor has about ten */
    SAFETENSORS_SHOWN_BYTES = 128,
};

#define SAFETENSORS_METADATA "__metadata__"

/* A dtype's name in a file, and the bits of one value. */
struct safetensors_format {
    const char *text;
    enum safetensors_dtype dtype;
    uint32_t bits;
};

/* NULL: the format knows no such dtype. */
const struct safetensors_format *safetensors_format_find(const char *text);

/* Bytes of a tensor. False when the product overflows, or is no whole number of bytes. */
bool safetensors_bytes(const struct safetensors_format *format, uint32_t rank, const uint64_t *size,
                       uint64_t *bytes);

/* A tensor's name as a message may show it. Returns `shown`. */
const char *safetensors_show(char shown[SAFETENSORS_SHOWN_BYTES], const char *name);

/* Sorts the names and returns the first that stands there twice, or NULL. */
const char *safetensors_duplicate(const char **names, size_t count);

/* Checks `length` bytes of text for everything that cJSON lets pass although it is no JSON, or no header of
 * this format: values other than objects, arrays, strings and integers from 0 to 2^53; a number that is not
 * plain digits; white space that JSON does not know; strings with raw control characters, a zero, or bytes
 * that are not UTF-8; more than three levels; more values than SAFETENSORS_VALUES_MAX. cJSON then finds bad
 * structure. Returns the fault in a few words, and its byte in *at; NULL: none. */
const char *safetensors_check_text(const char *text, size_t length, size_t *at);

/* ---- the header of a file that is read ---- */

/* One file while it is read. */
struct safetensors_reading {
    const char *name;
    uint64_t data_offset; /* where the data begin: behind the header */
    uint64_t data_bytes;
    struct error *error;
};

/* All zero: empty. Names point into cJSON's tree, which lives until safetensors_header_free. */
struct safetensors_header {
    struct cJSON *json;
    struct safetensors_entry *entries; /* in order of their offsets */
    size_t count;
    const struct safetensors_entry **by_name;
};

/* Reads `text` and checks all that it says. `text` is the header with a zero behind it, without which cJSON
 * of this version reads a byte past a text that ends early. *header is empty before; it is freed by the
 * caller, after a failure too. STATUS_CORRUPT, STATUS_NO_MEMORY. */
enum status safetensors_header_read(struct safetensors_header *header,
                                    const struct safetensors_reading *reading, const char *text);
void safetensors_header_free(struct safetensors_header *header);

/* NULL: no entry has this name. */
const struct safetensors_entry *safetensors_header_find(const struct safetensors_header *header,
                                                        const char *name);

/* Set the reading's error, whose message begins with the file's name, and return its status. */
enum status safetensors_fail_corrupt(const struct safetensors_reading *reading, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
enum status safetensors_fail_no_memory(const struct safetensors_reading *reading);

#endif
