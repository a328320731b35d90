/* Reads a text into a corpus, cuts batches out of it, and draws the tutorial's random ones. Each trainer of a
 * language model's job reads once, on its one thread; so do the commands that check a job or evaluate a
 * model.
 *
 * The reader keeps one line, four bytes per token, eight per line, and each distinct word once. Words are
 * numbered as they come; once the vocabulary is known, its numbers replace these. No progress is told while
 * one line is read from the file. */
#include "worker/data/corpus.h"

#include "kernels/base/file.h"
#include "kernels/base/rng.h"
#include "kernels/base/text.h"
#include "worker/data/tokenize.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 18, SHOWN_PATH_BYTES = 320, SHOWN_WORD_BYTES = 128, SHOWN_WORD_CHARACTERS = 30 };

static const char byte_order_mark[] = "\xEF\xBB\xBF";

/* ---- a text on its way in ---- */

struct reading {
    const struct corpus_config *config;
    const char *path; /* the config's */
    char *text;       /* the line */
    size_t length, room_of_text;
    uint64_t line; /* from 1 */
    size_t untold; /* bytes since the last progress */

    struct vocabulary *words;
    int32_t *tokens;
    size_t count, room;
    size_t *line_ends; /* the number of tokens up to the end of each line */
    size_t lines, line_room;
};

static enum status reading_no_memory(const struct reading *reading, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "%.*s: no memory for its words", SHOWN_PATH_BYTES,
                     reading->path);
}

static void reading_progress(const struct corpus_config *config)
{
    if (config->progress != NULL)
        config->progress(config->progress_context);
}

static enum status reading_classify(const struct reading *reading, size_t at, enum word_character *kind,
                                    size_t *size, struct error *error)
{
    const char *bytes = reading->text + at;
    *size = text_character(bytes, reading->length - at);
    *kind = *size == 0 ? WORD_CONTROL : tokenize_character(text_code_point(bytes, *size));
    if (*kind != WORD_CONTROL)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT, "%.*s:%llu: %s (byte 0x%02x at column %zu)", SHOWN_PATH_BYTES,
                     reading->path, (unsigned long long)reading->line,
                     *size == 0 ? "not UTF-8" : "a control character", (unsigned char)*bytes, at + 1);
}

static enum status reading_add_number(struct reading *reading, uint32_t number, struct error *error)
{
    if (reading->count == reading->room) {
        const size_t room = 2 * reading->room + PIECE_BYTES;
        int32_t *tokens = reallocarray(reading->tokens, room, sizeof *tokens);
        if (tokens == NULL)
            return reading_no_memory(reading, error);
        reading->tokens = tokens;
        reading->room = room;
    }
    reading->tokens[reading->count++] = (int32_t)number;
    return STATUS_OK;
}

static enum status reading_add_word(struct reading *reading, const char *word, size_t bytes,
                                    struct error *error)
{
    char shown[SHOWN_WORD_BYTES];
    uint32_t number;
    if (bytes > VOCABULARY_WORD_BYTES_MAX) {
        text_show(shown, sizeof shown, word, bytes, SHOWN_WORD_CHARACTERS);
        return error_set(error, STATUS_CORRUPT, "%.*s:%llu: a word of %zu bytes, expected at most %d: \"%s\"",
                         SHOWN_PATH_BYTES, reading->path, (unsigned long long)reading->line, bytes,
                         VOCABULARY_WORD_BYTES_MAX, shown);
    }
    if (!vocabulary_add(reading->words, word, bytes, &number))
        return reading_no_memory(reading, error);
    return reading_add_number(reading, number, error);
}

static enum status reading_end_line(struct reading *reading, struct error *error)
{
    const size_t before = reading->lines == 0 ? 0 : reading->line_ends[reading->lines - 1];
    if (reading->count == before)
        return STATUS_OK;
    if (reading->lines == reading->line_room) {
        const size_t room = 2 * reading->line_room + 1024;
        size_t *ends = reallocarray(reading->line_ends, room, sizeof *ends);
        if (ends == NULL)
            return reading_no_memory(reading, error);
        reading->line_ends = ends;
        reading->line_room = room;
    }
    enum status status = reading_add_number(reading, VOCABULARY_END_OF_LINE, error);
    if (status == STATUS_OK)
        reading->line_ends[reading->lines++] = reading->count;
    return status;
}

/* ---- runs ---- */

/* Appends the tokens of the line's runs, from `at` on. "<unk>" and "<eos>" are the words of these numbers
 * already. */
static enum status reading_take_line(struct reading *reading, size_t at, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t run = at, size = 1; at <= reading->length && status == STATUS_OK; at += size) {
        enum word_character kind = WORD_SPACE;
        if (at < reading->length)
            status = reading_classify(reading, at, &kind, &size, error);
        if (status != STATUS_OK || kind != WORD_SPACE)
            continue;
        reading->untold += at + size - run;
        for (size_t bytes; run < at && status == STATUS_OK; run += bytes) {
            bytes = tokenize_next(reading->text + run, at - run);
            status = reading_add_word(reading, reading->text + run, bytes, error);
        }
        run = at + size;
        if (reading->untold >= PIECE_BYTES) {
            reading_progress(reading->config);
            reading->untold = 0;
        }
    }
    return status == STATUS_OK ? reading_end_line(reading, error) : status;
}

