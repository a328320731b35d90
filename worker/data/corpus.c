/* Reading a text; see the header. Every trainer of a language model's job runs it, once and on its one
 * thread, and so does a command's process that checks a job or evaluates a model.
 *
 * ---- The rule of words ----
 * A line ends with a newline. White space parts it into runs. Of a run, the punctuation at its two ends comes
 * off, one character at a time; each such character is a token of its own, and what stays between them is a
 * word, whatever is in it: apostrophes, hyphens, full stops. So "LORD," is "LORD" and ",", "'Tis" is "'" and
 * "Tis", "fool's" and "forty-two" and "3.14" are one word each, and "--" is "-" twice. Case is kept. Where a
 * run, or what is left of it when punctuation came off its beginning, begins with "<unk>" or "<eos>", these
 * are the tokens of that name. Which character is which: word_rule.h. A byte order mark at the file's
 * beginning is left out. Control characters are refused: no text has them, and a terminal that shows the
 * words obeys them.
 *
 * The file is read in pieces; what is kept is four bytes a token, eight a line, and each distinct word once.
 * A run must lie in a piece as a whole, so that one of more than RUN_BYTES_MAX bytes is refused even where it
 * is all punctuation. Words are numbered as they come; when the vocabulary is known, these numbers give way
 * to its own. */
#include "worker/data/corpus.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"
#include "worker/data/word_rule.h"
#include "worker/data/words.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 1 << 18,
    RUN_BYTES_MAX = PIECE_BYTES / 2,
    CHARACTER_BYTES_MAX = 4,
    SHOWN_PATH_BYTES = 320,
    SHOWN_WORD_BYTES = 128,
    SHOWN_WORD_CHARACTERS = 30
};

static const char byte_order_mark[] = "\xEF\xBB\xBF";

/* ---- characters ---- */

static bool is_space(uint32_t code)
{
    return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

static bool is_punctuation(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0x21, 0x2F},     {0x3A, 0x40},     {0x5B, 0x60},     {0x7B, 0x7E},     {0xA1, 0xA1},
        {0xA7, 0xA7},     {0xAB, 0xAB},     {0xB6, 0xB7},     {0xBB, 0xBB},     {0xBF, 0xBF},
        {0x2010, 0x2027}, {0x2030, 0x205E}, {0x3001, 0x3003}, {0x3008, 0x3011},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    return false;
}

enum word_character word_character_kind(uint32_t code)
{
    if (is_space(code))
        return WORD_SPACE;
    if (code < 0x20 || (code >= 0x7F && code <= 0x9F))
        return WORD_CONTROL;
    return is_punctuation(code) ? WORD_PUNCTUATION : WORD_LETTER;
}

/* ---- a text on its way in ---- */

struct reading {
    const struct corpus_config *config;
    const char *path; /* the config's */
    int fd;
    uint64_t offset;     /* of the file, where the next piece begins */
    uint64_t line;       /* from 1 */
    uint64_t line_begin; /* where it begins in the file */
    char *piece;         /* of which [at, filled) is still to be looked at */
    size_t at, filled;
    bool ended; /* nothing of the file comes behind the piece */

    struct words words; /* "<unk>" and "<eos>" first, as in a vocabulary */
    int32_t *tokens;
    size_t count, room;
    size_t *line_ends; /* how many tokens there are up to the end of each line */
    size_t lines, line_room;
};

static enum status no_memory(const struct reading *reading, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "%.*s: no memory for its words", SHOWN_PATH_BYTES,
                     reading->path);
}

/* The byte's place in its line, from 1. */
static unsigned long long column_of(const struct reading *reading, size_t at)
{
    return reading->offset - reading->filled + at - reading->line_begin + 1;
}

/* So many bytes lie ahead that a run and a character behind it do, or else the file ends in the piece. */
static enum status fill(struct reading *reading, struct error *error)
{
    const size_t left = reading->filled - reading->at;
    if (reading->ended || left >= RUN_BYTES_MAX + CHARACTER_BYTES_MAX)
        return STATUS_OK;
    memmove(reading->piece, reading->piece + reading->at, left);
    const ssize_t more =
        file_read_at(reading->fd, reading->piece + left, PIECE_BYTES - left, reading->offset);
    if (more < 0)
        return error_set_errno(error, errno, "%.*s", SHOWN_PATH_BYTES, reading->path);
    reading->at = 0;
    reading->filled = left + (size_t)more;
    reading->offset += (uint64_t)more;
    reading->ended = reading->filled < PIECE_BYTES;
    if (reading->config->progress != NULL)
        reading->config->progress(reading->config->progress_context);
    return STATUS_OK;
}

