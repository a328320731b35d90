/* JSON text read strictly; see the header. A recursive descent of bounded depth. A function that returns
 * false has found the text broken, and everything above it returns at once. */
#include "worker/job/json_document.h"

#include "kernels/base/text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_CHARACTERS = 40, SHOWN_KEY_CHARACTERS = 40 };

/* One reading. */
struct reader {
    struct json_cursor cursor;
    struct json_document *document;
    char *strings; /* where the next decoded string goes */
    int depth;     /* objects and arrays around the cursor */
};

static bool read_value(struct reader *reader, uint32_t parent);

void json_document_fini(struct json_document *document)
{
    free(document->nodes);
    free(document->strings);
    *document = (struct json_document){0};
}

uint32_t json_document_elements(const struct json_document *document, uint32_t index)
{
    uint32_t elements = 0;
    for (uint32_t i = index + 1; i < document->nodes[index].end; i = document->nodes[i].end)
        elements++;
    return elements;
}

static void reader_report(struct reader *reader, struct json_span at, const char *text)
{
    reader->cursor.report(reader->cursor.context, at.line, at.column, text);
}

static int peek(const struct reader *reader)
{
    return json_cursor_peek(&reader->cursor, 0);
}

/* Ends the reading: `expected` is not what stands here. */
static bool break_off(struct reader *reader, const char *expected)
{
    const struct json_cursor *cursor = &reader->cursor;
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
    reader_report(reader, json_cursor_here(cursor), text);
    return false;
}

/* ---- between the values ---- */

/* Reports a comment and moves behind it. The cursor is on its first character. */
static bool skip_comment(struct reader *reader)
{
    struct json_cursor *cursor = &reader->cursor;
    struct json_span begin = json_cursor_here(cursor);
    bool block = peek(reader) == '/' && json_cursor_peek(cursor, 1) == '*';
    reader_report(reader, begin, "JSON has no comments; a key that begins with _ can hold a remark");
    if (!block) {
        while (peek(reader) >= 0 && peek(reader) != '\n')
            json_cursor_step(cursor);
        return true;
    }
    json_cursor_step(cursor);
    json_cursor_step(cursor);
    while (!(peek(reader) == '*' && json_cursor_peek(cursor, 1) == '/')) {
        if (peek(reader) < 0) {
            reader_report(reader, begin, "this comment has no end");
            return false;
        }
        json_cursor_step(cursor);
    }
    json_cursor_step(cursor);
    json_cursor_step(cursor);
    return true;
}

static bool skip_space(struct reader *reader)
{
    for (;;) {
        int c = peek(reader), next = json_cursor_peek(&reader->cursor, 1);
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n')
            json_cursor_step(&reader->cursor);
        else if (c != '#' && !(c == '/' && (next == '/' || next == '*')))
            return true;
        else if (!skip_comment(reader))
            return false;
    }
}

/* Moves behind an element: to another element, over a comma (*more), or to the closing bracket. A comma with
 * nothing behind it is a flaw. */
static bool read_separator(struct reader *reader, uint32_t container, char close, bool *more)
{
    const struct json_span begin = reader->document->nodes[container].value;
    if (!skip_space(reader))
        return false;
    const struct json_span comma = json_cursor_here(&reader->cursor);
    *more = peek(reader) == ',';
    if (!*more && peek(reader) != close) {
        char expected[96];
        snprintf(expected, sizeof expected, "',' or '%c' in the %s that begins at %u:%u", close,
                 close == '}' ? "object" : "array", begin.line, begin.column);
        return break_off(reader, expected);
    }
    if (!*more)
        return true;
    json_cursor_step(&reader->cursor);
    if (!skip_space(reader))
        return false;
    if (peek(reader) == close) {
        reader_report(reader, comma,
                      "a comma behind the last element; JSON has commas only between elements");
        *more = false;
    }
    return true;
}

/* ---- values ---- */

static bool add_node(struct reader *reader, uint32_t parent)
{
    struct json_document *document = reader->document;
    if (document->count == JSON_VALUES_MAX) {
        char text[64];
        snprintf(text, sizeof text, "more than %d values", JSON_VALUES_MAX);
        reader_report(reader, json_cursor_here(&reader->cursor), text);
        return false;
    }
    document->nodes[document->count++] =
        (struct json_node){.parent = parent, .value = json_cursor_here(&reader->cursor)};
    return true;
}