/* ---- the file ---- */

/* Adds the command that writes the text where the missing file is the one that the shipped job names. */
static enum status reading_open_text(const struct reading *reading, int *fd, struct error *error)
{
    static const char shipped[] = "build/data/kjv.txt";
    struct error reason;
    uint64_t bytes;
    enum status status = file_open(fd, &bytes, path_of(reading->path), &reason);
    const size_t length = strlen(reading->path), ending = sizeof shipped - 1;
    if (status == STATUS_OK)
        return status;
    if (status == STATUS_NOT_FOUND && length >= ending &&
        strcmp(reading->path + length - ending, shipped) == 0)
        return error_set(error, status, "%.*s: `scripts/data kjv` writes it", ERROR_TEXT_BYTES - 40,
                         reason.text);
    return error_set(error, status, "%s", reason.text);
}

static enum status reading_take_all(struct reading *reading, struct error *error)
{
    int fd;
    enum status status = reading_open_text(reading, &fd, error);
    if (status != STATUS_OK)
        return status;
    FILE *file = fdopen(fd, "r");
    if (file == NULL) {
        close(fd);
        return reading_no_memory(reading, error);
    }
    for (ssize_t bytes;
         status == STATUS_OK && (bytes = getline(&reading->text, &reading->room_of_text, file)) >= 0;) {
        const bool marked =
            reading->line++ == 0 && strncmp(reading->text, byte_order_mark, strlen(byte_order_mark)) == 0;
        reading->length = (size_t)bytes;
        status = reading_take_line(reading, marked ? strlen(byte_order_mark) : 0, error);
    }
    if (status == STATUS_OK && !feof(file))
        status = error_set_errno(error, errno, "%.*s", SHOWN_PATH_BYTES, reading->path);
    fclose(file);
    if (status == STATUS_OK && reading->lines == 0)
        status = error_set(error, STATUS_INVALID, "%.*s: no words", SHOWN_PATH_BYTES, reading->path);
    return status;
}

/* ---- the corpus ---- */

static enum status corpus_build_vocabulary(struct vocabulary **out, const struct reading *reading,
                                           size_t count, uint32_t minimum_count, struct error *error)
{
    struct error reason;
    uint64_t *counts = calloc(vocabulary_size(reading->words), sizeof *counts);
    if (counts == NULL)
        return reading_no_memory(reading, error);
    for (size_t i = 0; i < count; i++)
        counts[reading->tokens[i]]++;
    enum status status = vocabulary_build(out, reading->words, counts, minimum_count, &reason);
    free(counts);
    if (status != STATUS_OK)
        return error_set(error, status, "%.*s: %.*s", SHOWN_PATH_BYTES, reading->path, ERROR_TEXT_BYTES / 4,
                         reason.text);
    return status;
}

/* Replaces each token's number by the vocabulary's. */
static enum status corpus_renumber(struct reading *reading, const struct vocabulary *vocabulary,
                                   struct error *error)
{
    const struct vocabulary *words = reading->words;
    uint32_t *numbers = calloc(vocabulary_size(words), sizeof *numbers);
    if (numbers == NULL)
        return reading_no_memory(reading, error);
    for (uint32_t i = 0; i < vocabulary_size(words); i++)
        numbers[i] = vocabulary_find(vocabulary, vocabulary_word(words, i), vocabulary_word_bytes(words, i));
    for (size_t i = 0; i < reading->count; i++)
        reading->tokens[i] = (int32_t)numbers[reading->tokens[i]];
    free(numbers);
    return STATUS_OK;
}

