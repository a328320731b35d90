/* Where the program of workers in Python lies (daemon/process/python_program.h). */
#include "daemon/process/python_program.h"
#include "test/workplace.h"

#include <check.h>

START_TEST(a_program_is_a_path_or_a_name_in_path)
{
    ck_assert(program_exists("sh"));
    ck_assert(program_exists("/bin/sh"));
    ck_assert(!program_exists("/bin/no-such-shell"));
    ck_assert(!program_exists("coalesced-has-no-such-program"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("python_program");
    TCase *finds = tcase_create("finds");
    tcase_add_test(finds, a_program_is_a_path_or_a_name_in_path);
    suite_add_tcase(suite, finds);
    return suite_run(suite);
}
