/* Failures as numbers, names, exit codes and sentences (kernels/base/status.h). */
#include "kernels/base/status.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The numbers are the wire's and the exit codes are the manual's: both are written out here, not taken from
 * the header that is under test. */
static const struct {
    enum status status;
    int number;
    const char *name;
    int exit_code;
} statuses[] = {
    {STATUS_OK, 0, "ok", 0},
    {STATUS_AGAIN, 1, "again", 75},
    {STATUS_INVALID, 2, "invalid", 78},
    {STATUS_NOT_FOUND, 3, "not found", 66},
    {STATUS_PERMISSION, 4, "permission", 77},
    {STATUS_TIMEOUT, 5, "timeout", 70},
    {STATUS_PEER_DIED, 6, "peer died", 70},
    {STATUS_SHUTDOWN, 7, "shutdown", 0},
    {STATUS_BUSY, 8, "busy", 75},
    {STATUS_NO_MEMORY, 9, "no memory", 70},
    {STATUS_IO, 10, "i/o", 74},
    {STATUS_CORRUPT, 11, "corrupt", 65},
    {STATUS_UNAVAILABLE, 12, "unavailable", 69},
    {STATUS_INTERNAL, 13, "internal", 70},
};
enum { STATUSES = sizeof statuses / sizeof *statuses };

START_TEST(every_status_has_its_number_name_and_exit_code)
{
    ck_assert_int_eq(STATUS_COUNT, STATUSES);
    ck_assert_int_eq(statuses[_i].status, statuses[_i].number);
    ck_assert_str_eq(status_name(statuses[_i].status), statuses[_i].name);
    ck_assert_int_eq(status_exit_code(statuses[_i].status), statuses[_i].exit_code);
}
END_TEST

/* Statuses come over the wire, so that a number of no status must be answered too. */
START_TEST(a_number_of_no_status_is_unknown_and_internal)
{
    static const unsigned numbers[] = {STATUS_COUNT, STATUS_COUNT + 1, 255, 0x7fffffff, 0xffffffff};
    enum status status;
    memcpy(&status, &numbers[_i], sizeof status);
    ck_assert_str_eq(status_name(status), "unknown status");
    ck_assert_int_eq(status_exit_code(status), 70);
}
END_TEST

START_TEST(an_error_takes_status_and_sentence_and_returns_the_status)
{
    struct error error = {0};
    ck_assert_int_eq(error_set(&error, STATUS_CORRUPT, "%s has %d bytes", "a.bin", 7), STATUS_CORRUPT);
    ck_assert_int_eq(error.status, STATUS_CORRUPT);
    ck_assert_str_eq(error.text, "a.bin has 7 bytes");
    ck_assert_int_eq(error_set(&error, STATUS_BUSY, "later"), STATUS_BUSY);
    ck_assert_int_eq(error.status, STATUS_BUSY);
    ck_assert_str_eq(error.text, "later");
}
END_TEST

START_TEST(who_wants_no_sentence_still_gets_the_status)
{
    ck_assert_int_eq(error_set(NULL, STATUS_TIMEOUT, "nobody reads %s", "this"), STATUS_TIMEOUT);
    ck_assert_int_eq(error_set_errno(NULL, ENOENT, "nor this"), STATUS_NOT_FOUND);
}
END_TEST

/* The struct, and behind it a byte that no text may touch. */
struct guarded {
    struct error error;
    char fence[8];
};

static const char fence[8] = "|fence|";

static void expect_cut(const struct guarded *guarded, const char *all)
{
    ck_assert_uint_eq(strlen(guarded->error.text), ERROR_TEXT_BYTES - 1);
    ck_assert_int_eq(strncmp(guarded->error.text, all, ERROR_TEXT_BYTES - 1), 0);
    ck_assert_mem_eq(guarded->fence, fence, sizeof fence);
}

START_TEST(a_long_text_is_cut_at_the_structs_end)
{
    struct guarded guarded = {.fence = "|fence|"};
    char all[2 * ERROR_TEXT_BYTES];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (char)('a' + i % 26);
    all[sizeof all - 1] = '\0';
    error_set(&guarded.error, STATUS_IO, "%s", all);
    expect_cut(&guarded, all);
    error_set_errno(&guarded.error, ENOSPC, "%s", all);
    expect_cut(&guarded, all);
}
END_TEST

/* Around the end: the text fits, and the system's words do in part, to the last byte, or not at all. */
START_TEST(the_systems_words_are_cut_at_the_structs_end)
{
    const char *words = strerror(ENOSPC);
    for (size_t length = ERROR_TEXT_BYTES - strlen(words) - 4; length < ERROR_TEXT_BYTES; length++) {
        struct guarded guarded = {.fence = "|fence|"};
        char text[ERROR_TEXT_BYTES], all[2 * ERROR_TEXT_BYTES];
        memset(text, 'x', length);
        text[length] = '\0';
        int whole = snprintf(all, sizeof all, "%s: %s", text, words);
        error_set_errno(&guarded.error, ENOSPC, "%s", text);
        if (whole < ERROR_TEXT_BYTES)
            ck_assert_str_eq(guarded.error.text, all);
        else
            expect_cut(&guarded, all);
        ck_assert_mem_eq(guarded.fence, fence, sizeof fence);
    }
}
END_TEST

static const struct {
    int errnum;
    enum status status;
} errnos[] = {
    {ENOENT, STATUS_NOT_FOUND},  {ENOTDIR, STATUS_NOT_FOUND},
    {EACCES, STATUS_PERMISSION}, {EPERM, STATUS_PERMISSION},
    {EROFS, STATUS_PERMISSION},  {ENOMEM, STATUS_NO_MEMORY},
    {ENOSPC, STATUS_IO},         {EIO, STATUS_IO},
    {EMFILE, STATUS_IO},         {ECONNREFUSED, STATUS_IO},
};
enum { ERRNOS = sizeof errnos / sizeof *errnos };

START_TEST(errno_chooses_the_status_and_adds_its_words)
{
    struct error error = {0};
    char wanted[ERROR_TEXT_BYTES];
    snprintf(wanted, sizeof wanted, "cannot open job 3: %s", strerror(errnos[_i].errnum));
    ck_assert_int_eq(error_set_errno(&error, errnos[_i].errnum, "cannot open job %d", 3), errnos[_i].status);
    ck_assert_int_eq(error.status, errnos[_i].status);
    ck_assert_str_eq(error.text, wanted);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status");
    TCase *base = tcase_create("status");
    tcase_add_loop_test(base, every_status_has_its_number_name_and_exit_code, 0, STATUSES);
    tcase_add_loop_test(base, a_number_of_no_status_is_unknown_and_internal, 0, 5);
    tcase_add_test(base, an_error_takes_status_and_sentence_and_returns_the_status);
    tcase_add_test(base, who_wants_no_sentence_still_gets_the_status);
    tcase_add_test(base, a_long_text_is_cut_at_the_structs_end);
    tcase_add_test(base, the_systems_words_are_cut_at_the_structs_end);
    tcase_add_loop_test(base, errno_chooses_the_status_and_adds_its_words, 0, ERRNOS);
    suite_add_tcase(suite, base);
    return suite_run(suite);
}