static enum status corpus_measure(struct corpus *corpus, struct error *error)
{
    const uint32_t size = vocabulary_size(corpus->vocabulary);
    const struct corpus_split *part = corpus->held_out.count > 0 ? &corpus->held_out : &corpus->training;
    double loss = 0, total = (double)corpus->training.count + size;
    uint64_t *counts = calloc(size, sizeof *counts);
    if (counts == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the frequencies of words");
    for (size_t i = 0; i < corpus->training.count; i++)
        counts[corpus->training.tokens[i]]++;
    for (size_t i = 0; i < part->count; i++)
        loss -= log((double)(counts[part->tokens[i]] + 1) / total);
    corpus->unigram_perplexity = exp(loss / (double)part->count);
    free(counts);
    return STATUS_OK;
}

_Static_assert(CORPUS_HASH_BYTES == crypto_hash_sha256_BYTES, "the hash fits");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are hashed as they lie in memory");

/* The held-out tokens lie behind the training tokens in the same memory. */
static void corpus_hash(struct corpus *corpus, const struct corpus_config *config)
{
    const uint64_t training = corpus->training.count;
    const size_t bytes = (corpus->training.count + corpus->held_out.count) * sizeof *corpus->training.tokens;
    const unsigned char *tokens = (const unsigned char *)corpus->training.tokens;
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    crypto_hash_sha256_update(&state, (const unsigned char *)&training, sizeof training);
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        crypto_hash_sha256_update(&state, tokens + at, bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
        reading_progress(config);
    }
    crypto_hash_sha256_final(&state, corpus->sha256);
}

enum status corpus_read(struct corpus *corpus, const struct corpus_config *config, struct error *error)
{
    struct reading reading = {.config = config, .path = config->path};
    *corpus = (struct corpus){0};
    enum status status = vocabulary_new(&reading.words, error);
    if (status == STATUS_OK)
        status = reading_take_all(&reading, error);
    /* At least one line is not held out. */
    const double held = floor(config->held_out * (double)reading.lines);
    const size_t kept = held < (double)reading.lines ? reading.lines - (size_t)held : 1;
    const size_t training = status == STATUS_OK ? reading.line_ends[kept - 1] : 0;
    if (status == STATUS_OK && config->vocabulary == NULL)
        status = corpus_build_vocabulary(&corpus->own, &reading, training, config->minimum_count, error);
    corpus->vocabulary = config->vocabulary != NULL ? config->vocabulary : corpus->own;
    if (status == STATUS_OK)
        status = corpus_renumber(&reading, corpus->vocabulary, error);
    if (status == STATUS_OK) {
        corpus->training = (struct corpus_split){.tokens = reading.tokens, .count = training};
        corpus->held_out =
            (struct corpus_split){.tokens = reading.tokens + training, .count = reading.count - training};
        reading.tokens = NULL;
        corpus_hash(corpus, config);
        status = corpus_measure(corpus, error);
    }
    free(reading.text);
    vocabulary_free(reading.words);
    free(reading.tokens);
    free(reading.line_ends);
    if (status != STATUS_OK)
        corpus_fini(corpus);
    return status;
}

/* Both splits share one allocation. */
void corpus_fini(struct corpus *corpus)
{
    vocabulary_free(corpus->own);
    free(corpus->training.tokens);
    *corpus = (struct corpus){0};
}

/* ---- batches ---- */

enum { DRAW_SHIFT = 22 };

static uint64_t rows_of(const struct corpus_split *part, uint32_t columns)
{
    assert(columns > 0);
    return part->count / columns;
}

uint64_t corpus_batches(const struct corpus_split *part, uint32_t columns, uint32_t steps)
{
    const uint64_t rows = rows_of(part, columns);
    assert(steps > 0);
    return rows < 2 ? 0 : (rows - 2) / steps + 1;
}

uint32_t corpus_batch(const struct corpus_split *part, uint32_t columns, uint32_t first, uint32_t batch,
                      uint32_t steps, uint64_t index, int32_t *tokens, int32_t *targets)
{
    const uint64_t rows = rows_of(part, columns), begin = index * steps, left = rows - 1 - begin;
    const uint32_t taken = left < steps ? (uint32_t)left : steps;
    assert(index < corpus_batches(part, columns, steps) && first <= columns && batch <= columns - first);
    for (uint32_t step = 0; step < taken; step++)
        for (uint32_t i = 0; i < batch; i++) {
            const int32_t *at = part->tokens + (first + i) * rows + begin + step;
            tokens[(size_t)step * batch + i] = at[0];
            targets[(size_t)step * batch + i] = at[1];
        }
    return taken;
}

void corpus_random(uint64_t seed, uint32_t trainer, uint64_t update, enum corpus_draw draw, int32_t *values,
                   size_t count, uint32_t below)
{
    const uint32_t block = (uint32_t)draw << DRAW_SHIFT | (uint32_t)(update >> 32);
    struct rng_key key = {.seed = seed, .step = (uint32_t)update, .episode = trainer};
    uint32_t words[4] = {0};
    assert(update >> CORPUS_UPDATE_BITS_MAX == 0 && (draw == CORPUS_TOKENS || draw == CORPUS_TARGETS));
    for (size_t i = 0; i < count; i++) {
        const size_t at = i % 2 * 2;
        key.environment = (uint32_t)(i / 2);
        if (at == 0)
            rng_block(&key, RNG_DATA, block, words);
        values[i] = (int32_t)rng_below(words[at], words[at + 1], below);
    }
}

void corpus_random_state(uint64_t seed, uint32_t trainer, enum corpus_draw draw, float *values, size_t count)
{
    struct rng_key key = {.seed = seed, .episode = trainer};
    assert(draw == CORPUS_HIDDEN || draw == CORPUS_CELL);
    for (size_t i = 0; i < count; i++) {
        uint32_t words[4];
        key.environment = (uint32_t)i;
        rng_block(&key, RNG_DATA, (uint32_t)draw << DRAW_SHIFT, words);
        values[i] = (float)rng_normal(words, 1);
    }
}
