/* Reads JSON text strictly. The scanner is a recursive descent of bounded depth. A scan
 * function that returns false has written the error; its callers return at once. */
#include "worker/job/json_document.h"

#include "kernels/base/text.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHOWN_CHARACTERS = 40, SHOWN_KEY_CHARACTERS = 40, SHOWN_WORD_CHARACTERS = 24 };

struct scanner {
    const char *text, *at, *end;
    struct json_document *document;
    struct json_error *error;
    int depth; /* objects and arrays around `at` */
};

static bool scan_value(struct scanner *scanner, uint32_t key);

/* Ends the scan with an error at `at`. */
__attribute__((format(printf, 3, 4))) static bool refuse(struct scanner *scanner, const char *at,
                                                         const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    scanner->error->offset = (uint32_t)(at - scanner->text);
    vsnprintf(scanner->error->text, sizeof scanner->error->text, format, arguments);
    va_end(arguments);
    return false;
}

/* The byte at the scanner's place, or -1 behind the end. */
static int peek(const struct scanner *scanner)
{
    return scanner->at < scanner->end ? (unsigned char)*scanner->at : -1;
}

static size_t bytes_left(const struct scanner *scanner)
{
    return (size_t)(scanner->end - scanner->at);
}

static bool refuse_unexpected(struct scanner *scanner, const char *expected)
{
    char got[64];
    const size_t left = bytes_left(scanner), size = text_character(scanner->at, left);
    text_show(got, sizeof got, scanner->at, size == 0 && left > 0 ? 1 : size, 1);
    if (left == 0)
        return refuse(scanner, scanner->at, "expected %s, got the end of the file", expected);
    if (size == 0)
        return refuse(scanner, scanner->at, "expected %s, got the byte %s, which is not UTF-8", expected,
                      got);
    return refuse(scanner, scanner->at, "expected %s, got '%s'", expected, got);
}

static bool skip_space(struct scanner *scanner)
{
    while (scanner->at < scanner->end && memchr(" \t\r\n", *scanner->at, 4) != NULL)
        scanner->at++;
    const bool comment = peek(scanner) == '#' || (bytes_left(scanner) >= 2 && scanner->at[0] == '/' &&
                                                  (scanner->at[1] == '/' || scanner->at[1] == '*'));
    return !comment ||
           refuse(scanner, scanner->at, "JSON has no comments; a key that begins with _ can hold a remark");
}

/* ---- strings ---- */