static enum status look(const struct reading *reading, size_t at, enum word_character *kind, size_t *size,
                        struct error *error)
{
    const char *bytes = reading->piece + at;
    *size = text_character(bytes, reading->filled - at);
    *kind = *size == 0 ? WORD_CONTROL : word_character_kind(text_code_point(bytes, *size));
    if (*kind != WORD_CONTROL)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT, "%.*s:%llu: %s (byte 0x%02x at column %llu)", SHOWN_PATH_BYTES,
                     reading->path, (unsigned long long)reading->line,
                     *size == 0 ? "not UTF-8" : "a control character", (unsigned char)*bytes,
                     column_of(reading, at));
}

static enum status add_number(struct reading *reading, uint32_t number, struct error *error)
{
    if (reading->count == reading->room) {
        const size_t room = 2 * reading->room + PIECE_BYTES;
        int32_t *tokens = reallocarray(reading->tokens, room, sizeof *tokens);
        if (tokens == NULL)
            return no_memory(reading, error);
        reading->tokens = tokens;
        reading->room = room;
    }
    reading->tokens[reading->count++] = (int32_t)number;
    return STATUS_OK;
}

static enum status add_word(struct reading *reading, const char *word, size_t bytes, struct error *error)
{
    char shown[SHOWN_WORD_BYTES];
    uint32_t number;
    if (bytes > VOCABULARY_WORD_BYTES_MAX) {
        text_show(shown, sizeof shown, word, bytes, SHOWN_WORD_CHARACTERS);
        return error_set(error, STATUS_CORRUPT, "%.*s:%llu: a word of %zu bytes, expected at most %d: \"%s\"",
                         SHOWN_PATH_BYTES, reading->path, (unsigned long long)reading->line, bytes,
                         VOCABULARY_WORD_BYTES_MAX, shown);
    }
    if (!words_add(&reading->words, word, bytes, &number))
        return no_memory(reading, error);
    return add_number(reading, number, error);
}

static enum status end_line(struct reading *reading, struct error *error)
{
    const size_t before = reading->lines == 0 ? 0 : reading->line_ends[reading->lines - 1];
    if (reading->count == before)
        return STATUS_OK;
    if (reading->lines == reading->line_room) {
        const size_t room = 2 * reading->line_room + 1024;
        size_t *ends = reallocarray(reading->line_ends, room, sizeof *ends);
        if (ends == NULL)
            return no_memory(reading, error);
        reading->line_ends = ends;
        reading->line_room = room;
    }
    enum status status = add_number(reading, VOCABULARY_END_OF_LINE, error);
    if (status == STATUS_OK)
        reading->line_ends[reading->lines++] = reading->count;
    return status;
}

/* ---- runs ---- */

/* The number that the words' own names stand for at the beginning of a run; WORDS_NONE: they do not. */
static uint32_t name_at(const struct words *words, const char *run, size_t bytes)
{
    for (uint32_t number = VOCABULARY_UNKNOWN; number <= VOCABULARY_END_OF_LINE; number++) {
        const size_t length = words_bytes(words, number);
        if (bytes >= length && memcmp(run, words_at(words, number), length) == 0)
            return number;
    }
    return WORDS_NONE;
}

/* Bytes of the punctuation character at `at`; 0 where something else stands. */
static size_t punctuation_at(const char *at, size_t bytes)
{
    const size_t size = text_character(at, bytes);
    return word_character_kind(text_code_point(at, size)) == WORD_PUNCTUATION ? size : 0;
}

/* Takes names and punctuation off the run's beginning; *bytes: how much that was. */
static enum status take_beginning(struct reading *reading, const char *run, size_t length, size_t *bytes,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    *bytes = 0;
    while (status == STATUS_OK && *bytes < length) {
        const char *rest = run + *bytes;
        const uint32_t name = name_at(&reading->words, rest, length - *bytes);
        const size_t size =
            name != WORDS_NONE ? words_bytes(&reading->words, name) : punctuation_at(rest, length - *bytes);
        if (size == 0)
            break;
        status = name != WORDS_NONE ? add_number(reading, name, error) : add_word(reading, rest, size, error);
        *bytes += size;
    }
    return status;
}

