/* Which characters are what in a text's words; corpus.c's opening comment gives the rule. Pure. */
#ifndef WORKER_DATA_WORD_RULE_H
#define WORKER_DATA_WORD_RULE_H

#include <stdint.h>

enum word_character {
    WORD_LETTER, /* all that is none of the others */
    WORD_SPACE,
    WORD_PUNCTUATION,
    WORD_CONTROL, /* no text has them */
};

/* `code` is a code point. White space: the 25 characters that have the property White_Space (The Unicode
 * Standard, PropList.txt). Punctuation: the 32 of ASCII, those of U+00A1..00BF that are no letters, numbers
 * or signs of their own, U+2010..2027 and 2030..205E, and the ideographic ones U+3001..3003 and 3008..3011.
 * Control: U+0000..001F, 007F and 0080..009F but white space. */
enum word_character word_character_kind(uint32_t code);

#endif
