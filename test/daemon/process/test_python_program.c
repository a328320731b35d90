/* Another program, run between files in memory (daemon/process/python_program.h). */
#include "daemon/process/python_program.h"
#include "kernels/base/file.h"
#include "test/workplace.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static struct program program;

static void open_program(void)
{
    struct error error = {0};
    ck_assert_msg(program_open(&program, &error) == STATUS_OK, "%s", error.text);
}

static void close_program(void)
{
    program_close(&program);
}

/* Runs `script`; waitpid's status. */
static int run_shell(const char *script)
{
    char text[8192], name[] = "sh", option[] = "-c";
    char *const argv[] = {name, option, text, NULL};
    struct error error = {0};
    int how = -1;
    snprintf(text, sizeof text, "%s", script);
    ck_assert_msg(program_run(&program, argv, &how, &error) == STATUS_OK, "%s", error.text);
    return how;
}

START_TEST(reads_its_input_and_prints)
{
    char got[64] = {0};
    ck_assert(file_write(program.input, "one\ntwo\n", 8));
    ck_assert_int_eq(run_shell("sed s/o/0/; echo words >&2"), 0);
    ck_assert_int_eq(file_read_at(program.output, got, sizeof got, 0), 8);
    ck_assert_str_eq(got, "0ne\ntw0\n");
    char words[PROGRAM_WORDS_BYTES];
    program_read_words(words, &program);
    ck_assert_str_eq(words, "words\n");
}
END_TEST

START_TEST(the_last_words_are_kept)
{
    char words[PROGRAM_WORDS_BYTES];
    ck_assert_int_eq(run_shell("yes above | head -n 2000 >&2; echo last >&2"), 0);
    program_read_words(words, &program);
    ck_assert_uint_eq(strlen(words), PROGRAM_WORDS_BYTES - 1);
    ck_assert_str_eq(words + strlen(words) - 11, "above\nlast\n");
}
END_TEST

START_TEST(a_zero_ends_no_words)
{
    char words[PROGRAM_WORDS_BYTES];
    ck_assert_int_eq(run_shell("printf 'a\\0b\\n' >&2"), 0);
    program_read_words(words, &program);
    ck_assert_str_eq(words, "a b\n");
}
END_TEST

START_TEST(its_end_is_heard_where_children_were_ignored)
{
    signal(SIGCHLD, SIG_IGN);
    ck_assert_int_eq(run_shell("exit 3") >> 8, 3);
}
END_TEST

START_TEST(its_end_has_a_name)
{
    char end[32];
    program_name_end(end, run_shell("exit 3"));
    ck_assert_str_eq(end, "exit code 3");
    program_name_end(end, run_shell("kill -9 $$"));
    ck_assert_str_eq(end, "signal 9");
}
END_TEST

START_TEST(a_program_is_a_path_or_a_name_in_path)
{
    ck_assert(program_exists("sh"));
    ck_assert(program_exists("/bin/sh"));
    ck_assert(!program_exists("/bin/no-such-shell"));
    ck_assert(!program_exists("coalesced-has-no-such-program"));
}
END_TEST

START_TEST(a_program_that_is_not_there)
{
    char name[] = "coalesced-has-no-such-program";
    char *const argv[] = {name, NULL};
    struct error error = {0};
    int how;
    ck_assert_int_eq(program_run(&program, argv, &how, &error), STATUS_NOT_FOUND);
    ck_assert_str_eq(error.text,
                     "coalesced-has-no-such-program: expected a program, a path or a name in PATH");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("python_program");
    TCase *runs = tcase_create("runs");
    tcase_add_checked_fixture(runs, open_program, close_program);
    tcase_add_test(runs, reads_its_input_and_prints);
    tcase_add_test(runs, the_last_words_are_kept);
    tcase_add_test(runs, a_zero_ends_no_words);
    tcase_add_test(runs, its_end_is_heard_where_children_were_ignored);
    tcase_add_test(runs, its_end_has_a_name);
    tcase_add_test(runs, a_program_is_a_path_or_a_name_in_path);
    tcase_add_test(runs, a_program_that_is_not_there);
    suite_add_tcase(suite, runs);
    return suite_run(suite);
}
