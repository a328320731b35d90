/* A vocabulary: the words that a language model knows, and their numbers.
 *
 * Number 0 is "<unk>", for every word outside the vocabulary; 1 is "<eos>", the end of a line; the others
 * follow by falling count, words of equal count in byte order. The text form, which a checkpoint keeps, is
 * one word a line in the order of the numbers. Pure; immutable once made; any thread. */
#ifndef WORKER_DATA_VOCABULARY_H
#define WORKER_DATA_VOCABULARY_H

#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct vocabulary;

enum {
    VOCABULARY_UNKNOWN = 0,
    VOCABULARY_END_OF_LINE = 1,
    VOCABULARY_WORDS_MAX = 1 << 20,
    VOCABULARY_WORD_BYTES_MAX = 255,
};

struct word_table;

/* Makes a vocabulary of the words in `words` (word_table.h; the first two are "<unk>" and "<eos>") that were
 * counted at least `minimum_count` times; counts[i] is the count of word i. STATUS_INVALID: more than
 * VOCABULARY_WORDS_MAX words. */
enum status vocabulary_build(struct vocabulary **out, const struct word_table *words, const uint64_t *counts,
                             uint64_t minimum_count, struct error *error);

/* Reads the text form; every line ends with a newline. STATUS_CORRUPT: the text does not begin with "<unk>"
 * and
 * "<eos>", or a line is not UTF-8, empty, too long, cut off, repeated, one too many, or contains white space
 * or a control character. The message begins with "FILE: line N: "; `file` serves that alone. */
enum status vocabulary_parse(struct vocabulary **out, const char *file, const char *text, size_t bytes,
                             struct error *error);

/* Makes an equal vocabulary with memory of its own. STATUS_NO_MEMORY. */
enum status vocabulary_copy(struct vocabulary **out, const struct vocabulary *vocabulary,
                            struct error *error);
void vocabulary_free(struct vocabulary *vocabulary);

/* The text form: malloc'ed, not terminated; NULL: no memory. */
char *vocabulary_format(const struct vocabulary *vocabulary, size_t *bytes);

uint32_t vocabulary_size(const struct vocabulary *vocabulary);

/* The word with a number below the size: zero-terminated, valid as long as the vocabulary. */
const char *vocabulary_word(const struct vocabulary *vocabulary, uint32_t number);

/* The number of a word of `bytes` bytes; VOCABULARY_UNKNOWN where the vocabulary does not have the word. */
uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *word, size_t bytes);

#endif
