/* JSON text (RFC 8259), read strictly: its values, the place of each in the text, and its flaws.
 *
 * cJSON lets much through (leading zeros, duplicate keys, raw control characters, bytes that are not UTF-8,
 * a byte order mark, numbers that overflow, \u0000, which ends its strings early) and knows no lines and
 * columns, so job files have a reader of their own. The reader reports every flaw, not only the first, so
 * that all problems of a job can be told at once. Nothing here blocks; one thread at a time may use one
 * document. */
#ifndef WORKER_JOB_JSON_DOCUMENT_H
#define WORKER_JOB_JSON_DOCUMENT_H

#include "kernels/base/status.h"
#include "worker/job/json_token.h"

enum {
    JSON_VALUES_MAX = 4096, /* a text with more values is broken: it bounds memory and time */
    JSON_DEPTH_MAX = 32,    /* a text that nests deeper is broken */
    JSON_POINTER_BYTES = 256,
    JSON_SHOWN_BYTES = 416,
};

/* One value, and the key before it in an object. */
struct json_node {
    enum json_type type;
    bool flawed;          /* a flaw inside the value itself was reported: do not judge the value again */
    bool key_flawed;      /* a flaw inside the key was reported: the key is not known */
    bool integral;        /* of a number: see struct json_word */
    bool duplicate;       /* its object has had the key before; reported */
    uint32_t parent;      /* the index of the object or array around it; the root has itself */
    uint32_t end;         /* the index behind the last value inside it; its own index + 1 if none */
    struct json_span key; /* with its quotes; length 0: not a member of an object */
    struct json_span value;
    const char *name;   /* the decoded key, or NULL */
    const char *string; /* the decoded value of a string, or NULL */
    double number;      /* of a number */
};

/* All values of a text, each before those inside it. */
struct json_document {
    const char *text; /* the caller's, which must outlive the document */
    struct json_node *nodes;
    uint32_t count; /* 0: the text is broken, which has been reported: its structure is not clear */
    char *strings;  /* what `name` and `string` point into */
};

/* Reads `text` (length bytes below 2^31, need not be terminated). Every flaw is reported, and every duplicate
 * key, duplicates after the flaws. Errors: STATUS_NO_MEMORY; a bad text is none, it is reported. The caller
 * calls json_document_fini in either case. */
enum status json_document_parse(struct json_document *document, const char *text, size_t length,
                                json_report *report, void *context);

/* Makes a document of one string, `value`, which no JSON text says. Its node's value spans `value` itself,
 * without quotes. Errors, lifetime and release as above. */
enum status json_document_of_string(struct json_document *document, const char *value);

void json_document_fini(struct json_document *document);

/* The number of elements of the array, or of members of the object, `index`. */
uint32_t json_document_elements(const struct json_document *document, uint32_t index);

/* Writes the JSON pointer (RFC 6901, ~ and / escaped) of node `index`, fit to show; a very long one is cut.
 * The root's is empty. */
void json_document_pointer(char pointer[JSON_POINTER_BYTES], const struct json_document *document,
                           uint32_t index);

/* Appends "/" and the escaped key `name` to a pointer, fit to show; cut when it would become too long. */
void json_pointer_add(char pointer[JSON_POINTER_BYTES], const char *name);

/* Writes node `index` for a sentence that ends in "got …": a number or word as it was written, a string in
 * quotes, "an object", "an array of 2". Cut to 40 characters, fit to show. */
void json_document_show(char out[JSON_SHOWN_BYTES], const struct json_document *document, uint32_t index);

#endif
