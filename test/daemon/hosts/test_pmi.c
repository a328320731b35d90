/* The client of PMI-1 (daemon/hosts/pmi.h) before a scripted server (test/daemon/hosts/fake_pmi.h). */
#include "daemon/hosts/pmi.h"
#include "test/daemon/hosts/fake_pmi.h"
#include "test/process.h"
#include "test/until.h"
#include "test/workplace.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static struct pmi pmi;
static struct error error;

static const struct turn slurm_opening[] = {
    {"cmd=init pmi_version=1 pmi_subversion=1\n",
     "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n"},
    {"cmd=get_maxes\n", "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n"},
    {"cmd=get_my_kvsname\n", "cmd=my_kvsname rc=0 kvsname=4.0\n"},
};
static const struct turn mpich_opening[] = {
    {"cmd=init pmi_version=1 pmi_subversion=1\n",
     "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"},
    {"cmd=get_maxes\n", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"},
    {"cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=4.0\n"},
};

static struct monotime in_ms(unsigned ms)
{
    return monotime_add_us(monotime_now(), ms * UINT64_C(1000));
}

/* Far enough for a loaded machine. */
static struct monotime later(void)
{
    return in_ms(60000);
}

/* Begins a server that answers client 0's pmi_open and then plays `turns`, and opens `pmi`. */
static void open_with(const struct turn *turns, unsigned count)
{
    add_turns(0, slurm_opening, 3);
    add_turns(0, turns, count);
    server_begin();
    ck_assert_int_eq(pmi_open(&pmi, later(), &error), STATUS_OK);
}

static void assert_closed(void)
{
    ck_assert_int_lt(pmi.fd, 0);
    ck_assert_int_eq(fcntl(server.client_fds[0], F_GETFD), -1);
    ck_assert_int_eq(errno, EBADF);
    ck_assert_int_eq(pmi_close(&pmi, later(), &error), STATUS_OK);
}

static void assert_error(enum status status, const char *words)
{
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" in: %s", words, error.text);
}

/* ---- good servers ---- */

static void exchange_values(bool is_mpich)
{
    char value[32];
    ck_assert(pmi_is_there());
    ck_assert_int_eq(pmi_open(&pmi, later(), &error), STATUS_OK);
    ck_assert_uint_eq(pmi.rank, 0);
    ck_assert_uint_eq(pmi.size, CLIENTS);
    ck_assert_int_eq(pmi_put(&pmi, "a0", "tcp://[fe80::1]:9;k=+/", later(), &error), STATUS_OK);
    ck_assert_int_eq(pmi_barrier(&pmi, later(), &error), STATUS_OK);
    ck_assert_int_eq(pmi_get(&pmi, "a1", value, sizeof value, later(), &error), STATUS_OK);
    ck_assert_str_eq(value, is_mpich ? "of-mpich" : "of=slurm");
    ck_assert_int_eq(pmi_get(&pmi, "a2", value, sizeof value, later(), &error), STATUS_NOT_FOUND);
    assert_error(STATUS_NOT_FOUND, "key a2");
    ck_assert_int_eq(pmi_close(&pmi, later(), &error), STATUS_OK);
    assert_closed();
}

START_TEST(values_are_exchanged)
{
    static const struct turn slurm[] = {
        {"cmd=put kvsname=4.0 key=a0 value=tcp://[fe80::1]:9;k=+/\n", "cmd=put_result rc=0\n"},
        {"cmd=barrier_in\n", "cmd=barrier_out rc=0\n"},
        {"cmd=get kvsname=4.0 key=a1\n", "cmd=get_result rc=0 value=of=slurm\n"},
        {"cmd=get kvsname=4.0 key=a2\n", "cmd=get_result rc=1\n"},
        {"cmd=finalize\n", "cmd=finalize_ack rc=0\n"}};
    static const struct turn mpich[] = {
        {"cmd=put kvsname=4.0 key=a0 value=tcp://[fe80::1]:9;k=+/\n", "cmd=put_result rc=0 msg=success\n"},
        {"cmd=barrier_in\n", "cmd=barrier_out\n"},
        {"cmd=get kvsname=4.0 key=a1\n", "cmd=get_result rc=0 msg=success value=of-mpich\n"},
        {"cmd=get kvsname=4.0 key=a2\n", "cmd=get_result rc=-1 msg=key_a2_not_found value=unknown\n"},
        {"cmd=finalize\n", "cmd=finalize_ack\n"}};
    const bool is_mpich = _i & 1;
    server.torn = _i & 2;
    add_turns(0, is_mpich ? mpich_opening : slurm_opening, 3);
    add_turns(0, is_mpich ? mpich : slurm, 5);
    server_begin();
    exchange_values(is_mpich);
    server_end();
}
END_TEST

