/* Text from outside: the bytes of a character, the characters that may be shown, the distance of two words,
 * whole numbers. */
#include "kernels/base/text.h"

#include "test/workplace.h"

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static size_t encode(char out[4], uint32_t code, size_t size)
{
    static const unsigned char first[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    for (size_t i = size; i-- > 1; code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(first[size] | code);
    return size;
}

START_TEST(every_code_point_is_judged_rightly)
{
    static const uint32_t first_of_size[] = {0, 0, 0x80, 0x800, 0x10000, 0x200000};
    for (uint32_t code = 0; code < 0x200000; code++)
        for (size_t size = 1; size <= 4; size++) {
            char bytes[4];
            if (code >= first_of_size[size + 1])
                continue;
            encode(bytes, code, size);
            bool overlong = code < first_of_size[size] && size > 1;
            bool surrogate = code >= 0xD800 && code <= 0xDFFF;
            bool good = !overlong && !surrogate && code <= 0x10FFFF;
            /* ck_assert_msg writes to a pipe at every call: too slow for millions. */
            if (text_character(bytes, size) != (good ? size : 0) || text_character(bytes, size - 1) != 0)
                ck_abort_msg("U+%04X in %zu bytes, or torn", code, size);
        }
    for (int byte = 0x80; byte < 0x100; byte++) {
        char bytes[] = {(char)byte, 'a', 'a', 'a'};
        ck_assert_uint_eq(text_character(bytes, 4), 0);
    }
}
END_TEST

START_TEST(what_is_shown_is_harmless_and_bounded)
{
    char out[512];
    text_show(out, sizeof out, "plain, \xC3\xA9", 9, 40);
    ck_assert_str_eq(out, "plain, \xC3\xA9");
    text_show(out, sizeof out, "\x1B[31m\x7F\xC2\x9B\xFF\xE2\x80\x8B\xF3\xA0\x81\x81", 16, 40);
    ck_assert_str_eq(out, "\\u001b[31m\\u007f\\u009b\\xff\\u200b\\U000e0041");
    text_show(out, sizeof out, "abcdef", 6, 6);
    ck_assert_str_eq(out, "abcdef");
    text_show(out, sizeof out, "abcdefg", 7, 6);
    ck_assert_str_eq(out, "abcdef...");
    for (size_t size = 8; size < 40; size++) {
        memset(out, '#', sizeof out);
        size_t written = text_show(out, size, "\xF0\x9F\x98\x80\x01\xFFxyz\xC3\xA9\xC3\xA9\xC3\xA9", 15, 40);
        ck_assert_uint_lt(written, size);
        ck_assert_uint_eq(strlen(out), written);
        ck_assert_int_eq(out[size], '#');
    }
    ck_assert_uint_eq(text_show(out, sizeof out, "", 0, 40), 0);
}
END_TEST

START_TEST(a_string_is_escaped)
{
    static const char text[] = "a\"b\\c\n\x01\x1F\x7F\xC3\xA9";
    char out[64] = "", piece[TEXT_ESCAPED_BYTES];
    for (const char *at = text; *at != '\0'; at++)
        strcat(out, text_escape(piece, *at));
    ck_assert_str_eq(out, "a\\\"b\\\\c\\n\\u0001\\u001f\x7F\xC3\xA9");
}
END_TEST

START_TEST(distances)
{
    static const struct {
        const char *a, *b;
        size_t distance;
    } pairs[] = {
        {"", "", 0},           {"", "abc", 3},           {"count", "count", 0}, {"cuont", "count", 1},
        {"Count", "cOUNT", 0}, {"counts", "count", 1},   {"cont", "count", 1},  {"coumt", "count", 1},
        {"ca", "abc", 3},      {"kitten", "sitting", 3},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        ck_assert_uint_eq(text_distance(pairs[i].a, pairs[i].b), pairs[i].distance);
        ck_assert_uint_eq(text_distance(pairs[i].b, pairs[i].a), pairs[i].distance);
    }
    char word[64];
    memset(word, 'a', sizeof word);
    word[41] = '\0';
    ck_assert_uint_eq(text_distance(word, word), SIZE_MAX);
    word[40] = '\0';
    ck_assert_uint_eq(text_distance(word, word), 0);
}
END_TEST

START_TEST(whole_numbers)
{
    static const struct {
        const char *text;
        uint64_t max, value;
    } good[] = {{"0", 0, 0}, {"7", 7, 7}, {"007", 100, 7}, {"18446744073709551615", UINT64_MAX, UINT64_MAX}};
    static const struct {
        const char *text;
        uint64_t max;
    } bad[] = {{NULL, 9}, {"", 9},   {"8", 7},  {"-1", UINT64_MAX}, {"+1", 9},
               {" 1", 9}, {"1 ", 9}, {"1s", 9}, {"0x1", 9},         {"18446744073709551616", UINT64_MAX},
               {"a", 9},  {"1.", 9}, {"1e0", 9}};
    uint64_t value = 42;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert(!text_integer(bad[i].text, bad[i].max, &value));
    ck_assert_uint_eq(value, 42);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert(text_integer(good[i].text, good[i].max, &value));
        ck_assert_uint_eq(value, good[i].value);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("text");
    TCase *text = tcase_create("text");
    tcase_add_test(text, every_code_point_is_judged_rightly);
    tcase_add_test(text, what_is_shown_is_harmless_and_bounded);
    tcase_add_test(text, a_string_is_escaped);
    tcase_add_test(text, distances);
    tcase_add_test(text, whole_numbers);
    suite_add_tcase(suite, text);
    return suite_run(suite);
}
