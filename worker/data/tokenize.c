/* Cuts a line into tokens by the kinds of its characters, and says where spaces stand between tokens. Pure
 * functions. */
#include "worker/data/tokenize.h"

#include "kernels/base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static bool is_punctuation(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0x21, 0x2F},     {0x3A, 0x40},     {0x5B, 0x60},     {0x7B, 0x7E},     {0xA1, 0xA1},
        {0xA7, 0xA7},     {0xAB, 0xAB},     {0xB6, 0xB7},     {0xBB, 0xBB},     {0xBF, 0xBF},
        {0x2010, 0x2027}, {0x2030, 0x205E}, {0x3001, 0x3003}, {0x3008, 0x3011},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    return false;
}

enum word_character tokenize_character(uint32_t code)
{
    if ((code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
        (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
        code == 0x205F || code == 0x3000)
        return WORD_SPACE;
    if (code < 0x20 || (code >= 0x7F && code <= 0x9F))
        return WORD_CONTROL;
    return is_punctuation(code) ? WORD_PUNCTUATION : WORD_LETTER;
}

size_t tokenize_next(const char *run, size_t bytes)
{
    enum { NAME_BYTES = 5 };
    const size_t first = text_character(run, bytes);
    size_t word = 0; /* up to the last character that is no punctuation */
    if (bytes >= NAME_BYTES &&
        (memcmp(run, "<unk>", NAME_BYTES) == 0 || memcmp(run, "<eos>", NAME_BYTES) == 0))
        return NAME_BYTES;
    if (is_punctuation(text_code_point(run, first)))
        return first;
    for (size_t at = 0, size; at < bytes; at += size) {
        size = text_character(run + at, bytes - at);
        if (!is_punctuation(text_code_point(run + at, size)))
            word = at + size;
    }
    return word;
}

/* ---- back to a line ---- */

/* In ASCII; then the right single and double quotation marks, the ellipsis, the right-pointing double angle
 * quotation mark, the ideographic comma and full stop. */
static const char closing[] =
    ".,;:!?)]}%'\xE2\x80\x99\xE2\x80\x9D\xE2\x80\xA6\xC2\xBB\xE3\x80\x81\xE3\x80\x82";
/* In ASCII; then the left single and double quotation marks, the left-pointing double angle quotation mark,
 * and the inverted exclamation and question marks. */
static const char opening[] = "([{\xE2\x80\x98\xE2\x80\x9C\xC2\xAB\xC2\xA1\xC2\xBF";

bool spacing_between(const char *before, const char *token)
{
    /* A token that is found in the marks is one of them: punctuation comes in tokens of one character. */
    return before != NULL && strstr(opening, before) == NULL && strstr(closing, token) == NULL;
}