START_TEST(workers_inherit_nothing)
{
    static const char *const names[] = {"PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_JOBID"};
    open_with(NULL, 0);
    ck_assert_int_eq(fcntl(pmi.fd, F_GETFD), FD_CLOEXEC);
    ck_assert(!pmi_is_there());
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        ck_assert_ptr_null(getenv(names[i]));
    server_end();
}
END_TEST

struct waiter {
    struct pmi pmi;
    _Atomic bool done;
    enum status status;
};

static void *wait_at_barrier(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = pmi_barrier(&waiter->pmi, later(), NULL);
    waiter->done = true;
    return NULL;
}

START_TEST(a_barrier_waits_for_the_other_side)
{
    static struct waiter waiter;
    pthread_t thread;
    add_turns(0, slurm_opening, 3);
    add_turns(1, slurm_opening, 3);
    add_turn(1, "cmd=barrier_in\n", NULL);
    add_turn(0, "cmd=barrier_in\n", "cmd=barrier_out rc=0\n");
    add_turn(1, NULL, "cmd=barrier_out rc=0\n");
    server_begin();
    ck_assert_int_eq(pmi_open(&pmi, later(), &error), STATUS_OK);
    set_client(1);
    ck_assert_int_eq(pmi_open(&waiter.pmi, later(), &error), STATUS_OK);
    ck_assert_uint_eq(waiter.pmi.rank, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_at_barrier, &waiter), 0);
    UNTIL(server.turns_done == 7, sleep_ms(1));
    sleep_ms(20);
    ck_assert(!waiter.done);
    ck_assert_int_eq(pmi_barrier(&pmi, later(), &error), STATUS_OK);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(waiter.status, STATUS_OK);
    server_end();
}
END_TEST

static _Atomic unsigned alarms;

static void count_alarm(int signal)
{
    (void)signal;
    alarms++;
}

/* The server's thread blocks the signal, so that it interrupts the client. */
START_TEST(a_signal_does_not_end_the_wait)
{
    static const struct turn turn = {"cmd=barrier_in\n", "cmd=barrier_out rc=0\n"};
    const struct sigaction action = {.sa_handler = count_alarm};
    const struct itimerval timer = {{0, 5000}, {0, 5000}}, none = {{0, 0}, {0, 0}};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    server.wait_ms = 100;
    open_with(&turn, 1);
    ck_assert_int_eq(pthread_sigmask(SIG_UNBLOCK, &set, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &timer, NULL), 0);
    ck_assert_int_eq(pmi_barrier(&pmi, later(), &error), STATUS_OK);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &none, NULL), 0);
    ck_assert_uint_gt(alarms, 0);
    server_end();
}
END_TEST

/* ---- the environment ---- */

static const struct {
    const char *name, *text, *words;
    bool is_there;
} bad_variables[] = {
    {"PMI_FD", NULL, "PMI_FD is not set", false},
    {"PMI_FD", "", "PMI_FD=: expected a number from 0", false},
    {"PMI_FD", "abc", "PMI_FD=abc", false},
    {"PMI_FD", "-1", "PMI_FD=-1", false},
    {"PMI_FD", "7x", "PMI_FD=7x", false},
    {"PMI_FD", "99999999999", "PMI_FD=99999999999", false},
    {"PMI_FD", "1000", "PMI_FD=1000 is no connected socket", true},
    {"PMI_RANK", NULL, "PMI_RANK is not set", true},
    {"PMI_RANK", "one", "PMI_RANK=one: expected a number from 0 to 1", true},
    {"PMI_RANK", "-1", "PMI_RANK=-1", true},
    {"PMI_RANK", "2", "PMI_RANK=2: expected a number from 0 to 1", true},
    {"PMI_SIZE", NULL, "PMI_SIZE is not set", true},
    {"PMI_SIZE", "0", "PMI_SIZE=0: expected a number from 1 to 65536", true},
    {"PMI_SIZE", "65537", "PMI_SIZE=65537", true},
};