/* The number of the \uXXXX at `at`, or -1 if none stands there. */
static long unicode_escape(const char *at, const char *end)
{
    char digits[5] = "";
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return -1;
    memcpy(digits, at + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? strtol(digits, NULL, 16) : -1;
}

static bool scan_escape(struct scanner *scanner)
{
    const char *at = scanner->at, *end = scanner->end;
    if (end - at >= 2 && memchr("\"\\/bfnrt", at[1], 8) != NULL) {
        scanner->at += 2;
        return true;
    }
    const long code = unicode_escape(at, end);
    if (code < 0)
        return refuse(scanner, at,
                      "a bad escape in a string: behind \\ stands one of \" \\ / b f n r t uXXXX");
    if (code == 0)
        return refuse(scanner, at, "\\u0000 in a string: no text here may hold a zero");
    const bool pair = code >= 0xD800 && code < 0xDC00 && (unicode_escape(at + 6, end) & ~0x3FFL) == 0xDC00;
    if (code >= 0xD800 && code < 0xE000 && !pair)
        return refuse(scanner, at, "\\u%04lx in a string is half of a surrogate pair, and stands alone",
                      (unsigned long)code);
    scanner->at += pair ? 12 : 6;
    return true;
}

/* The opening quote is at the scanner's place. */
static bool scan_string(struct scanner *scanner)
{
    const char *begin = scanner->at++;
    for (;;) {
        const size_t size = text_character(scanner->at, bytes_left(scanner));
        const int c = peek(scanner);
        if (c < 0 || c == '\n')
            return refuse(scanner, begin, "this string has no closing quote on its line");
        if (c < 0x20)
            return refuse(scanner, scanner->at, "a raw control character in a string; write it as \\u%04x",
                          (unsigned)c);
        if (size == 0)
            return refuse(scanner, scanner->at, "the byte \\x%02x in a string is not UTF-8", (unsigned)c);
        if (c != '\\')
            scanner->at += size;
        else if (!scan_escape(scanner))
            return false;
        if (c == '"')
            return true;
    }
}

/* ---- numbers and words ---- */

static bool is_word_character(int c)
{
    return c >= 0 && c < 0x80 && (isalnum(c) || c == '_' || c == '.' || c == '+' || c == '-');
}

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* Whether `text` is a number of the grammar, section 6 of RFC 8259. */
static bool is_number(const char *text)
{
    const char *point = strchr(text, '.');
    char *end;
    text += text[0] == '-';
    if (strspn(text, "0123456789.eE+-") < strlen(text) || digits(text) == 0 ||
        (digits(text) > 1 && text[0] == '0') || (point != NULL && digits(point + 1) == 0))
        return false;
    strtod(text, &end);
    return end[0] == '\0';
}

/* Explains why the word at the scanner's place, of `length` bytes, is not JSON. `copy` is its beginning. */
static bool refuse_word(struct scanner *scanner, const char *copy, size_t length)
{
    static const char *const known[][2] = {
        {"true", "true"}, {"false", "false"}, {"null", "null"}, {"none", "null"}, {"nil", "null"}};
    char shown[SHOWN_WORD_CHARACTERS + 8]; /* a word is plain ASCII */
    text_show(shown, sizeof shown, scanner->at, length, SHOWN_WORD_CHARACTERS);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcasecmp(known[i][0], copy) == 0)
            return refuse(scanner, scanner->at, "%s is not a JSON value; did you mean %s?", shown,
                          known[i][1]);
    if (copy[0] == '+' && is_number(copy + 1))
        return refuse(scanner, scanner->at, "%s is not a JSON number: a number has no plus sign", shown);
    if (copy[0] == '0' && digits(copy) == strlen(copy))
        return refuse(scanner, scanner->at, "%s is not a JSON number: a number has no leading zeros", shown);
    if (isdigit((unsigned char)copy[0]) || strchr("+-.", copy[0]) != NULL)
        return refuse(scanner, scanner->at, "%s is not a JSON number", shown);
    return refuse(scanner, scanner->at, "%s is not a JSON value; a string stands in double quotes", shown);
}

static bool scan_word(struct scanner *scanner)
{
    char copy[JSON_NUMBER_BYTES_MAX + 1] = "";
    size_t length = 0;
    while (length < bytes_left(scanner) && is_word_character((unsigned char)scanner->at[length]))
        length++;
    memcpy(copy, scanner->at, length < sizeof copy ? length : sizeof copy - 1);
    const bool number = is_number(copy);
    if (!number && strcmp(copy, "true") != 0 && strcmp(copy, "false") != 0 && strcmp(copy, "null") != 0)
        return refuse_word(scanner, copy, length);
    if (length > JSON_NUMBER_BYTES_MAX)
        return refuse(scanner, scanner->at, "a number of more than %d characters", JSON_NUMBER_BYTES_MAX);
    if (number && !isfinite(strtod(copy, NULL)))
        return refuse(scanner, scanner->at, "%s is too large for a 64-bit floating point number", copy);
    scanner->at += length;
    return true;
}

/* ---- objects and arrays ---- */

static bool scan_member(struct scanner *scanner)
{
    const uint32_t key = (uint32_t)(scanner->at - scanner->text);
    if (peek(scanner) != '"')
        return refuse_unexpected(scanner, "a key in double quotes");
    if (!scan_string(scanner) || !skip_space(scanner))
        return false;
    if (peek(scanner) != ':')
        return refuse_unexpected(scanner, "':' behind the key");
    scanner->at++;
    return skip_space(scanner) && scan_value(scanner, key);
}

