/* The tokens of JSON text: strings, numbers, words. The lower half of json_scan.c; nobody else includes it.
 */
#ifndef WORKER_JOB_JSON_TOKEN_H
#define WORKER_JOB_JSON_TOKEN_H

#include "worker/job/json_scan.h"

/* Where the scanner is in its text, and what it has found. */
struct json_cursor {
    char *text;
    size_t length, at;
    uint32_t line, column;
    int depth; /* objects and arrays around `at` */
    struct json_scan *scan;
    uint32_t capacity; /* of scan->nodes */
    json_report *report;
    void *context;
    enum status status;
};

/* An empty span at the cursor. */
struct json_span json_cursor_here(const struct json_cursor *cursor);

/* The byte `ahead` bytes further on, or -1 behind the end of the text. */
int json_cursor_peek(const struct json_cursor *cursor, size_t ahead);

/* Over one character, or one byte that belongs to none. Not at the end. */
void json_cursor_step(struct json_cursor *cursor);

/* Over `count` characters, which become spaces; a line end stays one. Not beyond the end. */
void json_cursor_blank(struct json_cursor *cursor, size_t count);

/* Over the string whose opening quote is at the cursor. Flaws within are reported, overwritten by '?', and
 * set *flawed. False: it has no end on its line, which has been reported. */
bool json_token_string(struct json_cursor *cursor, bool *flawed);

/* Whether `c` (of json_cursor_peek) begins a number, `true`, `false`, `null`, or something like them. */
bool json_token_begins_word(int c);

/* Over such a thing, whatever letters and digits it goes on with. Fills node->type and ->integral. What is
 * not JSON is reported, sets node->flawed and is overwritten by the number 0. */
void json_token_word(struct json_cursor *cursor, struct json_node *node);

#endif
