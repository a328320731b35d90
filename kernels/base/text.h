/* Text from strangers: UTF-8 checking, short safe quotes, escapes, how alike two words are, and whole
 * numbers.
 *
 * A job file or a file of weights may come from anywhere, and what is wrong with it is printed on a terminal
 * or into a journal. Everything of it that reaches a message goes through text_show first. Pure functions;
 * nothing here allocates or blocks; any thread. */
#ifndef KERNELS_BASE_TEXT_H
#define KERNELS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number of bytes (1..4) of the well-formed UTF-8 character at `bytes`, of which `length` may be read;
 * 0 when there is none: an overlong form, a surrogate, a number above U+10FFFF, a torn sequence, no byte at
 * all. (The Unicode Standard, table 3-7.) */
size_t text_character(const char *bytes, size_t length);

/* The code point of the well-formed character of `size` bytes (text_character's) at `bytes`. */
uint32_t text_code_point(const char *bytes, size_t size);

/* Writes at most `characters_max` characters of `bytes` (length bytes) to `out` (size bytes, at least 8),
 * zero-terminated, with "..." in place of what did not fit in either. The result is well-formed UTF-8 in
 * which nothing moves a cursor, hides or turns text around: control characters and invisible format
 * characters become \u001b or \U000e0041, and bytes that are not UTF-8 become \xff. Returns strlen(out). */
size_t text_show(char *out, size_t size, const char *bytes, size_t length, size_t characters_max);

enum { TEXT_ESCAPED_BYTES = 8 };

/* Writes the byte `c` as it stands between the quotes of a JSON string: a quote and a backslash behind a
 * backslash, a line feed as \n, other control characters as \u001b. Returns `piece`. */
const char *text_escape(char piece[TEXT_ESCAPED_BYTES], char c);

/* How many letters must be added, taken away, changed, or swapped with their neighbour to turn `a` into
 * `b`, where upper and lower case count as the same letter (Damerau's distance, each letter moved once).
 * A word of more than 40 bytes is as far as can be from everything: SIZE_MAX. */
size_t text_distance(const char *a, const char *b);

/* Reads a whole number from 0 to `max`, written as decimal digits alone. False: `text` is NULL or something
 * else; *value is then unchanged. */
bool text_integer(const char *text, uint64_t max, uint64_t *value);

#endif
