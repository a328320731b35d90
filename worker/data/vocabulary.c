/* Builds, writes and reads vocabularies; see the header. */
#include "worker/data/vocabulary.h"

#include "kernels/base/text.h"
#include "worker/data/tokenize.h"
#include "worker/data/word_table.h"

#include <stdlib.h>
#include <string.h>

struct vocabulary {
    struct word_table words;
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
    if (vocabulary != NULL)
        word_table_fini(&vocabulary->words);
    free(vocabulary);
}

uint32_t vocabulary_size(const struct vocabulary *vocabulary)
{
    return vocabulary->words.count;
}

const char *vocabulary_word(const struct vocabulary *vocabulary, uint32_t number)
{
    return word_table_at(&vocabulary->words, number);
}

uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *word, size_t bytes)
{
    const uint32_t number = word_table_find(&vocabulary->words, word, bytes);
    return number == WORD_TABLE_NONE ? VOCABULARY_UNKNOWN : number;
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

static enum status vocabulary_add_sorted(struct word_table *to, const struct counted *list, size_t count,
                                         struct error *error)
{
    uint32_t number;
    for (uint32_t i = 0; i < FIRST_WORDS; i++)
        if (!word_table_add(to, first_words[i], strlen(first_words[i]), &number))
            return vocabulary_no_memory(error);
    for (size_t i = 0; i < count; i++)
        if (!word_table_add(to, list[i].word, list[i].bytes, &number))
            return vocabulary_no_memory(error);
    return STATUS_OK;
}

enum status vocabulary_build(struct vocabulary **out, const struct word_table *words, const uint64_t *counts,
                             uint64_t minimum_count, struct error *error)
{
    *out = NULL;
    size_t count = 0;
    struct counted *list = calloc(words->count, sizeof *list);
    struct vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    enum status status = list == NULL || vocabulary == NULL ? vocabulary_no_memory(error) : STATUS_OK;
    for (uint32_t i = FIRST_WORDS; status == STATUS_OK && i < words->count; i++)
        if (counts[i] >= minimum_count)
            list[count++] = (struct counted){counts[i], word_table_at(words, i), word_table_bytes(words, i)};
    if (status == STATUS_OK && count > VOCABULARY_WORDS_MAX - FIRST_WORDS)
        status = error_set(error, STATUS_INVALID,
                           "%zu words are seen %llu times or more, expected at most %d: raise the minimum",
                           count, (unsigned long long)minimum_count, VOCABULARY_WORDS_MAX - FIRST_WORDS);
    if (status == STATUS_OK) {
        qsort(list, count, sizeof *list, by_count);
        status = vocabulary_add_sorted(&vocabulary->words, list, count, error);
    }
    free(list);
    if (status == STATUS_OK)
        *out = vocabulary;
    else
        vocabulary_free(vocabulary);
    return status;
}

enum status vocabulary_copy(struct vocabulary **out, const struct vocabulary *vocabulary, struct error *error)
{
    const struct word_table *words = &vocabulary->words;
    struct vocabulary *copy = calloc(1, sizeof *copy);
    uint32_t number;
    bool whole = copy != NULL;
    for (uint32_t i = 0; i < words->count && whole; i++)
        whole = word_table_add(&copy->words, word_table_at(words, i), word_table_bytes(words, i), &number);
    *out = whole ? copy : NULL;
    if (whole)
        return STATUS_OK;
    vocabulary_free(copy);
    return vocabulary_no_memory(error);
}

/* ---- as text ---- */

char *vocabulary_format(const struct vocabulary *vocabulary, size_t *bytes)
{
    const struct word_table *words = &vocabulary->words;
    *bytes = words->text_bytes;
    char *text = malloc(words->text_bytes);
    if (text == NULL)
        return NULL;
    memcpy(text, words->text, words->text_bytes);
    for (uint32_t i = 0; i < words->count; i++)
        text[words->begins[i] + word_table_bytes(words, i)] = '\n';
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
static enum status vocabulary_parse_word(struct word_table *words, const char *word, size_t bytes,
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
    if (!word_table_add(words, word, bytes, &number))
        return vocabulary_no_memory(error);
    if (number + 1 != line)
        return error_set(error, STATUS_CORRUPT, "line %u: \"%s\" stands in line %u already", line, shown,
                         number + 1);
    return STATUS_OK;
}

static enum status vocabulary_parse_lines(struct word_table *words, const char *text, size_t bytes,
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
    enum status status = vocabulary_parse_lines(&vocabulary->words, text, bytes, &reason);
    if (status == STATUS_OK) {
        *out = vocabulary;
        return status;
    }
    vocabulary_free(vocabulary);
    return error_set(error, status, "%.*s: %.*s", SHOWN_FILE_BYTES, file, ERROR_TEXT_BYTES / 2, reason.text);
}
