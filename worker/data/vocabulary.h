/* A vocabulary: the words that a language model knows, by number.
 *
 * Number 0 is "<unk>", which stands for every word it does not know; 1 is "<eos>", the end of a line; the
 * others follow by falling count, words of equal count in the order of their bytes. As text it is one word a
 * line, in the order of the numbers: what a checkpoint keeps. Pure; immutable once made; any thread. */
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

struct words;

/* Of the distinct words `words` (worker/data/words.h), "<unk>" and "<eos>" being the first two, word i of
 * which was seen counts[i] times: those seen at least `minimum_count` times. STATUS_INVALID: more than
 * VOCABULARY_WORDS_MAX of them. */
enum status vocabulary_build(struct vocabulary **out, const struct words *words, const uint64_t *counts,
                             uint64_t minimum_count, struct error *error);

/* Reads the text form back; every line ends with a newline. STATUS_CORRUPT names the line: not UTF-8, empty,
 * too long, white space or a control character in it, twice, one too many, cut off, or not beginning with
 * "<unk>" and "<eos>". */
enum status vocabulary_parse(struct vocabulary **out, const char *text, size_t bytes, struct error *error);
void vocabulary_free(struct vocabulary *vocabulary);

/* The text form: malloc'ed, not terminated; NULL: no memory. */
char *vocabulary_format(const struct vocabulary *vocabulary, size_t *bytes);

uint32_t vocabulary_size(const struct vocabulary *vocabulary);

/* The word of a number below the size; terminated, valid as long as the vocabulary. */
const char *vocabulary_word(const struct vocabulary *vocabulary, uint32_t number);

/* The number of a word of `bytes` bytes; VOCABULARY_UNKNOWN where it has none. */
uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *word, size_t bytes);

#endif
