/* The tables of the rule of words; see the header. Pure functions. */
#include "worker/data/word_rule.h"

#include <stdbool.h>
#include <stddef.h>

static bool is_space(uint32_t code)
{
    return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

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

enum word_character word_character_kind(uint32_t code)
{
    if (is_space(code))
        return WORD_SPACE;
    if (code < 0x20 || (code >= 0x7F && code <= 0x9F))
        return WORD_CONTROL;
    return is_punctuation(code) ? WORD_PUNCTUATION : WORD_LETTER;
}