START_TEST(a_wrong_variable_is_named)
{
    if (bad_variables[_i].text == NULL)
        unsetenv(bad_variables[_i].name);
    else
        setenv(bad_variables[_i].name, bad_variables[_i].text, 1);
    ck_assert_int_eq(pmi_is_there(), bad_variables[_i].is_there);
    ck_assert_int_eq(pmi_open(&pmi, later(), &error), STATUS_UNAVAILABLE);
    assert_error(STATUS_UNAVAILABLE, bad_variables[_i].words);
    ck_assert(!pmi_is_there());
    ck_assert_int_eq(pmi_close(&pmi, later(), &error), STATUS_OK);
}
END_TEST

/* PMI_FD may be inherited without its socket, and the number be another open file's. */
START_TEST(a_file_is_no_server)
{
    char folder[64], path[96];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/file", folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    set_number("PMI_FD", fd);
    ck_assert_int_eq(pmi_open(&pmi, later(), &error), STATUS_UNAVAILABLE);
    assert_error(STATUS_UNAVAILABLE, "no connected socket");
    ck_assert_int_eq(lseek(fd, 0, SEEK_END), 0);
    ck_assert_int_eq(close(fd), 0);
    folder_remove(folder);
}
END_TEST

/* ---- bad servers ---- */

static char too_long[PMI_ANSWER_BYTES_MAX + 100]; /* and no newline */

static const struct {
    unsigned opening; /* how many requests are answered well before */
    const char *answers;
    enum status status;
    const char *words;
} bad_openings[] = {
    {0, hangs_up, STATUS_IO, "closed the connection: expected cmd=response_to_init"},
    {0, "cmd=response_to_init rc=-1\n", STATUS_UNAVAILABLE, "refused with \"cmd=response_to_init rc=-1\""},
    {0, "cmd=response_to_init rc=\n", STATUS_UNAVAILABLE, "expected rc=0"},
    {0, "cmd=response_to_init rc=00000000000000000000000000001\n", STATUS_UNAVAILABLE, "expected rc=0"},
    {0, "cmd=response_to_init rc=0 pmi_version=2\n", STATUS_IO, "expected pmi_version=1"},
    {0, "cmd=response_to_init rc=0\n", STATUS_IO, "expected pmi_version=1"},
    {0, "cmd=maxes rc=0\n", STATUS_IO, "\"cmd=maxes rc=0\": expected cmd=response_to_init"},
    {0, "response_to_init\n", STATUS_IO, "expected cmd=response_to_init"},
    {0, "cmd\n", STATUS_IO, "expected cmd=response_to_init"},
    {0, "\n", STATUS_IO, "answered \"\": expected cmd=response_to_init"},
    {0, "   \n", STATUS_IO, "expected cmd=response_to_init"},
    {0, "cmd=response_to_init rc=0 \033[2J\n", STATUS_IO, "\\u001b[2J"},
    {0, "cmd=response_to_init rc=0 \xff\n", STATUS_IO, "\\xff"},
    {0, "cmd=response_to_init rc=0 pmi_version=1\ncmd=maxes\n", STATUS_IO, "in one line of printable ASCII"},
    {0, too_long, STATUS_IO, "xxx...\": expected cmd=response_to_init in one line"},
    {1, "cmd=maxes rc=0 kvsname_max=256 keylen_max=64\n", STATUS_IO, "keylen_max and vallen_max"},
    {1, "cmd=maxes rc=0 keylen_max=64 vallen_max=many\n", STATUS_IO, "keylen_max and vallen_max"},
    {1, "cmd=maxes rc=0 keylen_max=-64 vallen_max=1024\n", STATUS_IO, "keylen_max and vallen_max"},
    {1, "cmd=maxes rc=0 keylen_max=64 vallen_max=9999999999\n", STATUS_IO, "keylen_max and vallen_max"},
    {2, "cmd=my_kvsname rc=0\n", STATUS_IO, "expected kvsname"},
    {2, "cmd=my_kvsname rc=0 kvsname=\n", STATUS_IO, "expected kvsname"},
    {2, "cmd=my_kvsname rc=0 xkvsname=4.0\n", STATUS_IO, "expected kvsname"},
    {2, hangs_up, STATUS_IO, "closed the connection: expected cmd=my_kvsname"},
};