/* A run's tokens. All its characters are well-formed. */
static enum status split(struct reading *reading, const char *run, size_t length, struct error *error)
{
    size_t begin;
    enum status status = take_beginning(reading, run, length, &begin, error);
    size_t end = begin;
    for (size_t at = begin; at < length;) {
        const size_t size = text_character(run + at, length - at);
        if (punctuation_at(run + at, length - at) == 0)
            end = at + size;
        at += size;
    }
    if (status == STATUS_OK && end > begin)
        status = add_word(reading, run + begin, end - begin, error);
    while (status == STATUS_OK && end < length) {
        const size_t size = text_character(run + end, length - end);
        status = add_word(reading, run + end, size, error);
        end += size;
    }
    return status;
}

/* One white space character, or one run. */
static enum status read_run(struct reading *reading, struct error *error)
{
    enum word_character kind;
    size_t size, length = 0;
    enum status status = look(reading, reading->at, &kind, &size, error);
    if (status == STATUS_OK && kind == WORD_SPACE) {
        reading->at += size;
        return STATUS_OK;
    }
    while (status == STATUS_OK && kind != WORD_SPACE) {
        length += size;
        if (length > RUN_BYTES_MAX)
            return error_set(
                error, STATUS_CORRUPT,
                "%.*s:%llu: more than %d bytes without white space, expected words of at most %d",
                SHOWN_PATH_BYTES, reading->path, (unsigned long long)reading->line, RUN_BYTES_MAX,
                VOCABULARY_WORD_BYTES_MAX);
        if (reading->at + length == reading->filled)
            break;
        status = look(reading, reading->at + length, &kind, &size, error);
    }
    if (status == STATUS_OK)
        status = split(reading, reading->piece + reading->at, length, error);
    reading->at += length;
    return status;
}

static void skip_newline(struct reading *reading)
{
    reading->at++;
    reading->line++;
    reading->line_begin = reading->offset - reading->filled + reading->at;
}

static enum status read_all(struct reading *reading, struct error *error)
{
    enum status status = fill(reading, error);
    const size_t mark_bytes = sizeof byte_order_mark - 1;
    if (reading->filled >= mark_bytes && memcmp(reading->piece, byte_order_mark, mark_bytes) == 0)
        reading->at = mark_bytes;
    while (status == STATUS_OK && reading->at < reading->filled) {
        if (reading->piece[reading->at] == '\n') {
            status = end_line(reading, error);
            skip_newline(reading);
        } else {
            status = read_run(reading, error);
        }
        if (status == STATUS_OK)
            status = fill(reading, error);
    }
    if (status == STATUS_OK)
        status = end_line(reading, error);
    if (status == STATUS_OK && reading->lines == 0)
        status = error_set(error, STATUS_INVALID, "%.*s: no words", SHOWN_PATH_BYTES, reading->path);
    return status;
}

/* ---- the file ---- */

/* The one text that a job of ours names. */
static enum status open_text(struct reading *reading, struct error *error)
{
    static const char shipped[] = "build/data/kjv.txt";
    struct error reason;
    uint64_t bytes;
    enum status status = file_open(&reading->fd, &bytes, reading->path, &reason);
    const size_t length = strlen(reading->path), ending = sizeof shipped - 1;
    if (status == STATUS_OK)
        return status;
    if (status == STATUS_NOT_FOUND && length >= ending &&
        strcmp(reading->path + length - ending, shipped) == 0)
        return error_set(error, status, "%.*s: `scripts/data kjv` writes it", ERROR_TEXT_BYTES - 40,
                         reason.text);
    return error_set(error, status, "%s", reason.text);
}

static enum status reading_open(struct reading *reading, const struct corpus_config *config,
                                struct error *error)
{
    uint32_t number;
    *reading = (struct reading){.config = config, .path = config->path, .fd = -1, .line = 1};
    reading->piece = malloc(PIECE_BYTES);
    if (reading->piece == NULL || !words_add(&reading->words, "<unk>", 5, &number) ||
        !words_add(&reading->words, "<eos>", 5, &number))
        return no_memory(reading, error);
    return open_text(reading, error);
}

static void reading_close(struct reading *reading)
{
    if (reading->fd >= 0)
        close(reading->fd);
    free(reading->piece);
    words_fini(&reading->words);
    free(reading->tokens);
    free(reading->line_ends);
}

/* ---- the corpus ---- */