/* Moves behind an element: to another element, over a comma (*more), or to the closing bracket. */
static bool scan_separator(struct scanner *scanner, const char *begin, char close, bool *more)
{
    if (!skip_space(scanner))
        return false;
    const char *comma = scanner->at;
    *more = peek(scanner) == ',';
    if (!*more && peek(scanner) != close) {
        const struct json_position at = json_position(scanner->text, (uint32_t)(begin - scanner->text));
        char expected[96];
        snprintf(expected, sizeof expected, "',' or '%c' in the %s that begins at %u:%u", close,
                 close == '}' ? "object" : "array", at.line, at.column);
        return refuse_unexpected(scanner, expected);
    }
    scanner->at += *more;
    if (!skip_space(scanner))
        return false;
    return !*more || peek(scanner) != close ||
           refuse(scanner, comma, "a comma behind the last element; JSON has commas only between elements");
}

static bool scan_container(struct scanner *scanner, char close)
{
    const char *begin = scanner->at;
    if (scanner->depth == JSON_DEPTH_MAX)
        return refuse(scanner, begin, "nested more than %d deep", JSON_DEPTH_MAX);
    scanner->depth++;
    scanner->at++;
    if (!skip_space(scanner))
        return false;
    for (bool more = peek(scanner) != close; more;)
        if (!(close == '}' ? scan_member(scanner) : scan_value(scanner, 0)) ||
            !scan_separator(scanner, begin, close, &more))
            return false;
    scanner->at++;
    scanner->depth--;
    return true;
}

static bool scan_value(struct scanner *scanner, uint32_t key)
{
    struct json_document *document = scanner->document;
    const int c = peek(scanner);
    if (document->count == JSON_VALUES_MAX)
        return refuse(scanner, scanner->at, "more than %d values", JSON_VALUES_MAX);
    struct json_place *place = &document->places[document->count++];
    *place = (struct json_place){.key = key, .value = (uint32_t)(scanner->at - scanner->text)};
    const bool good = c == '{'               ? scan_container(scanner, '}')
                      : c == '['             ? scan_container(scanner, ']')
                      : c == '"'             ? scan_string(scanner)
                      : is_word_character(c) ? scan_word(scanner)
                                             : refuse_unexpected(scanner, "a value");
    place->length = (uint32_t)(scanner->at - scanner->text) - place->value;
    return good;
}

static bool scan_text(struct scanner *scanner)
{
    const size_t length = bytes_left(scanner);
    if (length >= 2 &&
        (memcmp(scanner->text, "\xFF\xFE", 2) == 0 || memcmp(scanner->text, "\xFE\xFF", 2) == 0))
        return refuse(scanner, scanner->at, "the file is UTF-16; a job file is UTF-8");
    if (length >= 3 && memcmp(scanner->text, "\xEF\xBB\xBF", 3) == 0)
        return refuse(scanner, scanner->at, "the file begins with a byte order mark; JSON has none");
    if (!skip_space(scanner))
        return false;
    if (scanner->at == scanner->end)
        return refuse(scanner, scanner->text, "the file is empty; expected a JSON object");
    if (!scan_value(scanner, 0) || !skip_space(scanner))
        return false;
    return scanner->at == scanner->end || refuse_unexpected(scanner, "the end of the file behind the value");
}

/* ---- the tree ---- */

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

/* Links `item`, whose pointer is `pointer`, and all items inside it to their places, in the order of the
 * text. False: there is a duplicate key. */
static bool link_places(struct scanner *scanner, cJSON *item, const char *pointer)
{
    struct json_document *document = scanner->document;
    item->valueint = (int)document->count++;
    unsigned elements = 0;
    for (cJSON *child = item->child; child != NULL; child = child->next) {
        char inner[JSON_POINTER_BYTES], number[16];
        snprintf(inner, sizeof inner, "%s", pointer);
        snprintf(number, sizeof number, "%u", elements++);
        json_pointer_add(inner, child->string != NULL ? child->string : number);
        const cJSON *first =
            child->string == NULL ? child : cJSON_GetObjectItemCaseSensitive(item, child->string);
        if (first != child) {
            const struct json_position at =
                json_position(document->text, json_place_of(document, first)->key);
            return refuse(scanner, scanner->text + document->places[document->count].key,
                          "%s: duplicate key; it stands already at %u:%u", inner, at.line, at.column);
        }
        if (!link_places(scanner, child, inner))
            return false;
    }
    return true;
}

