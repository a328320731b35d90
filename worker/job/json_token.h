/* The tokens of JSON text (RFC 8259): strings, numbers and the three words, read strictly.
 *
 * The document (json_document.h) stands on this file, and nothing else includes it but the document. A flaw
 * is a mistake that leaves the structure of the text clear: it is reported, and reading goes on behind it. */
#ifndef WORKER_JOB_JSON_TOKEN_H
#define WORKER_JOB_JSON_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_NUMBER_BYTES_MAX = 63 }; /* a longer number is a flaw */

enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* A stretch of the text. Lines and columns begin at 1; a column is a UTF-8 character, or one byte that
 * belongs to none. */
struct json_span {
    uint32_t offset, length; /* bytes */
    uint32_t line, column;
};

/* Receives each flaw, in the order of the text. `text` is one sentence without line end, safe to show. */
typedef void json_report(void *context, uint32_t line, uint32_t column, const char *text);

/* A place in the text, and the function that receives flaws. */
struct json_cursor {
    const char *text;
    size_t length, at;
    uint32_t line, column;
    json_report *report;
    void *context;
};

/* One word or number. */
struct json_word {
    enum json_type type;
    bool flawed;
    bool integral; /* a number without a fraction, in whatever notation: 3, 3.0, 30e-1 */
    double number;
};

/* An empty span at the cursor. */
struct json_span json_cursor_here(const struct json_cursor *cursor);

/* The byte `ahead` bytes further on, or -1 behind the end of the text. */
int json_cursor_peek(const struct json_cursor *cursor, size_t ahead);

/* Moves over one character, or over one byte that belongs to none. Not at the end. */
void json_cursor_step(struct json_cursor *cursor);

/* Reads the string whose opening quote is at the cursor, and writes it decoded and zero-terminated to *out,
 * which moves behind the zero. The result takes no more bytes than the string with its quotes. A flaw is
 * reported, sets *flawed, and becomes a question mark. False: the string has no end on its line, which has
 * been reported. */
bool json_token_string(struct json_cursor *cursor, char **out, bool *flawed);

/* Whether `c` (of json_cursor_peek) begins a number, `true`, `false`, `null`, or a misspelt one of these. */
bool json_token_begins_word(int c);

/* Reads a number or a word, up to the first character that belongs to neither. A word that is no JSON is
 * reported and flawed. Numbers are read by strtod: the process keeps the "C" numeric locale. */
struct json_word json_token_word(struct json_cursor *cursor);

#endif