static bool read_member(struct reader *reader, uint32_t object)
{
    struct json_cursor *cursor = &reader->cursor;
    struct json_span key = json_cursor_here(cursor);
    const char *name = reader->strings;
    bool flawed;
    if (peek(reader) != '"')
        return break_off(reader, "a key in double quotes");
    if (!json_token_string(cursor, &reader->strings, &flawed))
        return false;
    key.length = (uint32_t)cursor->at - key.offset;
    if (!skip_space(reader))
        return false;
    if (peek(reader) != ':')
        return break_off(reader, "':' behind the key");
    json_cursor_step(cursor);
    uint32_t index = reader->document->count;
    if (!skip_space(reader) || !read_value(reader, object))
        return false;
    struct json_node *node = &reader->document->nodes[index];
    node->key = key;
    node->key_flawed = flawed;
    node->name = name;
    return true;
}

static bool read_container(struct reader *reader, uint32_t index, char close,
                           bool (*read_one)(struct reader *, uint32_t))
{
    if (reader->depth == JSON_DEPTH_MAX) {
        char text[64];
        snprintf(text, sizeof text, "nested more than %d deep", JSON_DEPTH_MAX);
        reader_report(reader, json_cursor_here(&reader->cursor), text);
        return false;
    }
    reader->depth++;
    json_cursor_step(&reader->cursor);
    if (!skip_space(reader))
        return false;
    for (bool more = peek(reader) != close; more;)
        if (!read_one(reader, index) || !read_separator(reader, index, close, &more))
            return false;
    json_cursor_step(&reader->cursor);
    reader->depth--;
    return true;
}

static bool read_value(struct reader *reader, uint32_t parent)
{
    struct json_cursor *cursor = &reader->cursor;
    if (!add_node(reader, parent))
        return false;
    const uint32_t index = reader->document->count - 1;
    const char *string = NULL;
    struct json_word word = {0};
    bool whole = true;
    int c = peek(reader);
    if (c == '{') {
        word.type = JSON_OBJECT;
        whole = read_container(reader, index, '}', read_member);
    } else if (c == '[') {
        word.type = JSON_ARRAY;
        whole = read_container(reader, index, ']', read_value);
    } else if (c == '"') {
        word.type = JSON_STRING;
        string = reader->strings;
        whole = json_token_string(cursor, &reader->strings, &word.flawed);
    } else if (json_token_begins_word(c)) {
        word = json_token_word(cursor);
    } else {
        whole = break_off(reader, "a value");
    }
    struct json_node *node = &reader->document->nodes[index];
    node->type = word.type;
    node->flawed = word.flawed;
    node->integral = word.integral;
    node->number = word.number;
    node->string = string;
    node->value.length = (uint32_t)cursor->at - node->value.offset;
    node->end = reader->document->count;
    return whole;
}

/* Moves to the first value over what may stand before it. */
static bool read_begin(struct reader *reader)
{
    struct json_cursor *cursor = &reader->cursor;
    struct json_span begin = json_cursor_here(cursor);
    if (cursor->length >= 2 &&
        (memcmp(cursor->text, "\xFF\xFE", 2) == 0 || memcmp(cursor->text, "\xFE\xFF", 2) == 0)) {
        reader_report(reader, begin, "the file is UTF-16; a job file is UTF-8");
        return false;
    }
    if (cursor->length >= 3 && memcmp(cursor->text, "\xEF\xBB\xBF", 3) == 0) {
        reader_report(reader, begin, "the file begins with a byte order mark; JSON has none");
        cursor->at = 3; /* The mark takes no column: editors do not show it. */
    }
    if (!skip_space(reader))
        return false;
    if (cursor->at == cursor->length) {
        reader_report(reader, begin, "the file is empty; expected a JSON object");
        return false;
    }
    return true;
}

/* ---- pointers and values, as text for people ---- */

void json_pointer_add(char pointer[JSON_POINTER_BYTES], const char *name)
{
    char escaped[2 * SHOWN_KEY_CHARACTERS * 4 + 1];
    size_t length = 0;
    for (const char *c = name; *c != '\0' && length + 2 < sizeof escaped; c++) {
        if (*c == '~' || *c == '/') {
            escaped[length++] = '~';
            escaped[length++] = *c == '~' ? '0' : '1';
        } else {
            escaped[length++] = *c;
        }
    }
    size_t used = strlen(pointer);
    if (used + 16 >= JSON_POINTER_BYTES)
        return;
    pointer[used++] = '/';
    text_show(pointer + used, JSON_POINTER_BYTES - used, escaped, length, SHOWN_KEY_CHARACTERS);
}

