/* A text as a language model reads it: the rule of words, the two parts, the batches; files that are no
 * text; and the tutorial's random data, compared with PyTorch's (test/golden/rnn_parallel.py). */
#include "test/golden.h"
#include "test/process.h"
#include "test/workplace.h"
#include "worker/data/corpus.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], path[96];
static struct corpus corpus;

static void open_folder(void)
{
    folder_make(folder);
    snprintf(path, sizeof path, "%s/text", folder);
}

static void close_folder(void)
{
    corpus_fini(&corpus);
    folder_remove(folder);
}

static void write_bytes(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static enum status read_with(double held_out, uint32_t minimum_count, const struct vocabulary *vocabulary,
                             struct error *error)
{
    const struct corpus_config config = {
        .path = path, .minimum_count = minimum_count, .held_out = held_out, .vocabulary = vocabulary};
    corpus_fini(&corpus);
    return corpus_read(&corpus, &config, error);
}

static void read_ok(const char *text, double held_out, uint32_t minimum_count)
{
    struct error error = {0};
    write_bytes(text, strlen(text));
    const enum status status = read_with(held_out, minimum_count, NULL, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* The part's words with a bar between them. */
static void expect_words(const struct corpus_split *part, const char *expected)
{
    char words[1024];
    size_t bytes = 0;
    words[0] = '\0';
    for (size_t i = 0; i < part->count; i++)
        bytes += (size_t)snprintf(words + bytes, sizeof words - bytes, "%s%s", i == 0 ? "" : "|",
                                  vocabulary_word(corpus.vocabulary, (uint32_t)part->tokens[i]));
    ck_assert_str_eq(words, expected);
}

/* ---- words ---- */

static const struct split {
    const char *text, *words;
} splits[] = {
    {"And God said, Let there be light:", "And|God|said|,|Let|there|be|light|:|<eos>"},
    {"the LORD, the lord", "the|LORD|,|the|lord|<eos>"},
    {"fool's forty-two 3.14 a.m.", "fool's|forty-two|3.14|a.m|.|<eos>"},
    {"'Tis the fathers' (house);", "'|Tis|the|fathers|'|(|house|)|;|<eos>"},
    {"-- ... ?!", "-|-|.|.|.|?|!|<eos>"},
    {"one\ntwo\n", "one|<eos>|two|<eos>"},
    {"one\n\n \t\n\ntwo", "one|<eos>|two|<eos>"},
    {" \tone  two\r\n three \r\n", "one|two|<eos>|three|<eos>"},
    {"a\xC2\xA0z\xE3\x80\x80y\xE2\x80\xA8x", "a|z|y|x|<eos>"},
    {"\xC2\xABna\xC3\xAFve\xC2\xBB \xE2\x80\x9C\xE6\xBC\xA2\xE2\x80\x9D\xE3\x80\x82",
     "\xC2\xAB|na\xC3\xAFve|\xC2\xBB|\xE2\x80\x9C|\xE6\xBC\xA2|\xE2\x80\x9D|\xE3\x80\x82|<eos>"},
    {"the <unk> <eos> <unk>, (<unk>) <eos><unk>s", "the|<unk>|<eos>|<unk>|,|(|<unk>|)|<eos>|<unk>|s|<eos>"},
    {"<unk <UNK> a<unk>", "<|unk|<|UNK|>|a<unk|>|<eos>"},
    {"\xEF\xBB\xBFone", "one|<eos>"},
    {"<eos>\none", "<eos>|<eos>|one|<eos>"},
};

START_TEST(a_line_is_split_into_words)
{
    read_ok(splits[_i].text, 0, 1);
    expect_words(&corpus.training, splits[_i].words);
    ck_assert_uint_eq(corpus.held_out.count, 0);
}
END_TEST

/* What stands for the text is the hash of where it is parted, and of its tokens. */
static void expect_hash(void)
{
    const uint64_t training = corpus.training.count;
    const size_t tokens = (corpus.training.count + corpus.held_out.count) * sizeof(int32_t);
    uint8_t *bytes = malloc(sizeof training + tokens), hash[crypto_hash_sha256_BYTES];
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, &training, sizeof training);
    memcpy(bytes + sizeof training, corpus.training.tokens, tokens);
    crypto_hash_sha256(hash, bytes, sizeof training + tokens);
    ck_assert_mem_eq(corpus.sha256, hash, sizeof hash);
    free(bytes);
}

/* The reader's pieces end in the middle of runs and characters: no line's length is a factor of theirs, and
 * each time the text begins elsewhere. */
START_TEST(a_long_text_is_read_in_pieces)
{
    enum { LINES = 33000, WORDS = 7 };
    static const char line[] = "d\xC3\xA9j\xC3\xA0 vu, \xE6\xBC\xA2..\n";
    const size_t bytes = sizeof line - 1, begin = (size_t)_i * 3;
    struct error error = {0};
    char *text = malloc(begin + LINES * bytes);
    ck_assert_ptr_nonnull(text);
    memset(text, ' ', begin);
    for (size_t i = 0; i < LINES; i++)
        memcpy(text + begin + i * bytes, line, bytes);
    write_bytes(text, begin + LINES * bytes);
    free(text);
    ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_OK);
    ck_assert_uint_eq(corpus.training.count, WORDS * LINES);
    ck_assert_uint_eq(vocabulary_size(corpus.vocabulary), 7);
    for (size_t i = WORDS; i < corpus.training.count; i++)
        if (corpus.training.tokens[i] != corpus.training.tokens[i - WORDS])
            ck_abort_msg("line %zu differs from the one before", i / WORDS);
    expect_hash();
}
END_TEST

/* ---- parts and vocabulary ---- */

static void count(void *context)
{
    ++*(unsigned *)context;
}

/* Whoever must not be taken for dead while a large text is read gets to say so. */
START_TEST(a_large_text_tells_of_its_progress)
{
    enum { LINES = 100000 };
    static const char line[] = "ten bytes\n";
    struct error error = {0};
    unsigned calls = 0;
    const struct corpus_config config = {
        .path = path, .minimum_count = 1, .progress = count, .progress_context = &calls};
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < LINES; i++)
        ck_assert_int_ge(fputs(line, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    corpus_fini(&corpus);
    ck_assert_msg(corpus_read(&corpus, &config, &error) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(corpus.training.count, 3 * LINES);
    ck_assert_uint_ge(calls, 4);
}
END_TEST

START_TEST(the_last_lines_are_held_out)
{
    read_ok("a b\nb\n\nb c\nd b\n", 0.5, 1);
    expect_hash();
    expect_words(&corpus.training, "a|b|<eos>|b|<eos>");
    expect_words(&corpus.held_out, "b|<unk>|<eos>|<unk>|b|<eos>");
    read_ok("a b\nb\n\nb c\nd b\n", 0.74, 1);
    expect_words(&corpus.held_out, "b|<unk>|<eos>|<unk>|b|<eos>");
    read_ok("a b\nb\n\nb c\nd b\n", 0.24, 1);
    ck_assert_uint_eq(corpus.held_out.count, 0);
    read_ok("a b\nb\n\nb c\nd b\n", nextafter(1, 0), 1);
    expect_words(&corpus.training, "a|b|<eos>");
}
END_TEST

START_TEST(rare_words_are_unknown)
{
    read_ok("a b c b a b <unk>", 0, 2);
    ck_assert_uint_eq(vocabulary_size(corpus.vocabulary), 4);
    ck_assert_str_eq(vocabulary_word(corpus.vocabulary, 2), "b");
    expect_words(&corpus.training, "a|b|<unk>|b|a|b|<unk>|<eos>");
}
END_TEST

START_TEST(a_checkpoints_vocabulary_is_gone_by)
{
    static const char text[] = "<unk>\n<eos>\nz\nb\n";
    struct vocabulary *vocabulary;
    struct error error = {0};
    ck_assert_int_eq(vocabulary_parse(&vocabulary, "vocabulary.txt", text, sizeof text - 1, &error),
                     STATUS_OK);
    write_bytes("a b\nz", 5);
    ck_assert_int_eq(read_with(0.5, 100, vocabulary, &error), STATUS_OK);
    ck_assert_ptr_eq(corpus.vocabulary, vocabulary);
    expect_words(&corpus.training, "<unk>|b|<eos>");
    expect_words(&corpus.held_out, "z|<eos>");
    ck_assert_int_eq(corpus.held_out.tokens[0], 2);
    corpus_fini(&corpus);
    vocabulary_free(vocabulary);
}
END_TEST

/* Training: a 3, <eos> 2, b 1, of 6, and 4 words: of 10 are a 4, <eos> 3, b 2, <unk> 1. */
START_TEST(the_unigram_model_is_counted)
{
    read_ok("a b a\na\na c\n", 1.0 / 3, 1);
    expect_words(&corpus.held_out, "a|<unk>|<eos>");
    ck_assert(fabs(corpus.unigram_perplexity - cbrt(1 / (0.4 * 0.1 * 0.3))) < 1e-12);
    read_ok("a b a\na\n", 0, 1);
    ck_assert(fabs(corpus.unigram_perplexity - pow(0.4 * 0.4 * 0.4 * 0.2 * 0.3 * 0.3, -1.0 / 6)) < 1e-12);
}
END_TEST

/* ---- what is no text ---- */

#define BYTES_51 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxy"
#define BYTES_255 BYTES_51 BYTES_51 BYTES_51 BYTES_51 BYTES_51

static const struct bad {
    const char *text, *words;
    enum status status;
} bad[] = {
    {"", ": no words", STATUS_INVALID},
    {" \n\t\n", ": no words", STATUS_INVALID},
    {"\xEF\xBB\xBF", ": no words", STATUS_INVALID},
    {"one\nab\xFFz", ":2: not UTF-8 (byte 0xff at column 3)", STATUS_CORRUPT},
    {"one\n\n  \xC0\x80", ":3: not UTF-8 (byte 0xc0 at column 3)", STATUS_CORRUPT},
    {"one\xE6\xBC", ":1: not UTF-8 (byte 0xe6 at column 4)", STATUS_CORRUPT},
    {"one \x1B[1m", ":1: a control character (byte 0x1b at column 5)", STATUS_CORRUPT},
    {"one\n\x7F", ":2: a control character (byte 0x7f at column 1)", STATUS_CORRUPT},
    {"one\n\n(" BYTES_255 "z)",
     ":3: a word of 256 bytes, expected at most 255: \"abcdefghijklmnopqrstuvwxyzabcd...\"", STATUS_CORRUPT},
};

START_TEST(what_is_no_text_is_refused)
{
    char expected[256];
    struct error error = {0};
    write_bytes(bad[_i].text, strlen(bad[_i].text));
    ck_assert_int_eq(read_with(0, 1, NULL, &error), bad[_i].status);
    snprintf(expected, sizeof expected, "%s%s", path, bad[_i].words);
    ck_assert_str_eq(error.text, expected);
    ck_assert_ptr_null(corpus.vocabulary);
}
END_TEST

START_TEST(a_zero_byte_is_no_text)
{
    struct error error = {0};
    write_bytes("a\0b", 3);
    ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, ":1: a control character (byte 0x00 at column 2)"));
}
END_TEST

START_TEST(the_longest_word_is_taken)
{
    read_ok("\"" BYTES_255 "\"", 0, 1);
    ck_assert_uint_eq(corpus.training.count, 4);
}
END_TEST

/* Behind lines that fill some pieces, so that the place is not the piece's own. */
START_TEST(a_fault_far_behind_has_its_line_and_column)
{
    enum { LINES = 30000 };
    struct error error = {0};
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < LINES; i++)
        fputs("word by word\n", file);
    fputs("word by \xFE", file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, ":30001: not UTF-8 (byte 0xfe at column 9)"));
}
END_TEST

