/* The table of distinct words; see the header.
 *
 * Numbers depend on the order of arrival alone, never on the hash, so they are the same on every machine. The
 * hash is FNV-1a, 64 bits (Fowler, Noll and Vo; RFC 9923). */
#include "worker/data/word_table.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_MIN = 64, WORDS_MAX = 1 << 30 };

void word_table_fini(struct word_table *words)
{
    free(words->text);
    free(words->begins);
    free(words->slots);
    *words = (struct word_table){0};
}

static uint64_t word_hash(const char *word, size_t bytes)
{
    uint64_t value = 0xCBF29CE484222325;
    for (size_t i = 0; i < bytes; i++)
        value = (value ^ (unsigned char)word[i]) * 0x100000001B3;
    return value ^ value >> 32;
}

const char *word_table_at(const struct word_table *words, uint32_t number)
{
    return words->text + words->begins[number];
}

size_t word_table_bytes(const struct word_table *words, uint32_t number)
{
    const size_t end = number + 1 < words->count ? words->begins[number + 1] : words->text_bytes;
    return end - 1 - words->begins[number];
}

/* The slot of a word, or the free slot where its number would go. At least one slot is free. */
static uint32_t *word_table_slot(const struct word_table *words, const char *word, size_t bytes)
{
    uint32_t at = (uint32_t)word_hash(word, bytes) & (words->slot_count - 1);
    for (;; at = (at + 1) & (words->slot_count - 1)) {
        const uint32_t number = words->slots[at];
        if (number == WORD_TABLE_NONE || (word_table_bytes(words, number) == bytes &&
                                          memcmp(word_table_at(words, number), word, bytes) == 0))
            return &words->slots[at];
    }
}

uint32_t word_table_find(const struct word_table *words, const char *word, size_t bytes)
{
    return words->slot_count == 0 ? WORD_TABLE_NONE : *word_table_slot(words, word, bytes);
}

/* Makes room for one more slot. */
static bool word_table_make_slots(struct word_table *words)
{
    if (words->count < words->slot_count / 2)
        return true;
    const uint32_t slot_count = words->slot_count == 0 ? SLOTS_MIN : 2 * words->slot_count;
    uint32_t *slots = calloc(slot_count, sizeof *slots);
    if (slots == NULL)
        return false;
    memset(slots, 0xFF, slot_count * sizeof *slots);
    free(words->slots);
    words->slots = slots;
    words->slot_count = slot_count;
    for (uint32_t i = 0; i < words->count; i++)
        *word_table_slot(words, word_table_at(words, i), word_table_bytes(words, i)) = i;
    return true;
}

static bool word_table_make_room(struct word_table *words, size_t bytes)
{
    if (words->text_room - words->text_bytes < bytes) {
        const size_t room = 2 * words->text_room + bytes;
        char *text = realloc(words->text, room);
        if (text == NULL)
            return false;
        words->text = text;
        words->text_room = room;
    }
    if (words->count == words->room) {
        const uint32_t room = 2 * words->room + SLOTS_MIN;
        size_t *begins = reallocarray(words->begins, room, sizeof *begins);
        if (begins == NULL)
            return false;
        words->begins = begins;
        words->room = room;
    }
    return word_table_make_slots(words);
}

bool word_table_add(struct word_table *words, const char *word, size_t bytes, uint32_t *number)
{
    *number = word_table_find(words, word, bytes);
    if (*number != WORD_TABLE_NONE)
        return true;
    if (words->count == WORDS_MAX || !word_table_make_room(words, bytes + 1))
        return false;
    *word_table_slot(words, word, bytes) = words->count;
    words->begins[words->count] = words->text_bytes;
    memcpy(words->text + words->text_bytes, word, bytes);
    words->text[words->text_bytes + bytes] = '\0';
    words->text_bytes += bytes + 1;
    *number = words->count++;
    return true;
}