enum status json_document_parse(struct json_document *document, const char *text, size_t length,
                                struct json_error *error)
{
    *document =
        (struct json_document){.text = text, .places = malloc(JSON_VALUES_MAX * sizeof *document->places)};
    struct scanner scanner = {
        .text = text, .at = text, .end = text + length, .document = document, .error = error};
    if (document->places == NULL)
        return STATUS_NO_MEMORY;
    if (!scan_text(&scanner))
        return STATUS_INVALID;
    cJSON *root = cJSON_ParseWithLength(text, length);
    if (root == NULL)
        return STATUS_NO_MEMORY;
    document->count = 0;
    if (link_places(&scanner, root, "")) {
        document->root = root;
        return STATUS_OK;
    }
    cJSON_Delete(root);
    return STATUS_INVALID;
}

enum status json_document_of_string(struct json_document *document, const char *value)
{
    /* The byte before the string and its terminating zero stand in the quotes' places. */
    *document = (struct json_document){.text = value - 1,
                                       .root = cJSON_CreateString(value),
                                       .places = calloc(1, sizeof *document->places),
                                       .count = 1};
    if (document->root == NULL || document->places == NULL)
        return STATUS_NO_MEMORY;
    document->places[0].length = (uint32_t)strlen(value) + 2;
    return STATUS_OK;
}

void json_document_fini(struct json_document *document)
{
    cJSON_Delete(document->root);
    free(document->places);
    *document = (struct json_document){0};
}

/* ---- places and values, for people ---- */

const struct json_place *json_place_of(const struct json_document *document, const cJSON *item)
{
    return &document->places[item->valueint];
}

struct json_position json_position(const char *text, uint32_t offset)
{
    struct json_position position = {.line = 1, .column = 1};
    for (uint32_t at = 0; at < offset; position.column++) {
        if (text[at] == '\n') {
            position.line++;
            position.column = 0;
        }
        const size_t size = text_character(text + at, offset - at);
        at += size == 0 ? 1 : (uint32_t)size;
    }
    return position;
}

/* Asked of the digits, not of the double: 3.00000000000000000001 rounds to 3 and still is no integer. */
bool json_is_integer(const struct json_document *document, const cJSON *item)
{
    const struct json_place *place = json_place_of(document, item);
    char number[JSON_NUMBER_BYTES_MAX + 1] = "";
    if (!cJSON_IsNumber(item))
        return false;
    memcpy(number, document->text + place->value, place->length);
    const char *exponent = number + strcspn(number, "eE"), *point = number + strcspn(number, ".eE");
    const char *last = exponent; /* behind the last digit that is not 0 */
    while (last > number && strchr("0.", last[-1]) != NULL)
        last--;
    const bool zero = last == number || last[-1] == '-';
    const long places = last > point ? last - point - 1 : last - point;
    return zero || strtol(exponent + (*exponent != '\0'), NULL, 10) >= places;
}

void json_document_show(char out[JSON_SHOWN_BYTES], const struct json_document *document, const cJSON *item)
{
    const struct json_place *place = json_place_of(document, item);
    const bool quoted = cJSON_IsString(item);
    char text[JSON_SHOWN_BYTES - 2];
    text_show(text, sizeof text, document->text + place->value + quoted, place->length - 2u * quoted,
              SHOWN_CHARACTERS);
    if (cJSON_IsObject(item))
        snprintf(out, JSON_SHOWN_BYTES, "an object");
    else if (cJSON_IsArray(item) && item->child == NULL)
        snprintf(out, JSON_SHOWN_BYTES, "an empty array");
    else if (cJSON_IsArray(item))
        snprintf(out, JSON_SHOWN_BYTES, "an array of %d", cJSON_GetArraySize(item));
    else
        snprintf(out, JSON_SHOWN_BYTES, quoted ? "\"%s\"" : "%s", text);
}