/* All letters are a word that is too long; all punctuation are words of one character. */
START_TEST(no_white_space_at_all)
{
    enum { BYTES = 300000 };
    struct error error = {0};
    char *text = malloc(BYTES);
    ck_assert_ptr_nonnull(text);
    memset(text, _i == 0 ? 'x' : '-', BYTES);
    text[1] = '\n';
    write_bytes(text, BYTES);
    free(text);
    if (_i == 1) {
        ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_OK);
        ck_assert_uint_eq(corpus.training.count, BYTES + 1);
        return;
    }
    ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, ":2: a word of 299998 bytes, expected at most 255"));
}
END_TEST

START_TEST(files_that_cannot_be_read)
{
    struct error error = {0};
    ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_ptr_null(strstr(error.text, "scripts/data"));
    snprintf(path, sizeof path, "%s", folder);
    ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_IO);
    snprintf(path, sizeof path, "%s/build/data/kjv.txt", folder);
    ck_assert_int_eq(read_with(0, 1, NULL, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "`scripts/data kjv` writes it"));
}
END_TEST

/* ---- batches ---- */

/* 0, 1, 2 and so on. */
static struct corpus_split counting(size_t count)
{
    static int32_t numbers[64];
    ck_assert_uint_le(count, 64);
    for (int32_t i = 0; i < 64; i++)
        numbers[i] = i;
    return (struct corpus_split){.tokens = numbers, .count = count};
}

