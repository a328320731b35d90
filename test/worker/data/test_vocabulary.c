/* Vocabularies: built from counted words, as text, and read back; and their table of words. */
#include "test/workplace.h"
#include "worker/data/vocabulary.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 5000 };

static struct vocabulary *vocabulary;

static void close_vocabulary(void)
{
    vocabulary_free(vocabulary);
    vocabulary = NULL;
}

static void add(struct vocabulary *words, const char *word)
{
    uint32_t number;
    ck_assert(vocabulary_add(words, word, strlen(word), &number));
}

static void expect_text(const char *expected)
{
    size_t bytes;
    char *text = vocabulary_format(vocabulary, &bytes);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(bytes, strlen(expected));
    ck_assert_mem_eq(text, expected, bytes);
    free(text);
}

/* ---- the table ---- */

static struct vocabulary *two_names(void)
{
    struct vocabulary *words;
    struct error error = {0};
    ck_assert_msg(vocabulary_new(&words, &error) == STATUS_OK, "%s", error.text);
    return words;
}

START_TEST(words_have_their_numbers_for_good)
{
    char word[16];
    uint32_t number;
    vocabulary = two_names();
    for (int again = 0; again < 2; again++)
        for (uint32_t i = 2; i < MANY; i++) {
            const int bytes = snprintf(word, sizeof word, "w%u", i);
            ck_assert(vocabulary_add(vocabulary, word, (size_t)bytes, &number));
            ck_assert_uint_eq(number, i);
        }
    ck_assert_uint_eq(vocabulary_size(vocabulary), MANY);
    for (uint32_t i = 2; i < MANY; i++) {
        const int bytes = snprintf(word, sizeof word, "w%u", i);
        ck_assert_uint_eq(vocabulary_find(vocabulary, word, (size_t)bytes), i);
        ck_assert_str_eq(vocabulary_word(vocabulary, i), word);
        ck_assert_uint_eq(vocabulary_word_bytes(vocabulary, i), (size_t)bytes);
    }
    ck_assert_uint_eq(vocabulary_find(vocabulary, "w", 1), VOCABULARY_UNKNOWN);
    ck_assert_uint_eq(vocabulary_find(vocabulary, "w20", 2), 2);
}
END_TEST

START_TEST(a_word_is_bytes)
{
    uint32_t number;
    vocabulary = two_names();
    ck_assert(vocabulary_add(vocabulary, "", 0, &number));
    ck_assert(vocabulary_add(vocabulary, "a\0b", 3, &number));
    ck_assert_uint_eq(number, 3);
    ck_assert_uint_eq(vocabulary_find(vocabulary, "a", 1), VOCABULARY_UNKNOWN);
    ck_assert_uint_eq(vocabulary_find(vocabulary, "a\0c", 3), VOCABULARY_UNKNOWN);
    ck_assert_uint_eq(vocabulary_find(vocabulary, "a\0b", 3), 3);
    ck_assert_uint_eq(vocabulary_find(vocabulary, "", 0), 2);
}
END_TEST

/* ---- building ---- */

/* Words in the order of coming, with their counts; what of the two names was seen does not matter. */
static enum status build(uint64_t minimum_count, struct error *error)
{
    static const uint64_t counts[] = {0, 9, 2, 3, 2, 1, 3};
    struct vocabulary *words = two_names();
    add(words, "pear");
    add(words, "fig");
    add(words, "apple");
    add(words, "quince");
    add(words, "\xC3\xA4pfel");
    enum status status = vocabulary_build(&vocabulary, words, counts, minimum_count, error);
    vocabulary_free(words);
    return status;
}

START_TEST(words_go_by_count_then_by_bytes)
{
    struct error error = {0};
    ck_assert_int_eq(build(1, &error), STATUS_OK);
    expect_text("<unk>\n<eos>\nfig\n\xC3\xA4pfel\napple\npear\nquince\n");
    ck_assert_uint_eq(vocabulary_size(vocabulary), 7);
    ck_assert_str_eq(vocabulary_word(vocabulary, 4), "apple");
    ck_assert_uint_eq(vocabulary_find(vocabulary, "apple", 5), 4);
    ck_assert_uint_eq(vocabulary_find(vocabulary, "<eos>", 5), VOCABULARY_END_OF_LINE);
    ck_assert_uint_eq(vocabulary_find(vocabulary, "appl", 4), VOCABULARY_UNKNOWN);
}
END_TEST

START_TEST(rare_words_are_left_out)
{
    struct error error = {0};
    ck_assert_int_eq(build(3, &error), STATUS_OK);
    expect_text("<unk>\n<eos>\nfig\n\xC3\xA4pfel\n");
    ck_assert_uint_eq(vocabulary_find(vocabulary, "apple", 5), VOCABULARY_UNKNOWN);
    close_vocabulary();
    ck_assert_int_eq(build(4, &error), STATUS_OK);
    expect_text("<unk>\n<eos>\n");
}
END_TEST

/* A million words take the sanitizers' builds half a minute. */
static bool left_out(void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    printf("skipped under this sanitizer: a vocabulary of too many words\n");
    return true;
#else
    return false;
#endif
}

