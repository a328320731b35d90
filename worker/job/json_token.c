/* The tokens of JSON text; see the header. Runs in whatever process reads a job, on the caller's thread. */
#include "worker/job/json_token.h"

#include "kernels/base/text.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHOWN_CHARACTERS = 24 };

struct json_span json_cursor_here(const struct json_cursor *cursor)
{
    return (struct json_span){.offset = (uint32_t)cursor->at, .line = cursor->line, .column = cursor->column};
}

int json_cursor_peek(const struct json_cursor *cursor, size_t ahead)
{
    return cursor->length - cursor->at > ahead ? (unsigned char)cursor->text[cursor->at + ahead] : -1;
}

void json_cursor_step(struct json_cursor *cursor)
{
    assert(cursor->at < cursor->length);
    if (cursor->text[cursor->at] == '\n') {
        cursor->line++;
        cursor->column = 0;
    }
    size_t size = text_character(cursor->text + cursor->at, cursor->length - cursor->at);
    cursor->at += size == 0 ? 1 : size;
    cursor->column++;
}

static void report_flaw(struct json_cursor *cursor, const char *text)
{
    cursor->report(cursor->context, cursor->line, cursor->column, text);
}

/* ---- strings ---- */

/* Moves over `bytes` bytes of one line that are `bytes` columns wide. */
static void cursor_skip(struct json_cursor *cursor, size_t bytes)
{
    cursor->at += bytes;
    cursor->column += (uint32_t)bytes;
}

/* The number of the \uXXXX `ahead` bytes on, or -1 if none stands there. */
static long unicode_escape(const struct json_cursor *cursor, size_t ahead)
{
    if (json_cursor_peek(cursor, ahead) != '\\' || json_cursor_peek(cursor, ahead + 1) != 'u')
        return -1;
    long code = 0;
    for (size_t i = 2; i < 6; i++) {
        int c = json_cursor_peek(cursor, ahead + i);
        if (c < 0 || !isxdigit(c))
            return -1;
        code = code * 16 + (isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
    }
    return code;
}

static bool surrogate(long code, long first)
{
    return code >= first && code < first + 0x400;
}

/* Appends the character `code` in UTF-8. */
static void string_add_code(char **out, long code)
{
    static const struct {
        long max;
        int lead, bytes;
    } forms[] = {{0x7F, 0, 1}, {0x7FF, 0xC0, 2}, {0xFFFF, 0xE0, 3}, {0x10FFFF, 0xF0, 4}};
    size_t form = 0;
    while (code > forms[form].max)
        form++;
    int left = forms[form].bytes - 1; /* bytes behind the first, six bits in each */
    *(*out)++ = (char)(forms[form].lead | (int)(code >> 6 * left));
    for (; left > 0; left--)
        *(*out)++ = (char)(0x80 | ((code >> 6 * (left - 1)) & 0x3F));
}

/* Reports a flaw of `bytes` bytes at the cursor, and moves over it. */
static bool string_flaw(struct json_cursor *cursor, char **out, size_t bytes, const char *text)
{
    report_flaw(cursor, text);
    cursor_skip(cursor, bytes);
    *(*out)++ = '?';
    return false;
}

/* Reads one escape. Returns whether it was good. */
static bool read_escape(struct json_cursor *cursor, char **out)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    int c = json_cursor_peek(cursor, 1);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    if (letter != NULL) {
        *(*out)++ = meanings[letter - letters];
        cursor_skip(cursor, 2);
        return true;
    }
    long code = unicode_escape(cursor, 0), low = unicode_escape(cursor, 6);
    if (code < 0)
        return string_flaw(cursor, out, 1,
                           "a bad escape in a string: behind \\ stands one of \" \\ / b f n r t uXXXX");
    if (code == 0)
        return string_flaw(cursor, out, 6, "\\u0000 in a string: no text here may hold a zero");
    if (surrogate(code, 0xD800) && surrogate(low, 0xDC00)) {
        string_add_code(out, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
        cursor_skip(cursor, 12);
        return true;
    }
    if (code >= 0xD800 && code <= 0xDFFF) {
        char text[96];
        snprintf(text, sizeof text, "\\u%04lx in a string is half of a surrogate pair, and stands alone",
                 (unsigned long)code);
        return string_flaw(cursor, out, 6, text);
    }
    string_add_code(out, code);
    cursor_skip(cursor, 6);
    return true;
}

/* Whether the byte at `at` belongs to no character. */
static bool stray_byte(const struct json_cursor *cursor, size_t at)
{
    return at < cursor->length && text_character(cursor->text + at, cursor->length - at) == 0;
}

/* Moves over a control character, or over all bytes up to the next character, which are one flaw. */
static void skip_stray(struct json_cursor *cursor, char **out, int c)
{
    char text[96];
    size_t bytes = 1;
    if (c < 0x20) {
        snprintf(text, sizeof text, "a raw control character in a string; write it as \\u%04x", (unsigned)c);
    } else {
        snprintf(text, sizeof text, "the byte \\x%02x in a string is not UTF-8", (unsigned)c);
        while (stray_byte(cursor, cursor->at + bytes))
            bytes++;
    }
    string_flaw(cursor, out, bytes, text);
}

bool json_token_string(struct json_cursor *cursor, char **out, bool *flawed)
{
    struct json_span begin = json_cursor_here(cursor);
    *flawed = false;
    json_cursor_step(cursor);
    for (;;) {
        int c = json_cursor_peek(cursor, 0);
        if (c < 0 || c == '\n') {
            cursor->report(cursor->context, begin.line, begin.column,
                           "this string has no closing quote on its line");
            return false;
        }
        if (c == '\\') {
            *flawed |= !read_escape(cursor, out);
        } else if (c < 0x20 || stray_byte(cursor, cursor->at)) {
            skip_stray(cursor, out, c);
            *flawed = true;
        } else {
            size_t begins = cursor->at;
            json_cursor_step(cursor);
            if (c == '"')
                break;
            memcpy(*out, cursor->text + begins, cursor->at - begins);
            *out += cursor->at - begins;
        }
    }
    *(*out)++ = '\0';
    return true;
}

/* ---- numbers and words ---- */

static bool word_character(int c)
{
    return c >= 0 && c < 0x80 && (isalnum(c) || c == '_' || c == '.' || c == '+' || c == '-');
}

bool json_token_begins_word(int c)
{
    return word_character(c);
}

static size_t digits(const char *text, size_t length)
{
    size_t count = 0;
    while (count < length && isdigit((unsigned char)text[count]))
        count++;
    return count;
}

/* Where the digits of a number lie in its text. */
struct number {
    size_t whole, whole_digits, fraction, fraction_digits;
    long exponent; /* of ten, cut to ±100,000, which is far beyond what digits could make up for */
};

static bool parse_exponent(struct number *number, const char *text, size_t length, size_t *at)
{
    bool negative = *at < length && text[*at] == '-';
    if (*at < length && (text[*at] == '+' || text[*at] == '-'))
        ++*at;
    size_t count = digits(text + *at, length - *at);
    for (size_t i = 0; i < count && number->exponent < 100000; i++)
        number->exponent = 10 * number->exponent + (text[*at + i] - '0');
    if (negative)
        number->exponent = -number->exponent;
    *at += count;
    return count > 0;
}

/* Whether `text` is a number of the grammar, section 6 of RFC 8259; finds its digits. */
static bool parse_number(struct number *number, const char *text, size_t length)
{
    *number = (struct number){0};
    size_t at = length > 0 && text[0] == '-' ? 1 : 0;
    number->whole = at;
    number->whole_digits = digits(text + at, length - at);
    if (number->whole_digits == 0 || (number->whole_digits > 1 && text[at] == '0'))
        return false;
    at += number->whole_digits;
    if (at < length && text[at] == '.') {
        number->fraction = ++at;
        number->fraction_digits = digits(text + at, length - at);
        if (number->fraction_digits == 0)
            return false;
        at += number->fraction_digits;
    }
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (!parse_exponent(number, text, length, &at))
            return false;
    }
    return at == length;
}

