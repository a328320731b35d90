/* A strict scanner of JSON text; see the header for what it is for. Runs in whatever process reads a job,
 * on the caller's thread, without shared state.
 *
 * It is a recursive descent whose depth is bounded. A function that returns false has found the text broken
 * (or has no memory) and everything above it returns at once; a mere flaw is reported, repaired in place,
 * and scanning goes on. The tokens themselves, numbers and strings, are in json_token.c. */
#include "worker/job/json_scan.h"

#include "kernels/base/text.h"
#include "worker/job/job.h"
#include "worker/job/json_token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool scan_value(struct json_cursor *cursor, uint32_t parent, struct json_span key);

void json_scan_fini(struct json_scan *scan)
{
    free(scan->nodes);
    *scan = (struct json_scan){0};
}

static void report(struct json_cursor *cursor, struct json_span at, const char *text)
{
    cursor->report(cursor->context, at.line, at.column, text);
}

/* Ends the scan: `expected` is not what stands here. */
static bool refuse(struct json_cursor *cursor, const char *expected)
{
    char text[256], got[64];
    size_t left = cursor->length - cursor->at;
    size_t size = text_character(cursor->text + cursor->at, left);
    text_show(got, sizeof got, cursor->text + cursor->at, size == 0 && left > 0 ? 1 : size, 1);
    if (left == 0)
        snprintf(text, sizeof text, "expected %s, got the end of the file", expected);
    else if (size == 0)
        snprintf(text, sizeof text, "expected %s, got the byte %s, which is not UTF-8", expected, got);
    else
        snprintf(text, sizeof text, "expected %s, got '%s'", expected, got);
    report(cursor, json_cursor_here(cursor), text);
    return false;
}

/* Reports a comment and blanks it, its line ends aside. The cursor is on its first character. */
static bool skip_comment(struct json_cursor *cursor)
{
    struct json_span begin = json_cursor_here(cursor);
    bool block = json_cursor_peek(cursor, 0) == '/' && json_cursor_peek(cursor, 1) == '*';
    report(cursor, begin, "JSON has no comments; a key that begins with _ can hold a remark");
    if (block) {
        json_cursor_blank(cursor, 2);
        while (!(json_cursor_peek(cursor, 0) == '*' && json_cursor_peek(cursor, 1) == '/')) {
            if (json_cursor_peek(cursor, 0) < 0) {
                report(cursor, begin, "this comment has no end");
                return false;
            }
            json_cursor_blank(cursor, 1);
        }
        json_cursor_blank(cursor, 2);
        return true;
    }
    for (int c = json_cursor_peek(cursor, 0); c >= 0 && c != '\n'; c = json_cursor_peek(cursor, 0))
        json_cursor_blank(cursor, 1);
    return true;
}

static bool skip_space(struct json_cursor *cursor)
{
    for (;;) {
        int c = json_cursor_peek(cursor, 0), next = json_cursor_peek(cursor, 1);
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n')
            json_cursor_step(cursor);
        else if (c != '#' && !(c == '/' && (next == '/' || next == '*')))
            return true;
        else if (!skip_comment(cursor))
            return false;
    }
}

static bool node_add(struct json_cursor *cursor, uint32_t parent, struct json_span key)
{
    struct json_scan *scan = cursor->scan;
    if (scan->count == JSON_VALUES_MAX) {
        char text[64];
        snprintf(text, sizeof text, "more than %d values", JSON_VALUES_MAX);
        report(cursor, json_cursor_here(cursor), text);
        return false;
    }
    if (scan->count == cursor->capacity) {
        uint32_t capacity = cursor->capacity == 0 ? 64 : 2 * cursor->capacity;
        struct json_node *nodes = realloc(scan->nodes, capacity * sizeof *nodes);
        if (nodes == NULL) {
            cursor->status = STATUS_NO_MEMORY;
            return false;
        }
        scan->nodes = nodes;
        cursor->capacity = capacity;
    }
    scan->nodes[scan->count++] =
        (struct json_node){.parent = parent, .key = key, .value = json_cursor_here(cursor)};
    return true;
}

static bool scan_member(struct json_cursor *cursor, uint32_t object)
{
    struct json_span key = json_cursor_here(cursor);
    if (json_cursor_peek(cursor, 0) != '"')
        return refuse(cursor, "a key in double quotes");
    bool flawed;
    if (!json_token_string(cursor, &flawed))
        return false;
    key.length = (uint32_t)cursor->at - key.offset;
    if (!skip_space(cursor))
        return false;
    if (json_cursor_peek(cursor, 0) != ':')
        return refuse(cursor, "':' behind the key");
    json_cursor_step(cursor);
    uint32_t index = cursor->scan->count;
    if (!skip_space(cursor) || !scan_value(cursor, object, key))
        return false;
    cursor->scan->nodes[index].key_flawed = flawed;
    return true;
}

