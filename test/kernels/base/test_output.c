/* Output files: whole under their name, or not there. */
#include "kernels/base/output.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[128], beside[136];
static struct output output;

static void set_up(void)
{
    workplace_open();
    snprintf(path, sizeof path, "%.63s/file", workplace.folder);
    snprintf(beside, sizeof beside, "%s.tmp", path);
}

static void expect_file(const char *text)
{
    char *bytes = file_read(path);
    ck_assert_str_eq(bytes, text);
    free(bytes);
    ck_assert_int_ne(access(beside, F_OK), 0);
}

START_TEST(a_whole_file_replaces_the_earlier_one)
{
    text_write(path, "earlier");
    ck_assert(output_open(&output, path));
    ck_assert_int_gt(fprintf(output.file, "later"), 0);
    ck_assert_int_eq(fflush(output.file), 0);
    char *bytes = file_read(path);
    ck_assert_str_eq(bytes, "earlier");
    free(bytes);
    ck_assert(output_close(&output, true));
    expect_file("later");
    ck_assert(!output_close(&output, true)); /* it is closed */
}
END_TEST

START_TEST(a_file_that_is_not_whole_leaves_the_earlier_one)
{
    text_write(path, "earlier");
    ck_assert(output_open(&output, path));
    ck_assert_int_gt(fprintf(output.file, "la"), 0);
    ck_assert(!output_close(&output, false));
    expect_file("earlier");
}
END_TEST

/* The text fits the buffer; writing it out fails. */
START_TEST(a_full_disk_leaves_the_earlier_one)
{
    text_write(path, "earlier");
    ck_assert(output_open(&output, path));
    ck_assert_ptr_nonnull(freopen("/dev/full", "w", output.file));
    ck_assert_int_gt(fprintf(output.file, "later"), 0);
    ck_assert(!output_close(&output, true));
    ck_assert_int_eq(errno, ENOSPC);
    expect_file("earlier");
}
END_TEST

START_TEST(what_a_killed_command_has_left_is_no_obstacle)
{
    text_write(beside, "half");
    ck_assert_int_eq(chmod(beside, 0), 0);
    ck_assert(output_open(&output, path));
    ck_assert(output_close(&output, true));
    expect_file("");
}
END_TEST

START_TEST(a_device_is_written_to)
{
    struct stat info;
    ck_assert(output_open(&output, "/dev/null"));
    ck_assert(output_close(&output, true));
    ck_assert_int_eq(stat("/dev/null", &info), 0);
    ck_assert(S_ISCHR(info.st_mode));
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_an_error)
{
    strcpy(strrchr(path, '/'), "/nowhere/file");
    ck_assert(!output_open(&output, path));
    ck_assert_int_eq(errno, ENOENT);
    ck_assert(!output_close(&output, true));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("output");
    TCase *tcase = tcase_create("files");
    tcase_add_checked_fixture(tcase, set_up, workplace_close);
    tcase_add_test(tcase, a_whole_file_replaces_the_earlier_one);
    tcase_add_test(tcase, a_file_that_is_not_whole_leaves_the_earlier_one);
    tcase_add_test(tcase, a_full_disk_leaves_the_earlier_one);
    tcase_add_test(tcase, what_a_killed_command_has_left_is_no_obstacle);
    tcase_add_test(tcase, a_device_is_written_to);
    tcase_add_test(tcase, a_folder_that_is_not_there_is_an_error);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