/* How many tokens are in the lines that are not held out: at least one line's. */
static size_t training_count(const struct reading *reading, double held_out)
{
    const double lines = floor(held_out * (double)reading->lines);
    const size_t held = lines < (double)reading->lines ? (size_t)lines : reading->lines - 1;
    return reading->line_ends[reading->lines - held - 1];
}

static enum status build_vocabulary(struct vocabulary **out, const struct reading *reading, size_t count,
                                    uint32_t minimum_count, struct error *error)
{
    struct error reason;
    uint64_t *counts = calloc(reading->words.count, sizeof *counts);
    if (counts == NULL)
        return no_memory(reading, error);
    for (size_t i = 0; i < count; i++)
        counts[reading->tokens[i]]++;
    enum status status = vocabulary_build(out, &reading->words, counts, minimum_count, &reason);
    free(counts);
    if (status != STATUS_OK)
        return error_set(error, status, "%.*s: %.*s", SHOWN_PATH_BYTES, reading->path, ERROR_TEXT_BYTES / 4,
                         reason.text);
    return status;
}

static enum status copy_vocabulary(struct vocabulary **out, const struct vocabulary *vocabulary,
                                   struct error *error)
{
    size_t bytes;
    char *text = vocabulary_format(vocabulary, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a vocabulary");
    enum status status = vocabulary_parse(out, text, bytes, error);
    free(text);
    return status;
}

/* Each token's number becomes the vocabulary's. */
static enum status number_anew(struct reading *reading, const struct vocabulary *vocabulary,
                               struct error *error)
{
    const struct words *words = &reading->words;
    uint32_t *numbers = calloc(words->count, sizeof *numbers);
    if (numbers == NULL)
        return no_memory(reading, error);
    for (uint32_t i = 0; i < words->count; i++)
        numbers[i] = vocabulary_find(vocabulary, words_at(words, i), words_bytes(words, i));
    for (size_t i = 0; i < reading->count; i++)
        reading->tokens[i] = (int32_t)numbers[reading->tokens[i]];
    free(numbers);
    return STATUS_OK;
}

static enum status measure(struct corpus *corpus, struct error *error)
{
    const uint32_t size = vocabulary_size(corpus->vocabulary);
    const struct corpus_part *part = corpus->held_out.count > 0 ? &corpus->held_out : &corpus->training;
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

/* The held-out part lies behind the other in the same memory. */
static void identify(struct corpus *corpus, const struct corpus_config *config)
{
    const uint64_t training = corpus->training.count;
    const size_t bytes = (corpus->training.count + corpus->held_out.count) * sizeof *corpus->training.tokens;
    const unsigned char *tokens = (const unsigned char *)corpus->training.tokens;
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    crypto_hash_sha256_update(&state, (const unsigned char *)&training, sizeof training);
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        crypto_hash_sha256_update(&state, tokens + at, bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
        if (config->progress != NULL)
            config->progress(config->progress_context);
    }
    crypto_hash_sha256_final(&state, corpus->sha256);
}

enum status corpus_read(struct corpus *corpus, const struct corpus_config *config, struct error *error)
{
    struct reading reading;
    *corpus = (struct corpus){0};
    enum status status = reading_open(&reading, config, error);
    if (status == STATUS_OK)
        status = read_all(&reading, error);
    const size_t training = status == STATUS_OK ? training_count(&reading, config->held_out) : 0;
    if (status == STATUS_OK)
        status = config->vocabulary != NULL ? copy_vocabulary(&corpus->vocabulary, config->vocabulary, error)
                                            : build_vocabulary(&corpus->vocabulary, &reading, training,
                                                               config->minimum_count, error);
    if (status == STATUS_OK)
        status = number_anew(&reading, corpus->vocabulary, error);
    if (status == STATUS_OK) {
        corpus->training = (struct corpus_part){.tokens = reading.tokens, .count = training};
        corpus->held_out =
            (struct corpus_part){.tokens = reading.tokens + training, .count = reading.count - training};
        reading.tokens = NULL;
        identify(corpus, config);
        status = measure(corpus, error);
    }
    reading_close(&reading);
    if (status != STATUS_OK)
        corpus_fini(corpus);
    return status;
}

/* Both parts' tokens are one piece of memory. */
void corpus_fini(struct corpus *corpus)
{
    vocabulary_free(corpus->vocabulary);
    free(corpus->training.tokens);
    *corpus = (struct corpus){0};
}
