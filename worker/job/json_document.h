/* JSON text (RFC 8259), read strictly: a tree of cJSON, and the place of each value in the text.
 *
 * cJSON lets much through (leading zeros, duplicate keys, raw control characters, bytes that are not UTF-8,
 * a byte order mark, numbers that overflow, \u0000, which ends its strings early) and knows no places. So a
 * scanner goes over the text first, and cJSON reads only what the scanner found good. Reading ends at the
 * first error. Nothing here blocks; one thread at a time may use one document. */
#ifndef WORKER_JOB_JSON_DOCUMENT_H
#define WORKER_JOB_JSON_DOCUMENT_H

#include "kernels/base/status.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JSON_VALUES_MAX = 4096, /* a text with more values is refused: it bounds memory and time */
    JSON_DEPTH_MAX = 32,
    JSON_NUMBER_BYTES_MAX = 63,
    JSON_POINTER_BYTES = 256,
    JSON_SHOWN_BYTES = 416,
    JSON_ERROR_BYTES = JSON_POINTER_BYTES + 96,
};

/* Where one value stands. Offsets are bytes from the text's beginning. */
struct json_place {
    uint32_t key;           /* the opening quote of a member's key */
    uint32_t value, length; /* the value as it is written */
};

struct json_document {
    const char *text; /* the caller's, which must outlive the document */
    cJSON *root;
    struct json_place *places; /* by the item's `valueint`; each value stands before those inside it */
    uint32_t count;
};

struct json_error {
    uint32_t offset;             /* in the text */
    char text[JSON_ERROR_BYTES]; /* one sentence, fit to show; of a duplicate key: "/pointer: …" */
};

/* Lines and columns begin at 1. A column is a UTF-8 character, or one byte that belongs to none. */
struct json_position {
    uint32_t line, column;
};

/* Reads `text` (length bytes below 2^31, need not be terminated). STATUS_INVALID: the text is not JSON, or an
 * object has a key twice; *error says why. The only other error is STATUS_NO_MEMORY. The caller calls
 * json_document_fini in every case. */
enum status json_document_parse(struct json_document *document, const char *text, size_t length,
                                struct json_error *error);

/* Makes a document whose only value is the string `value`, taken as it is, without quotes or escapes. `value`
 * must not be the first byte of the caller's text: the byte before it takes the place of the opening quote.
 * STATUS_NO_MEMORY. The caller calls json_document_fini in every case. */
enum status json_document_of_string(struct json_document *document, const char *value);

void json_document_fini(struct json_document *document);

/* The place of an item of the document. */
const struct json_place *json_place_of(const struct json_document *document, const cJSON *item);

struct json_position json_position(const char *text, uint32_t offset);

/* Whether the number `item` is written without a fraction: 3, 3.0 and 30e-1 are integers. */
bool json_is_integer(const struct json_document *document, const cJSON *item);

/* Appends "/" and the key `name`, ~ and / escaped, to a JSON pointer (RFC 6901), fit to show; cut when it
 * would become too long. */
void json_pointer_add(char pointer[JSON_POINTER_BYTES], const char *name);

/* Writes `item` for a sentence that ends in "got …": a number or word as it was written, a string in quotes,
 * "an object", "an array of 2". Cut to 40 characters, fit to show. */
void json_document_show(char out[JSON_SHOWN_BYTES], const struct json_document *document, const cJSON *item);

#endif
