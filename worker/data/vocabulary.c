/* Builds, writes and reads vocabularies.
 *
 * The words lie one after the other, each with a terminating zero; an open hash table finds their numbers.
 * Numbers depend on the order of arrival alone, never on the hash, so they are the same on every machine. */
#include "worker/data/vocabulary.h"

#include "kernels/base/fnv.h"
#include "kernels/base/text.h"
#include "worker/data/tokenize.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_MIN = 64, WORDS_MAX = 1 << 30, NONE = -1 };

struct vocabulary {
    char *text;
    size_t text_bytes, text_room;
    size_t *begins; /* where each word begins in `text` */
    uint32_t count, room;
    int32_t *slots;      /* (slot_count) word numbers or NONE */
    uint32_t slot_count; /* a power of two, at least twice the words */
};

static const char *const first_words[] = {
    [VOCABULARY_UNKNOWN] = "<unk>",
    [VOCABULARY_END_OF_LINE] = "<eos>",
};

enum {
    FIRST_WORDS = sizeof first_words / sizeof *first_words,
    SHOWN_BYTES = 128,
    SHOWN_CHARACTERS = 30,
    SHOWN_FILE_BYTES = 200
};

static enum status vocabulary_no_memory(struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "no memory for a vocabulary");
}

void vocabulary_free(struct vocabulary *vocabulary)
{
    if (vocabulary == NULL)
        return;
    free(vocabulary->text);
    free(vocabulary->begins);
    free(vocabulary->slots);
    free(vocabulary);
}

uint32_t vocabulary_size(const struct vocabulary *vocabulary)
{
    return vocabulary->count;
}

const char *vocabulary_word(const struct vocabulary *vocabulary, uint32_t number)
{
    return vocabulary->text + vocabulary->begins[number];
}

size_t vocabulary_word_bytes(const struct vocabulary *vocabulary, uint32_t number)
{
    const size_t end =
        number + 1 < vocabulary->count ? vocabulary->begins[number + 1] : vocabulary->text_bytes;
    return end - 1 - vocabulary->begins[number];
}

/* ---- the table ---- */

/* The slot of a word, or the free slot where its number would go. At least one slot is free. */
static int32_t *vocabulary_slot(const struct vocabulary *vocabulary, const char *word, size_t bytes)
{
    const uint64_t hash = fnv1a(FNV1A_BEGIN, word, bytes);
    uint32_t at = (uint32_t)(hash ^ hash >> 32) & (vocabulary->slot_count - 1);
    for (;; at = (at + 1) & (vocabulary->slot_count - 1)) {
        const int32_t number = vocabulary->slots[at];
        if (number == NONE || (vocabulary_word_bytes(vocabulary, (uint32_t)number) == bytes &&
                               memcmp(vocabulary_word(vocabulary, (uint32_t)number), word, bytes) == 0))
            return &vocabulary->slots[at];
    }
}

uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *word, size_t bytes)
{
    const int32_t number = *vocabulary_slot(vocabulary, word, bytes);
    return number == NONE ? VOCABULARY_UNKNOWN : (uint32_t)number;
}

/* Makes room for one more slot. */
static bool vocabulary_make_slots(struct vocabulary *vocabulary)
{
    if (vocabulary->count < vocabulary->slot_count / 2)
        return true;
    const uint32_t slot_count = vocabulary->slot_count == 0 ? SLOTS_MIN : 2 * vocabulary->slot_count;
    int32_t *slots = calloc(slot_count, sizeof *slots);
    if (slots == NULL)
        return false;
    memset(slots, 0xFF, slot_count * sizeof *slots);
    free(vocabulary->slots);
    vocabulary->slots = slots;
    vocabulary->slot_count = slot_count;
    for (uint32_t i = 0; i < vocabulary->count; i++)
        *vocabulary_slot(vocabulary, vocabulary_word(vocabulary, i), vocabulary_word_bytes(vocabulary, i)) =
            (int32_t)i;
    return true;
}

