/* The JSON grammar of a header, checked before cJSON reads the text; see the internal header. A single pass
 * without recursion, so that no file can exhaust the stack or make cJSON allocate without bound. */
#include "kernels/safetensors/safetensors_internal.h"

#include "kernels/base/text.h"

#include <ctype.h>
#include <string.h>

enum {
    DEPTH_MAX = 3,   /* the header, a tensor, its shape */
    DIGITS_MAX = 16, /* of 2^53 */
};
static const uint64_t integer_max = 1ULL << 53; /* beyond it a double skips integers */

/* Behind a backslash at `at`. cJSON reads a \u without four digits as a zero, and ends the string there. */
static bool good_unicode_escape(const char *text, size_t length, size_t at)
{
    if (length - at < 6)
        return false;
    for (size_t i = at + 2; i < at + 6; i++)
        if (!isxdigit((unsigned char)text[i]))
            return false;
    return memcmp(text + at + 2, "0000", 4) != 0;
}

/* From the quote at *at to behind the closing one. */
static const char *check_string(const char *text, size_t length, size_t *at)
{
    for (++*at; *at < length;) {
        size_t size = text_character(text + *at, length - *at);
        char c = text[*at];
        if (size == 0)
            return "bytes that are not UTF-8";
        if ((unsigned char)c < 0x20)
            return "a raw control character in a string";
        if (c == '\\' && *at + 1 < length && text[*at + 1] == 'u' && !good_unicode_escape(text, length, *at))
            return "an escape that is no character, or a zero";
        *at += c == '\\' ? 2 : size;
        if (c == '"')
            return NULL;
    }
    *at = length;
    return "a string without an end";
}

static const char *check_integer(const char *text, size_t length, size_t *at)
{
    size_t begin = *at;
    uint64_t value = 0;
    for (; *at < length && isdigit((unsigned char)text[*at]); ++*at) {
        if (*at - begin == DIGITS_MAX)
            return "an integer beyond 2^53";
        value = 10 * value + (uint64_t)(text[*at] - '0');
    }
    if (value > integer_max)
        return "an integer beyond 2^53";
    if (text[begin] == '0' && *at > begin + 1)
        return "an integer with leading zeros";
    if (*at < length && memchr(".eE+-", text[*at], 5) != NULL)
        return "a number that is not written as a plain integer";
    return NULL;
}

/* Over one character between the strings and numbers. */
static const char *check_mark(char c, unsigned *depth, size_t *values)
{
    switch (c) {
    case '{':
    case '[':
        ++*values;
        return ++*depth > DEPTH_MAX ? "more than three levels" : NULL;
    case '}':
    case ']':
        return (*depth)-- == 0 ? "a bracket that closes nothing" : NULL;
    case ',':
        ++*values;
        return NULL;
    case ':':
    case ' ':
    case '\t':
    case '\r':
    case '\n':
        return NULL;
    default:
        return "something that is no string, no integer from 0 to 2^53, no object and no array";
    }
}

const char *safetensors_check_text(const char *text, size_t length, size_t *at)
{
    unsigned depth = 0;
    size_t values = 1;
    *at = 0;
    if (length == 0 || text[0] != '{')
        return "something else than the '{' with which a header begins";
    while (*at < length) {
        const char *fault;
        if (text[*at] == '"')
            fault = check_string(text, length, at);
        else if (isdigit((unsigned char)text[*at]))
            fault = check_integer(text, length, at);
        else if ((fault = check_mark(text[*at], &depth, &values)) == NULL)
            ++*at;
        if (fault == NULL && values > SAFETENSORS_VALUES_MAX)
            fault = "too many values";
        if (fault != NULL)
            return fault;
    }
    return NULL;
}