START_TEST(columns_lie_beside_each_other)
{
    static const int32_t first[] = {6, 12, 7, 13, 8, 14}, second[] = {9, 15, 10, 16};
    const struct corpus_split part = counting(20); // 3 columns of 6; 18 and 19 are left over
    int32_t tokens[6], targets[6];
    ck_assert_uint_eq(corpus_batches(&part, 3, 3), 2);
    ck_assert_uint_eq(corpus_batch(&part, 3, 1, 2, 3, 0, tokens, targets), 3);
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(tokens[i], first[i]);
        ck_assert_int_eq(targets[i], first[i] + 1);
    }
    ck_assert_uint_eq(corpus_batch(&part, 3, 1, 2, 3, 1, tokens, targets), 2);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(tokens[i], second[i]);
        ck_assert_int_eq(targets[i], second[i] + 1);
    }
}
END_TEST

START_TEST(a_parts_batches_are_counted)
{
    static const struct {
        size_t count;
        uint32_t columns, steps;
        uint64_t batches;
    } cases[] = {{0, 1, 1, 0}, {1, 1, 5, 0},  {2, 1, 5, 1},  {6, 1, 5, 1},   {7, 1, 5, 2},   {5, 3, 5, 0},
                 {6, 3, 5, 1}, {11, 1, 5, 2}, {12, 1, 5, 3}, {20, 20, 1, 0}, {63, 2, 10, 3}, {64, 2, 31, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct corpus_split part = counting(cases[i].count);
        ck_assert_uint_eq(corpus_batches(&part, cases[i].columns, cases[i].steps), cases[i].batches);
    }
}
END_TEST

/* ---- random data ---- */

enum { SEED = 21, UPDATES = 10, TOKENS = 10, HIDDEN = 3, LAYERS = 4, LENGTH = 5, BATCH = 3, VALUES_MAX = 64 };

static void check_integers(struct golden *golden, uint32_t update, enum corpus_draw draw, uint32_t below,
                           const char *name, size_t count)
{
    int32_t drawn[VALUES_MAX];
    double values[VALUES_MAX];
    corpus_random(SEED, 0, update, draw, drawn, count, below);
    for (size_t i = 0; i < count; i++)
        values[i] = drawn[i];
    golden_check(golden, update + 1, GOLDEN_OUTPUT, name, values, count);
}

static void check_state(struct golden *golden, enum corpus_draw draw, const char *name)
{
    enum { COUNT = LAYERS * BATCH * HIDDEN };
    float drawn[COUNT];
    double values[COUNT];
    corpus_random_state(SEED, 0, draw, drawn, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        values[i] = drawn[i];
    golden_check(golden, 1, GOLDEN_OUTPUT, name, values, COUNT);
}

START_TEST(random_data_is_what_pytorch_was_given)
{
    struct golden *golden = golden_open("rnn_parallel_data", SEED, true);
    for (uint32_t update = 0; update < UPDATES; update++) {
        check_integers(golden, update, CORPUS_TOKENS, TOKENS, "tokens", LENGTH * BATCH);
        check_integers(golden, update, CORPUS_TARGETS, BATCH, "targets_batch", LENGTH * TOKENS);
        check_integers(golden, update, CORPUS_TARGETS, TOKENS, "targets_tokens", LENGTH * BATCH);
    }
    check_state(golden, CORPUS_HIDDEN, "hidden");
    check_state(golden, CORPUS_CELL, "cell");
    golden_assert_all(golden);
    golden_close(golden);
}
END_TEST

/* Whether 32 draws below 2^31 of this key are those of seed 1, trainer 0, update 0, tokens. */
static bool same_draws(uint64_t seed, uint32_t trainer, uint64_t update, enum corpus_draw draw)
{
    int32_t one[32], other[32];
    corpus_random(1, 0, 0, CORPUS_TOKENS, one, 32, 1U << 31);
    corpus_random(seed, trainer, update, draw, other, 32, 1U << 31);
    for (int i = 0; i < 32; i++)
        if (one[i] == other[i])
            return true;
    return false;
}

START_TEST(every_part_of_the_key_tells)
{
    float hidden[2][4];
    ck_assert(same_draws(1, 0, 0, CORPUS_TOKENS));
    ck_assert(!same_draws(2, 0, 0, CORPUS_TOKENS));
    ck_assert(!same_draws(1, 1, 0, CORPUS_TOKENS));
    ck_assert(!same_draws(1, 0, 1, CORPUS_TOKENS));
    ck_assert(!same_draws(1, 0, UINT64_C(1) << 32, CORPUS_TOKENS));
    ck_assert(!same_draws(1, 0, 0, CORPUS_TARGETS));
    corpus_random_state(1, 0, CORPUS_HIDDEN, hidden[0], 4);
    corpus_random_state(1, 1, CORPUS_HIDDEN, hidden[1], 4);
    for (int i = 0; i < 4; i++)
        ck_assert(hidden[0][i] != hidden[1][i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("corpus");
    TCase *text = tcase_create("text"), *batches = tcase_create("batches"),
          *data = tcase_create("random data");
    tcase_add_checked_fixture(text, open_folder, close_folder);
    tcase_add_loop_test(text, a_line_is_split_into_words, 0, (int)(sizeof splits / sizeof *splits));
    tcase_add_loop_test(text, a_long_text_is_read_in_pieces, 0, 6);
    tcase_add_test(text, a_large_text_tells_of_its_progress);
    tcase_add_test(text, the_last_lines_are_held_out);
    tcase_add_test(text, rare_words_are_unknown);
    tcase_add_test(text, a_checkpoints_vocabulary_is_gone_by);
    tcase_add_test(text, the_unigram_model_is_counted);
    tcase_add_loop_test(text, what_is_no_text_is_refused, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(text, a_zero_byte_is_no_text);
    tcase_add_test(text, the_longest_word_is_taken);
    tcase_add_test(text, a_fault_far_behind_has_its_line_and_column);
    tcase_add_loop_test(text, no_white_space_at_all, 0, 2);
    tcase_add_test(text, files_that_cannot_be_read);
    suite_add_tcase(suite, text);
    tcase_add_test(batches, columns_lie_beside_each_other);
    tcase_add_test(batches, a_parts_batches_are_counted);
    suite_add_tcase(suite, batches);
    tcase_add_test(data, random_data_is_what_pytorch_was_given);
    tcase_add_test(data, every_part_of_the_key_tells);
    suite_add_tcase(suite, data);
    return suite_run(suite);
}
