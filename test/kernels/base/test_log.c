/* The daemon's own messages (kernels/base/log.h). Standard error is a socket of packets here, so that a
 * packet is a write: a line that left in two would be heard as two. */
#include "kernels/base/log.h"
#include "test/workplace.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 1000 };

static int ears, old_stderr;

static void listen_to_stderr(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    ears = pair[0];
    old_stderr = dup(STDERR_FILENO);
    ck_assert_int_eq(dup2(pair[1], STDERR_FILENO), STDERR_FILENO);
    close(pair[1]);
    unsetenv("JOURNAL_STREAM");
}

static void stop_listening(void)
{
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    close(ears);
}

/* The next write's bytes, zero-terminated; "" when there was none. */
static const char *heard(void)
{
    static char line[4 * LINE_BYTES_MAX];
    ssize_t got = recv(ears, line, sizeof line - 1, MSG_DONTWAIT);
    line[got > 0 ? got : 0] = '\0';
    return line;
}

START_TEST(a_line_is_one_write)
{
    log_info("%s has %d rows", "batch", 12);
    log_info("and on");
    ck_assert_str_eq(heard(), "coalesced: batch has 12 rows\n");
    ck_assert_str_eq(heard(), "coalesced: and on\n");
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(the_name_stands_in_the_prefix)
{
    log_name("agent 0");
    log_warning("late");
    ck_assert_str_eq(heard(), "coalesced[agent 0]: late\n");
    log_name("");
    log_warning("late");
    ck_assert_str_eq(heard(), "coalesced: late\n");
}
END_TEST

START_TEST(a_long_name_is_cut)
{
    log_name("a role whose name is longer than what is kept of it");
    log_error("x");
    ck_assert_str_eq(heard(), "coalesced[a role whose name is longer tha]: x\n");
}
END_TEST

START_TEST(under_a_journal_a_line_begins_with_its_priority)
{
    setenv("JOURNAL_STREAM", "8:12345", 1);
    log_name("");
    log_error("e");
    log_warning("w");
    log_info("i");
    ck_assert_str_eq(heard(), "<3>coalesced: e\n");
    ck_assert_str_eq(heard(), "<4>coalesced: w\n");
    ck_assert_str_eq(heard(), "<6>coalesced: i\n");
    log_name("observer 2");
    log_error("e");
    ck_assert_str_eq(heard(), "<3>coalesced[observer 2]: e\n");
}
END_TEST

/* Around the limit: the newline is the 1,000th byte at the latest, and it is always there. */
START_TEST(a_line_is_cut_at_a_thousand_bytes)
{
    char text[3 * LINE_BYTES_MAX], wanted[4 * LINE_BYTES_MAX];
    const size_t room = LINE_BYTES_MAX - strlen("coalesced: \n");
    const size_t lengths[] = {room - 1, room, room + 1, room + 2, sizeof text - 1};
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i % 26);
    text[lengths[_i]] = '\0';
    log_info("%s", text);
    snprintf(wanted, sizeof wanted, "coalesced: %.*s\n", (int)room, text);
    const char *line = heard();
    ck_assert_uint_le(strlen(line), LINE_BYTES_MAX);
    ck_assert_str_eq(line, wanted);
    ck_assert_str_eq(heard(), "");
}
END_TEST

/* A process without a reader of its messages goes on. */
START_TEST(a_closed_stderr_is_survived)
{
    close(STDERR_FILENO);
    log_error("nobody hears this");
    ck_assert_str_eq(heard(), "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *lines = tcase_create("lines");
    tcase_add_checked_fixture(lines, listen_to_stderr, stop_listening);
    tcase_add_test(lines, a_line_is_one_write);
    tcase_add_test(lines, the_name_stands_in_the_prefix);
    tcase_add_test(lines, a_long_name_is_cut);
    tcase_add_test(lines, under_a_journal_a_line_begins_with_its_priority);
    tcase_add_loop_test(lines, a_line_is_cut_at_a_thousand_bytes, 0, 5);
    tcase_add_test(lines, a_closed_stderr_is_survived);
    suite_add_tcase(suite, lines);
    return suite_run(suite);
}