static bool vocabulary_make_room(struct vocabulary *vocabulary, size_t bytes)
{
    if (vocabulary->text_room - vocabulary->text_bytes < bytes) {
        const size_t room = 2 * vocabulary->text_room + bytes;
        char *text = realloc(vocabulary->text, room);
        if (text == NULL)
            return false;
        vocabulary->text = text;
        vocabulary->text_room = room;
    }
    if (vocabulary->count == vocabulary->room) {
        const uint32_t room = 2 * vocabulary->room + SLOTS_MIN;
        size_t *begins = reallocarray(vocabulary->begins, room, sizeof *begins);
        if (begins == NULL)
            return false;
        vocabulary->begins = begins;
        vocabulary->room = room;
    }
    return vocabulary_make_slots(vocabulary);
}

bool vocabulary_add(struct vocabulary *vocabulary, const char *word, size_t bytes, uint32_t *number)
{
    if (vocabulary->count == WORDS_MAX || !vocabulary_make_room(vocabulary, bytes + 1))
        return false;
    int32_t *slot = vocabulary_slot(vocabulary, word, bytes);
    if (*slot == NONE) {
        *slot = (int32_t)vocabulary->count;
        vocabulary->begins[vocabulary->count++] = vocabulary->text_bytes;
        memcpy(vocabulary->text + vocabulary->text_bytes, word, bytes);
        vocabulary->text[vocabulary->text_bytes + bytes] = '\0';
        vocabulary->text_bytes += bytes + 1;
    }
    *number = (uint32_t)*slot;
    return true;
}

enum status vocabulary_new(struct vocabulary **out, struct error *error)
{
    struct vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    bool whole = vocabulary != NULL;
    uint32_t number;
    for (uint32_t i = 0; i < FIRST_WORDS && whole; i++)
        whole = vocabulary_add(vocabulary, first_words[i], strlen(first_words[i]), &number);
    *out = whole ? vocabulary : NULL;
    if (whole)
        return STATUS_OK;
    vocabulary_free(vocabulary);
    return vocabulary_no_memory(error);
}

/* ---- of a text ---- */

/* A word to be sorted. */
struct counted {
    uint64_t count;
    const char *word;
    size_t bytes;
};

static int by_count(const void *a, const void *b)
{
    const struct counted *one = a, *other = b;
    if (one->count != other->count)
        return one->count > other->count ? -1 : 1;
    /* Words hold no zero byte, so that strcmp is the order of their bytes. */
    return strcmp(one->word, other->word);
}

enum status vocabulary_build(struct vocabulary **out, const struct vocabulary *words, const uint64_t *counts,
                             uint64_t minimum_count, struct error *error)
{
    size_t count = 0;
    uint32_t number;
    enum status status = vocabulary_new(out, error);
    struct counted *list = calloc(words->count, sizeof *list);
    if (status == STATUS_OK && list == NULL)
        status = vocabulary_no_memory(error);
    for (uint32_t i = FIRST_WORDS; status == STATUS_OK && i < words->count; i++)
        if (counts[i] >= minimum_count)
            list[count++] =
                (struct counted){counts[i], vocabulary_word(words, i), vocabulary_word_bytes(words, i)};
    if (count > VOCABULARY_WORDS_MAX - FIRST_WORDS)
        status = error_set(error, STATUS_INVALID,
                           "%zu words are seen %llu times or more, expected at most %d: raise the minimum",
                           count, (unsigned long long)minimum_count, VOCABULARY_WORDS_MAX - FIRST_WORDS);
    if (status == STATUS_OK)
        qsort(list, count, sizeof *list, by_count);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        if (!vocabulary_add(*out, list[i].word, list[i].bytes, &number))
            status = vocabulary_no_memory(error);
    free(list);
    if (status != STATUS_OK) {
        vocabulary_free(*out);
        *out = NULL;
    }
    return status;
}

/* ---- as text ---- */

char *vocabulary_format(const struct vocabulary *vocabulary, size_t *bytes)
{
    char *text = malloc(vocabulary->text_bytes);
    *bytes = vocabulary->text_bytes;
    if (text == NULL)
        return NULL;
    memcpy(text, vocabulary->text, vocabulary->text_bytes);
    for (uint32_t i = 0; i < vocabulary->count; i++)
        text[vocabulary->begins[i] + vocabulary_word_bytes(vocabulary, i)] = '\n';
    return text;
}