/* Whether the number written has no fraction. Asked of the digits, not of the double: 3.00000000000000000001
 * rounds to 3 and still is no integer. */
static bool number_integral(const struct number *number, const char *text)
{
    long places = (long)number->fraction_digits;
    while (places > 0 && text[number->fraction + (size_t)places - 1] == '0')
        places--;
    if (places > 0)
        return number->exponent >= places;
    size_t zeros = 0;
    while (zeros < number->whole_digits && text[number->whole + number->whole_digits - 1 - zeros] == '0')
        zeros++;
    return zeros == number->whole_digits || number->exponent >= -(long)zeros;
}

/* Explains why `word` is no JSON. */
static void explain_word(char *text, size_t size, const char *word, size_t length)
{
    static const struct {
        const char *wrong, *right;
    } known[] = {{"true", "true"}, {"false", "false"}, {"null", "null"}, {"none", "null"}, {"nil", "null"}};
    char shown[SHOWN_CHARACTERS + 8]; /* a word is plain ASCII */
    text_show(shown, sizeof shown, word, length, SHOWN_CHARACTERS);
    struct number number;
    if (word[0] == '+' && parse_number(&number, word + 1, length - 1))
        snprintf(text, size, "%s is not a JSON number: a number has no plus sign", shown);
    else if (word[0] == '0' && digits(word, length) == length)
        snprintf(text, size, "%s is not a JSON number: a number has no leading zeros", shown);
    else if (isdigit((unsigned char)word[0]) || strchr("+-.", word[0]) != NULL)
        snprintf(text, size, "%s is not a JSON number", shown);
    else
        snprintf(text, size, "%s is not a JSON value; a string stands in double quotes", shown);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].wrong) == length && strncasecmp(known[i].wrong, word, length) == 0)
            snprintf(text, size, "%s is not a JSON value; did you mean %s?", shown, known[i].right);
}

static bool word_is(const char *word, size_t length, const char *name)
{
    return strlen(name) == length && memcmp(word, name, length) == 0;
}

struct json_word json_token_word(struct json_cursor *cursor)
{
    const char *word = cursor->text + cursor->at;
    size_t length = 0;
    while (word_character(json_cursor_peek(cursor, length)))
        length++;
    char text[160] = "", copy[JSON_NUMBER_BYTES_MAX + 1] = "";
    struct json_word result = {.type = word_is(word, length, "null")    ? JSON_NULL
                                       : word_is(word, length, "true")  ? JSON_TRUE
                                       : word_is(word, length, "false") ? JSON_FALSE
                                                                        : JSON_NUMBER};
    struct number number;
    if (result.type == JSON_NUMBER && !parse_number(&number, word, length)) {
        explain_word(text, sizeof text, word, length);
    } else if (result.type == JSON_NUMBER && length > JSON_NUMBER_BYTES_MAX) {
        snprintf(text, sizeof text, "a number of more than %d characters", JSON_NUMBER_BYTES_MAX);
    } else if (result.type == JSON_NUMBER) {
        memcpy(copy, word, length);
        result.number = strtod(copy, NULL);
        result.integral = number_integral(&number, word);
        if (!isfinite(result.number))
            snprintf(text, sizeof text, "%s is too large for a 64-bit floating point number", copy);
    }
    result.flawed = text[0] != '\0';
    if (result.flawed)
        report_flaw(cursor, text);
    cursor_skip(cursor, length);
    return result;
}
