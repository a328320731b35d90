/* The rule of words: how a line of text becomes tokens, and tokens a line again. Pure.
 *
 * A line ends with a newline. White space divides the line into runs. Punctuation at the two ends of a run
 * comes off, one character at a time, and each such character is a token of its own. The rest of the run is
 * one word, whatever it contains: apostrophes, hyphens, full stops. Examples: "LORD," is "LORD" and ",";
 * "'Tis" is "'" and "Tis"; "fool's", "forty-two" and "3.14" are one word each; "--" is "-" twice. Letter case
 * is kept.
 *
 * Where a run begins with "<unk>" or "<eos>", also after punctuation came off its beginning, these are the
 * tokens of that name. A byte order mark at the beginning of the file is left out. Control characters are
 * refused: text has none, and a terminal that shows the words would obey them. */
#ifndef WORKER_DATA_TOKENIZE_H
#define WORKER_DATA_TOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum word_character {
    WORD_LETTER, /* every other character */
    WORD_SPACE,
    WORD_PUNCTUATION,
    WORD_CONTROL,
};

/* The kind of code point `code`. White space: the 25 characters that have the property White_Space (The
 * Unicode Standard, PropList.txt). Punctuation: the 32 of ASCII, those of U+00A1..00BF that are no letters,
 * numbers or signs of their own, U+2010..2027 and 2030..205E, and the ideographic ones U+3001..3003 and
 * 3008..3011. Control: U+0000..001F, 007F and 0080..009F, white space excepted. */
enum word_character tokenize_character(uint32_t code);

/* The size in bytes of the first token of `run`, which is a run of well-formed characters without white
 * space, or the rest of one behind its first tokens. At least one character; `bytes` > 0. */
size_t tokenize_next(const char *run, size_t bytes);

/* Whether a space stands between two tokens, when they are written as a line for people; `before` is NULL at
 * the beginning of the line. No space stands before a closing mark (full stop, comma, colon, closing bracket
 * or quotation mark) nor behind an opening one. Marks that do both, such as the straight double quote and the
 * hyphen, have spaces around them; a straight single quote closes, as in "the fathers' house". */
bool spacing_between(const char *before, const char *token);

#endif
