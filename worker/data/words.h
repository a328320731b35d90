/* Distinct words, numbered in the order in which they came: the table behind a vocabulary and behind the
 * reading of a text.
 *
 * A word is its bytes, whatever they are. The words' bytes lie one after the other, each with a terminating
 * zero; numbers are found by an open hash table. One thread at a time while words are added; any number of
 * them afterwards. */
#ifndef WORKER_DATA_WORDS_H
#define WORKER_DATA_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORDS_NONE = UINT32_MAX };

struct words {
    char *text;
    size_t text_bytes, text_room;
    size_t *begins; /* of each word, in text */
    uint32_t count, room;
    uint32_t *slots; /* numbers, or WORDS_NONE; a power of two of them, at least twice the words */
    uint32_t slot_count;
};

/* A zeroed struct is an empty table; `words` is zeroed again. */
void words_fini(struct words *words);

/* The word's number, which is its old one or the next. false: no memory, or 2^30 words are there; the table
 * is as it was. */
bool words_add(struct words *words, const char *word, size_t bytes, uint32_t *number);

/* WORDS_NONE: it is not there. */
uint32_t words_find(const struct words *words, const char *word, size_t bytes);

/* The word of a number below the count, terminated; valid until the next words_add. */
const char *words_at(const struct words *words, uint32_t number);
size_t words_bytes(const struct words *words, uint32_t number);

#endif
