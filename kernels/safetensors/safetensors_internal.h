/* Shared by the reader, the check of the header's text, and the writer. */
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

#endif