START_TEST(a_bad_opening_is_an_error)
{
    memset(too_long, 'x', sizeof too_long - 1);
    const unsigned opening = bad_openings[_i].opening;
    add_turns(0, slurm_opening, opening);
    add_turn(0, slurm_opening[opening].awaits, bad_openings[_i].answers);
    server_begin();
    ck_assert_int_eq(pmi_open(&pmi, later(), &error), bad_openings[_i].status);
    assert_error(bad_openings[_i].status, bad_openings[_i].words);
    assert_closed();
    server_end();
}
END_TEST

START_TEST(a_name_of_the_space_may_be_long)
{
    char answer[320], put[320];
    const bool fits = _i == 0;
    snprintf(answer, sizeof answer, "cmd=my_kvsname rc=0 kvsname=%0*d\n", fits ? 255 : 256, 7);
    snprintf(put, sizeof put, "cmd=put kvsname=%0*d key=k value=v\n", 255, 7);
    add_turns(0, slurm_opening, 2);
    add_turn(0, slurm_opening[2].awaits, answer);
    if (fits)
        add_turn(0, put, "cmd=put_result rc=0\n");
    server_begin();
    ck_assert_int_eq(pmi_open(&pmi, later(), &error), fits ? STATUS_OK : STATUS_IO);
    if (fits)
        ck_assert_int_eq(pmi_put(&pmi, "k", "v", later(), &error), STATUS_OK);
    server_end();
}
END_TEST

/* No answer, and half an answer. */
START_TEST(a_deadline_ends_the_wait)
{
    static const struct turn turns[] = {{"cmd=get kvsname=4.0 key=k\n", NULL},
                                        {"cmd=get kvsname=4.0 key=k\n", "cmd=get_result rc=0"}};
    char value[8];
    open_with(&turns[_i], 1);
    const struct monotime deadline = in_ms(50);
    ck_assert_int_eq(pmi_get(&pmi, "k", value, sizeof value, deadline, &error), STATUS_TIMEOUT);
    ck_assert(!monotime_before(monotime_now(), deadline));
    assert_error(STATUS_TIMEOUT, "not answered in time: expected cmd=get_result");
    assert_closed();
    server_end();
}
END_TEST

START_TEST(a_barrier_ends_at_the_deadline)
{
    static const struct turn turn = {"cmd=barrier_in\n", NULL};
    open_with(&turn, 1);
    ck_assert_int_eq(pmi_barrier(&pmi, in_ms(20), &error), STATUS_TIMEOUT);
    assert_error(STATUS_TIMEOUT, "expected all 2 tasks");
    assert_closed();
    server_end();
}
END_TEST

START_TEST(a_server_that_does_not_read_ends_at_the_deadline)
{
    static const char junk[4096];
    open_with(NULL, 0);
    server_end();
    while (send(pmi.fd, junk, sizeof junk, MSG_DONTWAIT) > 0)
        ;
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_int_eq(pmi_put(&pmi, "k", "v", in_ms(50), &error), STATUS_TIMEOUT);
    assert_error(STATUS_TIMEOUT, "expected cmd=put_result");
    assert_closed();
}
END_TEST

START_TEST(a_lost_connection_is_an_error)
{
    open_with(NULL, 0);
    server_end();
    ck_assert_int_eq(shutdown(server.fds[0], SHUT_RDWR), 0);
    if (_i == 0)
        ck_assert_int_eq(pmi_put(&pmi, "k", "v", later(), &error), STATUS_IO);
    else
        ck_assert_int_eq(pmi_close(&pmi, later(), &error), STATUS_IO);
    assert_error(STATUS_IO, _i == 0 ? "failed: expected cmd=put_result" : "expected cmd=finalize_ack");
    assert_closed();
}
END_TEST

START_TEST(a_refused_value_is_an_error)
{
    static const struct turn turns[] = {
        {"cmd=put kvsname=4.0 key=k value=v\n", "cmd=put_result rc=-1 msg=duplicate_key\n"},
        {"cmd=barrier_in\n", "cmd=barrier_out rc=0\n"}};
    open_with(turns, 2);
    ck_assert_int_eq(pmi_put(&pmi, "k", "v", later(), &error), STATUS_UNAVAILABLE);
    assert_error(STATUS_UNAVAILABLE,
                 "refused with \"cmd=put_result rc=-1 msg=duplicate_key\": expected rc=0");
    ck_assert_int_eq(pmi_barrier(&pmi, later(), &error), STATUS_OK);
    server_end();
}
END_TEST