/* Two names and one word too many, each seen once; then all but the last. */
START_TEST(too_many_words_are_refused)
{
    if (left_out())
        return;
    struct vocabulary *words = two_names();
    struct error error = {0};
    char word[16];
    const size_t count = VOCABULARY_WORDS_MAX + 1;
    uint64_t *counts = calloc(count, sizeof *counts);
    ck_assert_ptr_nonnull(counts);
    for (size_t i = 2; i < count; i++) {
        snprintf(word, sizeof word, "%zu", i);
        add(words, word);
        counts[i] = 1;
    }
    ck_assert_int_eq(vocabulary_build(&vocabulary, words, counts, 1, &error), STATUS_INVALID);
    ck_assert_ptr_null(vocabulary);
    ck_assert_str_eq(error.text,
                     "1048575 words are seen 1 times or more, expected at most 1048574: raise the "
                     "minimum");
    counts[count - 1] = 0;
    ck_assert_int_eq(vocabulary_build(&vocabulary, words, counts, 1, &error), STATUS_OK);
    ck_assert_uint_eq(vocabulary_size(vocabulary), VOCABULARY_WORDS_MAX);
    free(counts);
    vocabulary_free(words);
}
END_TEST

/* ---- text ---- */

START_TEST(text_is_read_back)
{
    static const char text[] = "<unk>\n<eos>\nthe\n,\nfool's\n\xE6\xBC\xA2\n";
    struct error error = {0};
    ck_assert_int_eq(vocabulary_parse(&vocabulary, "fruit.txt", text, sizeof text - 1, &error), STATUS_OK);
    ck_assert_uint_eq(vocabulary_size(vocabulary), 6);
    ck_assert_str_eq(vocabulary_word(vocabulary, 4), "fool's");
    ck_assert_uint_eq(vocabulary_find(vocabulary, "\xE6\xBC\xA2", 3), 5);
    expect_text(text);
}
END_TEST

#define BYTES_51 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxy"
#define BYTES_255 BYTES_51 BYTES_51 BYTES_51 BYTES_51 BYTES_51

static const struct bad {
    const char *text, *words;
} bad[] = {
    {"", "line 1: nothing, expected \"<unk>\""},
    {"<unk>\n", "line 2: nothing, expected \"<eos>\""},
    {"<eos>\n<unk>\n", "line 1: expected \"<unk>\", got \"<eos>\""},
    {"<unk>\nthe\n", "line 2: expected \"<eos>\", got \"the\""},
    {"<unk>\n<eos>\nthe", "line 3: cut off, expected a newline"},
    {"<unk>\n<eos>\n\nthe\n", "line 3: empty, expected a word"},
    {"<unk>\n<eos>\nthe\nfig\nthe\n", "line 5: \"the\" stands in line 3 already"},
    {"<unk>\n<eos>\n<unk>\n", "line 3: \"<unk>\" stands in line 1 already"},
    {"<unk>\n<eos>\nf\xFFg\n", "line 3: not UTF-8 (byte 0xff at column 2)"},
    {"<unk>\n<eos>\nf\xC3\n", "line 3: not UTF-8 (byte 0xc3 at column 2)"},
    {"<unk>\n<eos>\na fig\n", "line 3: white space in a word (byte 0x20 at column 2)"},
    {"<unk>\r\n<eos>\r\n", "line 1: white space in a word (byte 0x0d at column 6)"},
    {"<unk>\n<eos>\na\xC2\xA0g\n", "line 3: white space in a word (byte 0xc2 at column 2)"},
    {"<unk>\n<eos>\n\x1B[1m\n", "line 3: a control character in a word (byte 0x1b at column 1)"},
    {"<unk>\n<eos>\n" BYTES_255 "z\n", "line 3: a word of 256 bytes, expected at most 255"},
};

START_TEST(bad_text_is_refused_with_its_file_and_line)
{
    struct error error = {0};
    const enum status status =
        vocabulary_parse(&vocabulary, "fruit.txt", bad[_i].text, strlen(bad[_i].text), &error);
    ck_assert_int_eq(status, STATUS_CORRUPT);
    ck_assert_ptr_null(vocabulary);
    char expected[ERROR_TEXT_BYTES];
    snprintf(expected, sizeof expected, "fruit.txt: %s", bad[_i].words);
    ck_assert_str_eq(error.text, expected);
}
END_TEST

START_TEST(a_zero_byte_is_refused)
{
    static const char text[] = "<unk>\n<eos>\na\0b\n";
    struct error error = {0};
    ck_assert_int_eq(vocabulary_parse(&vocabulary, "fruit.txt", text, sizeof text - 1, &error),
                     STATUS_CORRUPT);
    ck_assert_str_eq(error.text, "fruit.txt: line 3: a control character in a word (byte 0x00 at column 2)");
}
END_TEST

START_TEST(the_longest_word_is_taken)
{
    static const char text[] = "<unk>\n<eos>\n" BYTES_255 "\n";
    struct error error = {0};
    ck_assert_int_eq(vocabulary_parse(&vocabulary, "fruit.txt", text, sizeof text - 1, &error), STATUS_OK);
    ck_assert_uint_eq(strlen(vocabulary_word(vocabulary, 2)), VOCABULARY_WORD_BYTES_MAX);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("vocabulary");
    TCase *table = tcase_create("table"), *text = tcase_create("text");
    tcase_add_test(table, words_have_their_numbers_for_good);
    tcase_add_test(table, a_word_is_bytes);
    suite_add_tcase(suite, table);
    tcase_add_checked_fixture(text, NULL, close_vocabulary);
    tcase_add_test(text, words_go_by_count_then_by_bytes);
    tcase_add_test(text, rare_words_are_left_out);
    tcase_add_test(text, too_many_words_are_refused);
    tcase_add_test(text, text_is_read_back);
    tcase_add_loop_test(text, bad_text_is_refused_with_its_file_and_line, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(text, a_zero_byte_is_refused);
    tcase_add_test(text, the_longest_word_is_taken);
    suite_add_tcase(suite, text);
    return suite_run(suite);
}
