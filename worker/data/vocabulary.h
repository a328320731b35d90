/* A vocabulary: the words that a language model knows, and their numbers.
 *
 * Number 0 is "<unk>", for every word outside the vocabulary; 1 is "<eos>", the end of a line; the others
 * follow by falling count, words of equal count in byte order. The text form, which a checkpoint keeps, is
 * one word a line in the order of the numbers.
 *
 * The reader of a text (corpus.c) collects its distinct words in one too, numbered in the order in which they
 * came. Pure; one thread at a time while words are added, any number of threads afterwards. */
#ifndef WORKER_DATA_VOCABULARY_H
#define WORKER_DATA_VOCABULARY_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vocabulary;

enum {
    VOCABULARY_UNKNOWN = 0,
    VOCABULARY_END_OF_LINE = 1,
    VOCABULARY_WORDS_MAX = 1 << 20,
    VOCABULARY_WORD_BYTES_MAX = 255,
};

/* Makes one of the two names alone. STATUS_NO_MEMORY. */
enum status vocabulary_new(struct vocabulary **out, struct error *error);

/* Finds the word, any sequence of bytes, or adds it, and sets its number. false: no memory, or there are 2^30
 * words. */
bool vocabulary_add(struct vocabulary *vocabulary, const char *word, size_t bytes, uint32_t *number);

/* Makes a vocabulary of those of `words` that were counted at least `minimum_count` times; counts[i] is the
 * count of word i. STATUS_INVALID: more than VOCABULARY_WORDS_MAX words. */
enum status vocabulary_build(struct vocabulary **out, const struct vocabulary *words, const uint64_t *counts,
                             uint64_t minimum_count, struct error *error);

/* Reads the text form; every line ends with a newline. STATUS_CORRUPT: the text does not begin with "<unk>"
 * and "<eos>", or a line is not UTF-8, empty, too long, cut off, repeated, one too many, or contains white
 * space or a control character. The message begins with "FILE: line N: "; `file` serves that alone. */
enum status vocabulary_parse(struct vocabulary **out, const char *file, const char *text, size_t bytes,
                             struct error *error);

void vocabulary_free(struct vocabulary *vocabulary);

/* The text form: malloc'ed, not terminated; NULL: no memory. */
char *vocabulary_format(const struct vocabulary *vocabulary, size_t *bytes);

uint32_t vocabulary_size(const struct vocabulary *vocabulary);

/* The word with a number below the size: zero-terminated, valid until the next vocabulary_add. */
const char *vocabulary_word(const struct vocabulary *vocabulary, uint32_t number);
size_t vocabulary_word_bytes(const struct vocabulary *vocabulary, uint32_t number);

/* The number of a word of `bytes` bytes; VOCABULARY_UNKNOWN where the vocabulary does not have the word. */
uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *word, size_t bytes);

#endif