/* ---- keys and values ---- */

static const char *repeated(char letter, unsigned count)
{
    static char texts[2][1200];
    char *text = texts[letter == 'v'];
    ck_assert_uint_lt(count, sizeof texts[0]);
    memset(text, letter, count);
    text[count] = '\0';
    return text;
}

/* The server limits the key. The request's length limits the value first, unless key and name are short. */
START_TEST(long_texts_are_sent_up_to_the_limits)
{
    enum { LONGEST = PMI_REQUEST_BYTES_MAX - sizeof "cmd=put kvsname=4.0 key= value=" - 63 };
    static const struct {
        unsigned key, value;
        const char *words;
    } cases[] = {{63, LONGEST + 1, "has 1025 bytes: expected at most 1024"},
                 {1, 1024, "1 and 1024 bytes: expected fewer than 64 and 1024"},
                 {1, 1199, "1 and 1199 bytes"},
                 {64, 1, "64 and 1 bytes: expected fewer than 64 and 1024"}};
    char put[2 * PMI_REQUEST_BYTES_MAX];
    const int length = snprintf(put, sizeof put, "cmd=put kvsname=4.0 key=%s value=%s\n", repeated('k', 63),
                                repeated('v', LONGEST));
    ck_assert_int_eq(length, PMI_REQUEST_BYTES_MAX);
    open_with(&(struct turn){put, "cmd=put_result rc=0\n"}, 1);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *key = repeated('k', cases[i].key), *value = repeated('v', cases[i].value);
        ck_assert_int_eq(pmi_put(&pmi, key, value, later(), &error), STATUS_INVALID);
        assert_error(STATUS_INVALID, cases[i].words);
    }
    ck_assert_int_eq(pmi_put(&pmi, repeated('k', 63), repeated('v', LONGEST), later(), &error), STATUS_OK);
    server_end();
}
END_TEST

START_TEST(a_value_must_fit)
{
    static const char *const answers[] = {
        "cmd=get_result rc=0 value=1234567\n", "cmd=get_result rc=0 value=12345678\n",
        "cmd=get_result rc=0 value=\n", "cmd=get_result rc=0\n", "cmd=get_result value\n"};
    const struct turn turn = {"cmd=get kvsname=4.0 key=k\n", answers[_i]};
    char value[8] = "before";
    open_with(&turn, 1);
    ck_assert_int_eq(pmi_get(&pmi, "k", value, sizeof value, later(), &error),
                     _i == 0 ? STATUS_OK : STATUS_IO);
    ck_assert_str_eq(value, _i == 0 ? "1234567" : "before");
    if (_i > 0) {
        assert_error(STATUS_IO, "expected a value of 1 to 7 bytes");
        assert_closed();
    }
    server_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pmi");
    TCase *test_case = tcase_create("pmi");
    tcase_add_checked_fixture(test_case, open_sockets, close_sockets);
    tcase_add_loop_test(test_case, values_are_exchanged, 0, 4);
    tcase_add_test(test_case, workers_inherit_nothing);
    tcase_add_test(test_case, a_barrier_waits_for_the_other_side);
    tcase_add_test(test_case, a_signal_does_not_end_the_wait);
    tcase_add_loop_test(test_case, a_wrong_variable_is_named, 0,
                        (int)(sizeof bad_variables / sizeof bad_variables[0]));
    tcase_add_test(test_case, a_file_is_no_server);
    tcase_add_loop_test(test_case, a_bad_opening_is_an_error, 0,
                        (int)(sizeof bad_openings / sizeof bad_openings[0]));
    tcase_add_loop_test(test_case, a_name_of_the_space_may_be_long, 0, 2);
    tcase_add_loop_test(test_case, a_deadline_ends_the_wait, 0, 2);
    tcase_add_test(test_case, a_barrier_ends_at_the_deadline);
    tcase_add_test(test_case, a_server_that_does_not_read_ends_at_the_deadline);
    tcase_add_loop_test(test_case, a_lost_connection_is_an_error, 0, 2);
    tcase_add_test(test_case, a_refused_value_is_an_error);
    tcase_add_test(test_case, long_texts_are_sent_up_to_the_limits);
    tcase_add_loop_test(test_case, a_value_must_fit, 0, 5);
    suite_add_tcase(suite, test_case);
    return suite_run(suite);
}
