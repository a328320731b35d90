/* A strict scanner of JSON text (RFC 8259): what is wrong with it, and where everything stands.
 *
 * cJSON gives us values but lets much through (leading zeros, raw control characters, bytes that are not
 * UTF-8, a byte order mark, numbers that overflow, \u0000, which ends its strings early) and knows no lines
 * and columns. This scanner runs first, over the same bytes. It reports every flaw, and overwrites a flaw
 * that leaves the structure clear with something harmless of the same length, so that the rest of the text
 * can still be checked and all its problems told at once. A text that it does not call broken is therefore
 * one that cJSON reads, value for value in the scanner's order. */
#ifndef WORKER_JOB_JSON_SCAN_H
#define WORKER_JOB_JSON_SCAN_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JSON_VALUES_MAX = 1 << 16,  /* a text with more values is broken: it bounds memory */
    JSON_NUMBER_BYTES_MAX = 63, /* a longer number is a flaw: cJSON would read a part of it */
};

enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* A piece of the text. Lines and columns begin at 1; a column is a UTF-8 character, or one byte that
 * belongs to none. */
struct json_span {
    uint32_t offset, length; /* bytes */
    uint32_t line, column;
};

/* One value, and the key before it in an object. */
struct json_node {
    enum json_type type;
    bool flawed;          /* a flaw inside the value itself was reported: do not judge it again */
    bool key_flawed;      /* the same of the key: it is not known what it is */
    bool integral;        /* a number without a fraction, written however: 3, 3.0, 30e-1 */
    bool duplicate;       /* its object has had the key before; set by json_document.h */
    uint32_t parent;      /* the index of the object or array around it; the root has itself */
    uint32_t end;         /* the index behind the last value inside it; its own index + 1 if none */
    struct json_span key; /* with its quotes; length 0: not a member of an object */
    struct json_span value;
};

/* All values of a text, each before those inside it. */
struct json_scan {
    struct json_node *nodes; /* malloc'ed */
    uint32_t count;
    bool broken; /* the structure is not clear from some point on: nodes are not to be used */
};
void json_scan_fini(struct json_scan *scan);

/* Told of each flaw, in the order of the text. `text` is one sentence without line end, safe to show. */
typedef void json_report(void *context, uint32_t line, uint32_t column, const char *text);

/* Scans `text` (length bytes below 2^31) and overwrites its flaws. `report` is called for each.
 * Values may nest JOB_DEPTH_MAX deep. Errors: STATUS_NO_MEMORY; a bad text is none, it is reported. The
 * caller calls json_scan_fini in either case. */
enum status json_scan(struct json_scan *scan, char *text, size_t length, json_report *report, void *context);

#endif
