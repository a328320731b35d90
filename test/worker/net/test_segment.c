/* Shared memory by worker and bounds (worker/net/segment.h): the segments that each worker may map, and
 * refusals. Each check makes its own memfds at the workers' descriptors, as the supervisor does before it
 * starts them. */
#include "test/workplace.h"
#include "worker/net/segment.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OWNER = 20, PAGE = 4096 };

static struct segment segment, reader;
static struct error error;

static void setup(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(dup2(fd, SEGMENT_FD_FIRST + OWNER), SEGMENT_FD_FIRST + OWNER);
    close(fd);
    error = (struct error){0};
}

static void teardown(void)
{
    segment_detach(&segment);
    segment_detach(&reader);
    close(SEGMENT_FD_FIRST + OWNER);
}

static void create(size_t bytes)
{
    enum status status = segment_create(&segment, OWNER, bytes, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void expect_error(enum status status, enum status wanted, const char *words)
{
    ck_assert_int_eq(status, wanted);
    ck_assert_int_eq(error.status, wanted);
    ck_assert_msg(strstr(error.text, words) != NULL, "expected \"%s\" in: %s", words, error.text);
    ck_assert_ptr_null(segment.data);
    ck_assert_ptr_null(reader.data);
}

START_TEST(what_the_owner_writes_the_reader_reads)
{
    create(3 * PAGE - 5);
    ck_assert_uint_eq(segment.bytes, 3 * PAGE);
    ck_assert(segment.worker == OWNER);
    ck_assert_int_eq(segment_attach(&reader, OWNER, 3 * PAGE, &error), STATUS_OK);
    ck_assert(reader.worker == OWNER && reader.bytes == 3 * PAGE);
    memcpy(segment_at(&segment, PAGE, 6), "hello", 6);
    ck_assert_str_eq(segment_at(&reader, PAGE, 6), "hello");
}
END_TEST

/* The reader's own mistakes must not reach the owner's memory, also after the mapping was writable. */
START_TEST(a_reader_cannot_write)
{
    create(PAGE);
    ck_assert_int_eq(segment_attach(&reader, OWNER, 1, &error), STATUS_OK);
    segment_set_writable(&reader, true);
    reader.data[1] = 7;
    ck_assert_uint_eq(segment.data[1], 7);
    segment_set_writable(&reader, false);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile unsigned char *)reader.data = 1;
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    ck_assert_uint_eq(segment.data[0], 0);
}
END_TEST

/* Whoever holds the descriptor: the size that a reader has looked at is the size that stays. */
START_TEST(a_created_segments_size_is_sealed)
{
    create(2 * PAGE);
    ck_assert_int_ne(ftruncate(SEGMENT_FD_FIRST + OWNER, PAGE), 0);
    ck_assert_int_ne(ftruncate(SEGMENT_FD_FIRST + OWNER, 3 * PAGE), 0);
    segment_detach(&segment); /* a restarted owner must be able to write again */
    ck_assert_int_ne(fcntl(SEGMENT_FD_FIRST + OWNER, F_ADD_SEALS, F_SEAL_WRITE), 0);
}
END_TEST

START_TEST(a_restarted_owner_finds_what_was_there)
{
    create(PAGE);
    segment.data[7] = 42;
    segment_detach(&segment);
    create(PAGE - 1); /* the same number of pages */
    ck_assert_uint_eq(segment.data[7], 42);
    segment_detach(&segment);
    expect_error(segment_create(&segment, OWNER, PAGE + 1, &error), STATUS_INTERNAL,
                 "sealed at 4096 bytes: expected 8192");
}
END_TEST

/* The predecessor died between the two steps. */
START_TEST(one_that_was_sized_but_not_sealed_is_sized_anew)
{
    ck_assert_int_eq(ftruncate(SEGMENT_FD_FIRST + OWNER, 5 * PAGE), 0);
    create(2 * PAGE);
    ck_assert_uint_eq(segment.bytes, 2 * PAGE);
}
END_TEST

START_TEST(a_segment_that_is_not_sealed_is_not_mapped)
{
    expect_error(segment_attach(&reader, OWNER, 0, &error), STATUS_INVALID,
                 "worker 20's segment (0 bytes) is not sealed yet");
    ck_assert_int_eq(ftruncate(SEGMENT_FD_FIRST + OWNER, 2 * PAGE), 0);
    expect_error(segment_attach(&reader, OWNER, PAGE, &error), STATUS_INVALID, "is not sealed yet");
    ck_assert_int_eq(fcntl(SEGMENT_FD_FIRST + OWNER, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    expect_error(segment_attach(&reader, OWNER, PAGE, &error), STATUS_INVALID,
                 "is not sealed yet"); /* it may still grow */
    ck_assert_int_eq(fcntl(SEGMENT_FD_FIRST + OWNER, F_ADD_SEALS, F_SEAL_GROW), 0);
    expect_error(segment_attach(&reader, OWNER, 2 * PAGE + 1, &error), STATUS_INVALID,
                 "has 8192 bytes: expected at least 8193");
    ck_assert_int_eq(segment_attach(&reader, OWNER, 2 * PAGE, &error), STATUS_OK);
}
END_TEST

START_TEST(a_segment_that_was_sealed_empty_is_refused)
{
    ck_assert_int_eq(fcntl(SEGMENT_FD_FIRST + OWNER, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    expect_error(segment_attach(&reader, OWNER, 0, &error), STATUS_INVALID, "has 0 bytes");
}
END_TEST

/* There is no descriptor; or a file whose size cannot be sealed. For the owner this is a disagreement with
 * the supervisor, not a fault of the job file. */
START_TEST(only_a_memory_file_will_do)
{
    char wanted[64];
    close(SEGMENT_FD_FIRST + OWNER);
    if (_i == 1) {
        int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
        ck_assert_int_eq(dup2(fd, SEGMENT_FD_FIRST + OWNER), SEGMENT_FD_FIRST + OWNER);
        close(fd);
    }
    snprintf(wanted, sizeof wanted, "no memory file at descriptor %d", SEGMENT_FD_FIRST + OWNER);
    expect_error(segment_create(&segment, OWNER, PAGE, &error), STATUS_INTERNAL, wanted);
    expect_error(segment_attach(&reader, OWNER, PAGE, &error), STATUS_INVALID, wanted);
}
END_TEST

START_TEST(sizes_that_no_segment_can_have_are_refused)
{
    static const size_t sizes[] = {0, INT64_MAX, SIZE_MAX, SIZE_MAX - PAGE + 1};
    expect_error(segment_create(&segment, OWNER, sizes[_i], &error), STATUS_INVALID,
                 "worker 20's segment cannot have ");
}
END_TEST

START_TEST(a_place_is_within_the_segment_or_null)
{
    static const struct {
        uint64_t offset, bytes;
        bool there;
    } places[] = {
        {0, 0, true},
        {0, 2 * PAGE, true},
        {0, 2 * PAGE + 1, false},
        {64, 2 * PAGE - 64, true},
        {64, 2 * PAGE - 63, false},
        {1, 1, false},
        {32, 4, false},
        {2 * PAGE - 64, 64, true},
        {2 * PAGE, 0, true},
        {2 * PAGE, 1, false},
        {2 * PAGE + 64, 0, false},
        {64, UINT64_MAX, false},
        {64, UINT64_MAX - 63, false}, /* the sum is 0 */
        {UINT64_MAX - 63, 64, false}, /* likewise */
        {UINT64_MAX - 63, UINT64_MAX, false},
    };
    create(2 * PAGE);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        void *at = segment_at(&segment, places[i].offset, places[i].bytes);
        ck_assert_msg((at != NULL) == places[i].there, "place %zu", i);
        if (at != NULL)
            ck_assert_ptr_eq(at, segment.data + places[i].offset);
    }
    segment_detach(&segment);
    ck_assert_ptr_null(segment_at(&segment, 0, 0));
    segment_detach(&segment); /* a second time: nothing */
}
END_TEST

/* Sixteen gigabytes, of which one page is written: a server's slots hold its own part of each image alone. */
START_TEST(a_hole_costs_no_memory)
{
    const size_t large = (size_t)16 << 30;
    struct stat info;
    create(large);
    segment.data[large / 2] = 1;
    ck_assert_int_eq(segment_attach(&reader, OWNER, large, &error), STATUS_OK);
    ck_assert_uint_eq(reader.data[large / 2], 1);
    ck_assert_int_eq(fstat(SEGMENT_FD_FIRST + OWNER, &info), 0);
    ck_assert_int_le(info.st_blocks * 512, 2 << 20); /* one page, be it a huge one */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("segment");
    TCase *tests = tcase_create("segment");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, what_the_owner_writes_the_reader_reads);
    tcase_add_test(tests, a_reader_cannot_write);
    tcase_add_test(tests, a_created_segments_size_is_sealed);
    tcase_add_test(tests, a_restarted_owner_finds_what_was_there);
    tcase_add_test(tests, one_that_was_sized_but_not_sealed_is_sized_anew);
    tcase_add_test(tests, a_segment_that_is_not_sealed_is_not_mapped);
    tcase_add_test(tests, a_segment_that_was_sealed_empty_is_refused);
    tcase_add_loop_test(tests, only_a_memory_file_will_do, 0, 2);
    tcase_add_loop_test(tests, sizes_that_no_segment_can_have_are_refused, 0, 4);
    tcase_add_test(tests, a_place_is_within_the_segment_or_null);
    tcase_add_test(tests, a_hole_costs_no_memory);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
