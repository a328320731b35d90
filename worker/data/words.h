/* A table of distinct words, numbered in the order in which they came. Vocabularies and the reader of a text
 * use it.
 *
 * A word is any sequence of bytes. The words lie one after the other, each with a terminating zero; an open
 * hash table finds their numbers. One thread at a time while words are added, any number of threads
 * afterwards. */
#ifndef WORKER_DATA_WORDS_H
#define WORKER_DATA_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORDS_NONE = UINT32_MAX };

struct words {
    char *text;
    size_t text_bytes, text_room;
    size_t *begins; /* where each word begins in `text` */
    uint32_t count, room;
    uint32_t *slots; /* word numbers or WORDS_NONE; slot_count is a power of two, at least twice the words */
    uint32_t slot_count;
};

/* A zeroed struct is an empty table, and `words` is one again afterwards. */
void words_fini(struct words *words);

/* Finds the word or adds it, and sets its number. false: no memory, or the table has 2^30 words; the table is
 * unchanged. */
bool words_add(struct words *words, const char *word, size_t bytes, uint32_t *number);

/* The number of a word; WORDS_NONE: the table does not have it. */
uint32_t words_find(const struct words *words, const char *word, size_t bytes);

/* The word with a number below the count, zero-terminated; valid until the next words_add. */
const char *words_at(const struct words *words, uint32_t number);
size_t words_bytes(const struct words *words, uint32_t number);

#endif