void json_document_pointer(char pointer[JSON_POINTER_BYTES], const struct json_document *document,
                           uint32_t index)
{
    const struct json_node *nodes = document->nodes;
    uint32_t path[JSON_DEPTH_MAX + 1];
    size_t depth = 0;
    for (uint32_t i = index; i != 0; i = nodes[i].parent) {
        assert(depth <= JSON_DEPTH_MAX);
        path[depth++] = i;
    }
    pointer[0] = '\0';
    while (depth-- > 0) {
        uint32_t i = path[depth];
        char place[16];
        uint32_t elements = 0;
        if (nodes[i].key.length == 0)
            for (uint32_t j = nodes[i].parent + 1; j != i; j = nodes[j].end)
                elements++;
        snprintf(place, sizeof place, "%u", elements);
        json_pointer_add(pointer, nodes[i].key.length == 0 ? place : nodes[i].name);
    }
}

void json_document_show(char out[JSON_SHOWN_BYTES], const struct json_document *document, uint32_t index)
{
    const struct json_node *node = &document->nodes[index];
    char text[JSON_SHOWN_BYTES - 2];
    if (node->type == JSON_OBJECT) {
        snprintf(out, JSON_SHOWN_BYTES, "an object");
    } else if (node->type == JSON_ARRAY) {
        const uint32_t elements = json_document_elements(document, index);
        snprintf(out, JSON_SHOWN_BYTES, elements == 0 ? "an empty array" : "an array of %u", elements);
    } else {
        const char *begin = document->text + node->value.offset;
        size_t length = node->value.length;
        bool quoted = node->type == JSON_STRING;
        if (quoted && node->string != begin) {
            begin++;
            length -= 2;
        }
        text_show(text, sizeof text, begin, length, SHOWN_CHARACTERS);
        snprintf(out, JSON_SHOWN_BYTES, quoted ? "\"%s\"" : "%s", text);
    }
}

/* ---- duplicate keys ---- */

/* The first member of the object around member `index` that has its key, or `index` itself. */
static uint32_t first_of_name(const struct json_document *document, uint32_t index)
{
    const struct json_node *nodes = document->nodes;
    uint32_t i = nodes[index].parent + 1;
    while (i != index && (nodes[i].key_flawed || strcmp(nodes[i].name, nodes[index].name) != 0))
        i = nodes[i].end;
    return i;
}

/* Compares each key with those before it: JSON_VALUES_MAX keeps that short. */
static void report_duplicates(struct reader *reader)
{
    struct json_node *nodes = reader->document->nodes;
    for (uint32_t i = 0; i < reader->document->count; i++) {
        char pointer[JSON_POINTER_BYTES], text[JSON_POINTER_BYTES + 80];
        const uint32_t first =
            nodes[i].name == NULL || nodes[i].key_flawed ? i : first_of_name(reader->document, i);
        nodes[i].duplicate = first != i;
        if (!nodes[i].duplicate)
            continue;
        json_document_pointer(pointer, reader->document, i);
        snprintf(text, sizeof text, "%s: duplicate key; it stands already at %u:%u", pointer,
                 nodes[first].key.line, nodes[first].key.column);
        reader_report(reader, nodes[i].key, text);
    }
}

/* ---- a whole text ---- */

enum status json_document_parse(struct json_document *document, const char *text, size_t length,
                                json_report *report, void *context)
{
    /* A decoded string is no longer than the written one with its quotes. */
    *document = (struct json_document){.text = text,
                                       .nodes = malloc(JSON_VALUES_MAX * sizeof *document->nodes),
                                       .strings = malloc(length + 1)};
    if (document->nodes == NULL || document->strings == NULL)
        return STATUS_NO_MEMORY;
    struct reader reader = {
        .cursor =
            {.text = text, .length = length, .line = 1, .column = 1, .report = report, .context = context},
        .document = document,
        .strings = document->strings};
    bool whole = read_begin(&reader) && read_value(&reader, 0) && skip_space(&reader);
    if (whole && reader.cursor.at < length)
        whole = break_off(&reader, "the end of the file behind the value");
    if (whole)
        report_duplicates(&reader);
    else
        document->count = 0;
    return STATUS_OK;
}

enum status json_document_of_string(struct json_document *document, const char *value)
{
    *document = (struct json_document){.text = value, .nodes = calloc(1, sizeof *document->nodes)};
    if (document->nodes == NULL)
        return STATUS_NO_MEMORY;
    document->count = 1;
    document->nodes[0] = (struct json_node){
        .type = JSON_STRING,
        .end = 1,
        .value = {.length = (uint32_t)strlen(value), .line = 1, .column = 1},
        .string = value,
    };
    return STATUS_OK;
}
