/* JSON text read in full: cJSON's values, and where each of them stands in the text.
 *
 * Puts json_scan (strictness, places) and cJSON (values) together, and finds duplicate keys. Nothing here
 * blocks; one thread at a time may use one document. Numbers are read with strtod: the process keeps the
 * "C" numeric locale, as every process of ours does. */
#ifndef WORKER_JOB_JSON_DOCUMENT_H
#define WORKER_JOB_JSON_DOCUMENT_H

#include "worker/job/json_scan.h"

#include <cjson/cJSON.h>

enum { JSON_POINTER_BYTES = 256, JSON_SHOWN_BYTES = 416 };

struct json_document {
    char *text; /* a copy in which flaws are overwritten (json_scan.h), zero-terminated */
    size_t length;
    struct json_scan scan; /* nodes[0] is the root; no nodes when the text is broken */
    cJSON *root;           /* NULL when the text is broken */
    cJSON **items;         /* items[i] is the value of scan.nodes[i], and has its decoded key */
};

/* Reads `text` (length bytes, need not be terminated). Every flaw and duplicate key is reported; duplicates
 * come after the flaws. A broken text is reported too, and leaves a document without root.
 * Errors: STATUS_NO_MEMORY. The caller calls json_document_fini in either case. */
enum status json_document_parse(struct json_document *document, const char *text, size_t length,
                                json_report *report, void *context);

/* Makes a document of one string that no text says, `value`. Its node's value spans `value` itself, without
 * quotes. Errors and release as above. */
enum status json_document_of_string(struct json_document *document, const char *value);

void json_document_fini(struct json_document *document);

/* Writes the JSON pointer (RFC 6901, ~ and / escaped) of node `index`, fit to show; a very long one is cut.
 * The root's is empty. */
void json_document_pointer(char pointer[JSON_POINTER_BYTES], const struct json_document *document,
                           uint32_t index);

/* Appends "/" and the escaped key `name` to a pointer, fit to show; cut when it would become too long. */
void json_pointer_add(char pointer[JSON_POINTER_BYTES], const char *name);

/* Writes what node `index` is, for a sentence that ends in "got …": a number or word as it was written, a
 * string in quotes, "an object", "an array of 2". Cut to 40 characters, fit to show. */
void json_document_show(char out[JSON_SHOWN_BYTES], const struct json_document *document, uint32_t index);

#endif
