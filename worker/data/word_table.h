/* A table of distinct words, numbered in the order in which they came. Vocabularies and the reader of a text
 * use it.
 *
 * A word is any sequence of bytes. The words lie one after the other, each with a terminating zero; an open
 * hash table finds their numbers. One thread at a time while words are added, any number of threads
 * afterwards. */
#ifndef WORKER_DATA_WORD_TABLE_H
#define WORKER_DATA_WORD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORD_TABLE_NONE = UINT32_MAX };

struct word_table {
    char *text;
    size_t text_bytes, text_room;
    size_t *begins; /* where each word begins in `text` */
    uint32_t count, room;
    uint32_t
        *slots; /* word numbers or WORD_TABLE_NONE; slot_count is a power of two, at least twice the words */
    uint32_t slot_count;
};

/* A zeroed struct is an empty table, and `words` is one again afterwards. */
void word_table_fini(struct word_table *words);

/* Finds the word or adds it, and sets its number. false: no memory, or the table has 2^30 words; the table is
 * unchanged. */
bool word_table_add(struct word_table *words, const char *word, size_t bytes, uint32_t *number);

/* The number of a word; WORD_TABLE_NONE: the table does not have it. */
uint32_t word_table_find(const struct word_table *words, const char *word, size_t bytes);

/* The word with a number below the count, zero-terminated; valid until the next word_table_add. */
const char *word_table_at(const struct word_table *words, uint32_t number);
size_t word_table_bytes(const struct word_table *words, uint32_t number);

#endif
