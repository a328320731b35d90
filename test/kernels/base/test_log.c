/* The daemon's own messages (kernels/base/log.h). Standard error is a socket of packets here, so that a
 * packet is a write: a line that left in two would be heard as two. The journal is a socket of the test's
 * own. */
#include "kernels/base/log.h"
#include "test/workplace.h"

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 1000 };

static int ears, old_stderr;
static int journal;
static struct sockaddr_un journal_address;

static void listen_to_stderr(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    ears = pair[0];
    old_stderr = dup(STDERR_FILENO);
    ck_assert_int_eq(dup2(pair[1], STDERR_FILENO), STDERR_FILENO);
    close(pair[1]);
    unsetenv("JOURNAL_STREAM");
    unsetenv("COALESCED_RUN");
}

static void stop_listening(void)
{
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    close(ears);
}

/* The next packet's bytes, zero-terminated; "" when there is none. */
static const char *heard_at(int fd)
{
    static char line[4 * LINE_BYTES_MAX];
    ssize_t got = recv(fd, line, sizeof line - 1, MSG_DONTWAIT);
    line[got > 0 ? got : 0] = '\0';
    return line;
}

/* The next write to standard error. */
static const char *heard(void)
{
    return heard_at(ears);
}

/* A journal is there, and standard error is its stream. */
static void open_journal(void)
{
    char stream[64];
    struct stat info;
    workplace_open();
    listen_to_stderr();
    journal_address.sun_family = AF_UNIX;
    snprintf(journal_address.sun_path, sizeof journal_address.sun_path, "%s/journal", workplace.folder);
    journal = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(bind(journal, (const struct sockaddr *)&journal_address, sizeof journal_address), 0);
    ck_assert_int_eq(fstat(STDERR_FILENO, &info), 0);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)info.st_dev, (uintmax_t)info.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_journal_at(journal_address.sun_path);
}

static void close_journal(void)
{
    close(journal);
    stop_listening();
    workplace_close();
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

START_TEST(the_journal_gets_fields)
{
    log_name("");
    log_run("runs/cartpole/");
    log_warning("%s is late", "batch");
    ck_assert_str_eq(
        heard_at(journal),
        "PRIORITY=4\nSYSLOG_IDENTIFIER=coalesced\nCOALESCED_RUN=cartpole\nMESSAGE=batch is late\n");
    ck_assert_str_eq(heard_at(journal), "");
    ck_assert_str_eq(heard(), "");
}
END_TEST

/* A worker has its supervisor's environment. */
START_TEST(a_workers_entry_names_the_worker_and_its_supervisors_run)
{
    setenv("COALESCED_RUN", "my run", 1);
    log_name("observer 2");
    log_info("i");
    ck_assert_str_eq(heard_at(journal), "PRIORITY=6\nSYSLOG_IDENTIFIER=coalesced\nCOALESCED_RUN=my run\n"
                                        "COALESCED_WORKER=observer 2\nMESSAGE=observer 2: i\n");
    ck_assert_str_eq(heard(), "");
}
END_TEST

START_TEST(the_run_is_the_last_component_of_a_path)
{
    static const char *const paths[][2] = {
        {"/var/lib/coalesced/a/b", "b"}, {"b", "b"}, {"./b//", "b"}, {"a\nPRIORITY=0", "a?PRIORITY=0"}};
    log_run(paths[_i][0]);
    ck_assert_str_eq(getenv("COALESCED_RUN"), paths[_i][1]);
}
END_TEST

/* It has no field to add. */
START_TEST(without_a_run_the_line_goes_to_stderr)
{
    log_name("");
    log_error("e");
    ck_assert_str_eq(heard(), "<3>coalesced: e\n");
    ck_assert_str_eq(heard_at(journal), "");
}
END_TEST

/* No value begins a line of its own, and so a field. */
START_TEST(a_message_adds_no_field)
{
    log_name("");
    log_run("a");
    log_info("x\nPRIORITY=0\n");
    ck_assert_str_eq(heard_at(journal),
                     "PRIORITY=6\nSYSLOG_IDENTIFIER=coalesced\nCOALESCED_RUN=a\nMESSAGE=x?PRIORITY=0?\n");
}
END_TEST

START_TEST(the_longest_entry_is_sent_whole)
{
    char text[3 * LINE_BYTES_MAX], run[400];
    memset(text, 't', sizeof text - 1);
    memset(run, 'r', sizeof run - 1);
    text[sizeof text - 1] = run[sizeof run - 1] = '\0';
    log_name("a role whose name is longer than what is kept of it");
    log_run(run);
    log_info("%s", text);
    const char *entry = heard_at(journal);
    ck_assert_ptr_nonnull(strstr(entry, "\nCOALESCED_RUN=rrr"));
    ck_assert_ptr_nonnull(strstr(entry, "\nCOALESCED_WORKER=a role"));
    ck_assert_str_eq(entry + strlen(entry) - 3, "tt\n");
    ck_assert_str_eq(heard(), "");
}
END_TEST

/* Lines for standard output: this test's own is not touched, only said to be the journal's. */
START_TEST(output_goes_to_the_journal_too)
{
    static const char line[] = "Episode 10\tLast reward: 9.00\n";
    char stream[64], longest[2 * LINE_BYTES_MAX];
    struct stat info;
    log_name("");
    ck_assert(!log_output(line, strlen(line)));
    ck_assert_int_eq(fstat(STDOUT_FILENO, &info), 0);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)info.st_dev, (uintmax_t)info.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_name("");
    log_run("runs/pole");
    ck_assert(log_output(line, strlen(line)));
    ck_assert_str_eq(heard_at(journal), "PRIORITY=6\nSYSLOG_IDENTIFIER=coalesced\nCOALESCED_RUN=pole\n"
                                        "MESSAGE=Episode 10\tLast reward: 9.00\n");
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\n';
    ck_assert(!log_output(longest, sizeof longest));
    ck_assert(!log_output("a\nb\n", 4));
    ck_assert_str_eq(heard_at(journal), "");
}
END_TEST

