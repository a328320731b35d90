/* Where a plug-in of environments is looked for, and what is said when there is none. */
#include "test/worker/environment/preloads.h"
#include "test/workplace.h"

#include <stdlib.h>

static struct error error;

/* The folder of the test's plug-ins is that of the program's own, and the working directory is empty. */
static char elsewhere[] = "/tmp/environment_load.XXXXXX";

static void move_elsewhere(void)
{
    char folder[PATH_MAX + 64];
    snprintf(folder, sizeof folder, "%s", preload_path("environment_toy"));
    *strrchr(folder, '/') = '\0';
    ck_assert_int_eq(setenv("COALESCED_PLUGINS", folder, 1), 0);
    ck_assert_ptr_nonnull(mkdtemp(elsewhere));
    ck_assert_int_eq(chdir(elsewhere), 0);
}

static void move_back(void)
{
    unlink("environment_toy.so");
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(elsewhere), 0);
}

START_TEST(a_bare_name_is_that_of_a_plugin_of_the_program)
{
    const struct environment_plugin *plugin = NULL;
    ck_assert_int_eq(environment_check_file("environment_toy.so", &error), STATUS_OK);
    ck_assert_int_eq(environment_load(&plugin, "environment_toy.so", &error), STATUS_OK);
    ck_assert_ptr_eq(plugin, preload("environment_toy"));
}
END_TEST

START_TEST(a_path_is_taken_as_it_is)
{
    const struct environment_plugin *plugin = NULL;
    ck_assert_int_eq(environment_load(&plugin, "./environment_toy.so", &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "./environment_toy.so"));
}
END_TEST

START_TEST(the_working_directory_comes_first)
{
    const struct environment_plugin *plugin = NULL;
    ck_assert_int_eq(symlink(preload_path("environment_broken"), "environment_toy.so"), 0);
    ck_assert_int_eq(environment_load(&plugin, "environment_toy.so", &error), STATUS_OK);
    ck_assert_ptr_eq(plugin, preload("environment_broken"));
}
END_TEST

START_TEST(a_name_that_no_folder_has_is_told)
{
    ck_assert_int_eq(environment_check_file("environment_none.so", &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "environment_none.so"));
    ck_assert_int_eq(environment_check_file("CartPole-v7", &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "CartPole-v1"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environment_load");
    TCase *cases = tcase_create("folders");
    tcase_add_checked_fixture(cases, move_elsewhere, move_back);
    tcase_add_test(cases, a_bare_name_is_that_of_a_plugin_of_the_program);
    tcase_add_test(cases, a_path_is_taken_as_it_is);
    tcase_add_test(cases, the_working_directory_comes_first);
    tcase_add_test(cases, a_name_that_no_folder_has_is_told);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
