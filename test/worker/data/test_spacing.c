/* Tokens in a line as people write them. */
#include "test/workplace.h"
#include "worker/data/tokenize.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* The tokens of `tokens`, which spaces part there, give `line`. */
static void expect(const char *tokens, const char *line)
{
    char copy[256], written[256], *rest;
    size_t length = 0;
    const char *before = NULL;
    snprintf(copy, sizeof copy, "%s", tokens);
    for (char *token = strtok_r(copy, " ", &rest); token != NULL; token = strtok_r(NULL, " ", &rest)) {
        length += (size_t)snprintf(written + length, sizeof written - length, "%s%s",
                                   spacing_between(before, token) ? " " : "", token);
        before = token;
    }
    ck_assert_str_eq(written, line);
}

START_TEST(punctuation_stands_where_people_put_it)
{
    expect("ye shall , and they ; ( as I said ) !", "ye shall, and they; (as I said)!");
    expect("\xC2\xBF Qu\xC3\xA9 ? \xE2\x80\x9C no , \xE2\x80\x9D he said \xE2\x80\xA6",
           "\xC2\xBFQu\xC3\xA9? \xE2\x80\x9Cno,\xE2\x80\x9D he said\xE2\x80\xA6");
    expect("the fathers ' house : <unk> .", "the fathers' house: <unk>.");
    expect(", and ( [ x ] ) .", ", and ([x]).");
}
END_TEST

START_TEST(everything_else_is_spaced)
{
    expect("a - b \" c \" & d", "a - b \" c \" & d");
    expect("3.14 ... fool's \xC3\xBC", "3.14 ... fool's \xC3\xBC");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spacing");
    TCase *tests = tcase_create("lines");
    tcase_add_test(tests, punctuation_stands_where_people_put_it);
    tcase_add_test(tests, everything_else_is_spaced);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