static bool scan_element(struct json_cursor *cursor, uint32_t array)
{
    return scan_value(cursor, array, (struct json_span){0});
}

/* Behind an element: a comma with another element to follow (*more), or the closing bracket. A comma with
 * nothing behind it is a flaw, and is blanked. */
static bool scan_separator(struct json_cursor *cursor, uint32_t container, char close, bool *more)
{
    struct json_span begin = cursor->scan->nodes[container].value;
    if (!skip_space(cursor))
        return false;
    struct json_span comma = json_cursor_here(cursor);
    *more = json_cursor_peek(cursor, 0) == ',';
    if (!*more && json_cursor_peek(cursor, 0) != close) {
        char expected[96];
        snprintf(expected, sizeof expected, "',' or '%c' in the %s that begins at %u:%u", close,
                 close == '}' ? "object" : "array", begin.line, begin.column);
        return refuse(cursor, expected);
    }
    if (!*more)
        return true;
    json_cursor_step(cursor);
    if (!skip_space(cursor))
        return false;
    if (json_cursor_peek(cursor, 0) == close) {
        report(cursor, comma, "a comma behind the last element; JSON has commas only between elements");
        cursor->text[comma.offset] = ' ';
        *more = false;
    }
    return true;
}

static bool scan_container(struct json_cursor *cursor, uint32_t index, char close,
                           bool (*scan_one)(struct json_cursor *, uint32_t))
{
    if (cursor->depth == JOB_DEPTH_MAX) {
        char text[64];
        snprintf(text, sizeof text, "nested more than %d deep", JOB_DEPTH_MAX);
        report(cursor, json_cursor_here(cursor), text);
        return false;
    }
    cursor->depth++;
    json_cursor_step(cursor);
    if (!skip_space(cursor))
        return false;
    for (bool more = json_cursor_peek(cursor, 0) != close; more;)
        if (!scan_one(cursor, index) || !scan_separator(cursor, index, close, &more))
            return false;
    json_cursor_step(cursor);
    cursor->depth--;
    return true;
}

static bool scan_value(struct json_cursor *cursor, uint32_t parent, struct json_span key)
{
    if (!node_add(cursor, parent, key))
        return false;
    uint32_t index = cursor->scan->count - 1;
    struct json_node result = {0};
    bool whole;
    int c = json_cursor_peek(cursor, 0);
    if (c == '{') {
        result.type = JSON_OBJECT;
        whole = scan_container(cursor, index, '}', scan_member);
    } else if (c == '[') {
        result.type = JSON_ARRAY;
        whole = scan_container(cursor, index, ']', scan_element);
    } else if (c == '"') {
        result.type = JSON_STRING;
        whole = json_token_string(cursor, &result.flawed);
    } else if (json_token_begins_word(c)) {
        json_token_word(cursor, &result);
        whole = true;
    } else {
        whole = refuse(cursor, "a value");
    }
    struct json_node *node = &cursor->scan->nodes[index];
    node->type = result.type;
    node->flawed = result.flawed;
    node->integral = result.integral;
    node->value.length = (uint32_t)cursor->at - node->value.offset;
    node->end = cursor->scan->count;
    return whole;
}

/* What stands before the first value and cannot be one. */
static bool scan_begin(struct json_cursor *cursor)
{
    struct json_span begin = json_cursor_here(cursor);
    if (cursor->length >= 2 &&
        (memcmp(cursor->text, "\xFF\xFE", 2) == 0 || memcmp(cursor->text, "\xFE\xFF", 2) == 0)) {
        report(cursor, begin, "the file is UTF-16; a job file is UTF-8");
        return false;
    }
    if (cursor->length >= 3 && memcmp(cursor->text, "\xEF\xBB\xBF", 3) == 0) {
        report(cursor, begin, "the file begins with a byte order mark; JSON has none");
        memcpy(cursor->text, "   ", 3);
        cursor->at = 3; /* The mark takes no column: editors do not show it. */
    }
    if (!skip_space(cursor))
        return false;
    if (cursor->at == cursor->length) {
        report(cursor, begin, "the file is empty; expected a JSON object");
        return false;
    }
    return true;
}

enum status json_scan(struct json_scan *scan, char *text, size_t length, json_report *report_flaw,
                      void *context)
{
    *scan = (struct json_scan){0};
    struct json_cursor cursor = {.text = text,
                                 .length = length,
                                 .line = 1,
                                 .column = 1,
                                 .scan = scan,
                                 .report = report_flaw,
                                 .context = context};
    bool whole = scan_begin(&cursor) && scan_element(&cursor, 0) && skip_space(&cursor);
    if (whole && cursor.at < cursor.length)
        whole = refuse(&cursor, "the end of the file behind the value");
    scan->broken = !whole;
    return cursor.status;
}