/* Standard error was redirected: the journal is not its place any more. */
START_TEST(another_stderr_than_the_journals_gets_the_line)
{
    setenv("JOURNAL_STREAM", "8:12345", 1);
    log_name("");
    log_run("a");
    log_error("e");
    ck_assert_str_eq(heard(), "<3>coalesced: e\n");
    ck_assert_str_eq(heard_at(journal), "");
}
END_TEST

START_TEST(without_a_journal_the_line_goes_to_stderr)
{
    unlink(journal_address.sun_path);
    log_name("agent 0");
    log_run("a");
    log_error("e");
    ck_assert_str_eq(heard(), "<3>coalesced[agent 0]: e\n");
}
END_TEST

/* A journal that does not read: nothing waits, and each message arrives at one of the two places. */
START_TEST(a_full_journal_loses_no_line)
{
    enum { MESSAGES = 2000 };
    unsigned in_journal = 0, on_stderr = 0;
    log_name("");
    log_run("a");
    for (unsigned i = 0; i < MESSAGES; i++) {
        log_info("%u", i);
        on_stderr += heard()[0] != '\0';
    }
    while (heard_at(journal)[0] != '\0')
        in_journal++;
    ck_assert_uint_gt(in_journal, 0);
    ck_assert_uint_gt(on_stderr, 0);
    ck_assert_uint_eq(in_journal + on_stderr, MESSAGES);
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
    TCase *entries = tcase_create("entries");
    tcase_add_checked_fixture(entries, open_journal, close_journal);
    tcase_add_test(entries, the_journal_gets_fields);
    tcase_add_test(entries, a_workers_entry_names_the_worker_and_its_supervisors_run);
    tcase_add_loop_test(entries, the_run_is_the_last_component_of_a_path, 0, 4);
    tcase_add_test(entries, without_a_run_the_line_goes_to_stderr);
    tcase_add_test(entries, a_message_adds_no_field);
    tcase_add_test(entries, the_longest_entry_is_sent_whole);
    tcase_add_test(entries, output_goes_to_the_journal_too);
    tcase_add_test(entries, another_stderr_than_the_journals_gets_the_line);
    tcase_add_test(entries, without_a_journal_the_line_goes_to_stderr);
    tcase_add_test(entries, a_full_journal_loses_no_line);
    suite_add_tcase(suite, entries);
    return suite_run(suite);
}