static enum status vocabulary_check_word(const char *word, size_t bytes, uint32_t line, struct error *error)
{
    if (bytes == 0)
        return error_set(error, STATUS_CORRUPT, "line %u: empty, expected a word", line);
    for (size_t at = 0; at < bytes;) {
        const size_t size = text_character(word + at, bytes - at);
        if (size == 0)
            return error_set(error, STATUS_CORRUPT, "line %u: not UTF-8 (byte 0x%02x at column %zu)", line,
                             (unsigned char)word[at], at + 1);
        const enum word_character kind = tokenize_character(text_code_point(word + at, size));
        if (kind == WORD_SPACE || kind == WORD_CONTROL)
            return error_set(error, STATUS_CORRUPT, "line %u: %s in a word (byte 0x%02x at column %zu)", line,
                             kind == WORD_SPACE ? "white space" : "a control character",
                             (unsigned char)word[at], at + 1);
        at += size;
    }
    if (bytes > VOCABULARY_WORD_BYTES_MAX)
        return error_set(error, STATUS_CORRUPT, "line %u: a word of %zu bytes, expected at most %d", line,
                         bytes, VOCABULARY_WORD_BYTES_MAX);
    return STATUS_OK;
}

/* The word of line `line`, from 1. */
static enum status vocabulary_parse_word(struct vocabulary *words, const char *word, size_t bytes,
                                         uint32_t line, struct error *error)
{
    char shown[SHOWN_BYTES];
    uint32_t number;
    enum status status = vocabulary_check_word(word, bytes, line, error);
    if (status != STATUS_OK)
        return status;
    if (line > VOCABULARY_WORDS_MAX)
        return error_set(error, STATUS_CORRUPT, "line %u: expected at most %d words", line,
                         VOCABULARY_WORDS_MAX);
    text_show(shown, sizeof shown, word, bytes, SHOWN_CHARACTERS);
    if (line <= FIRST_WORDS &&
        (strlen(first_words[line - 1]) != bytes || memcmp(first_words[line - 1], word, bytes) != 0))
        return error_set(error, STATUS_CORRUPT, "line %u: expected \"%s\", got \"%s\"", line,
                         first_words[line - 1], shown);
    if (!vocabulary_add(words, word, bytes, &number))
        return vocabulary_no_memory(error);
    if (number + 1 != line)
        return error_set(error, STATUS_CORRUPT, "line %u: \"%s\" stands in line %u already", line, shown,
                         number + 1);
    return STATUS_OK;
}

static enum status vocabulary_parse_lines(struct vocabulary *words, const char *text, size_t bytes,
                                          struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t line = 0;
    for (size_t at = 0; status == STATUS_OK && at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        line++;
        if (end == NULL)
            return error_set(error, STATUS_CORRUPT, "line %u: cut off, expected a newline", line);
        const size_t length = (size_t)(end - (text + at));
        status = vocabulary_parse_word(words, text + at, length, line, error);
        at += length + 1;
    }
    if (status == STATUS_OK && line < FIRST_WORDS)
        return error_set(error, STATUS_CORRUPT, "line %u: nothing, expected \"%s\"", line + 1,
                         first_words[line]);
    return status;
}

enum status vocabulary_parse(struct vocabulary **out, const char *file, const char *text, size_t bytes,
                             struct error *error)
{
    *out = NULL;
    struct error reason;
    struct vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    if (vocabulary == NULL)
        return vocabulary_no_memory(error);
    enum status status = vocabulary_parse_lines(vocabulary, text, bytes, &reason);
    if (status == STATUS_OK) {
        *out = vocabulary;
        return status;
    }
    vocabulary_free(vocabulary);
    return error_set(error, status, "%.*s: %.*s", SHOWN_FILE_BYTES, file, ERROR_TEXT_BYTES / 2, reason.text);
}
