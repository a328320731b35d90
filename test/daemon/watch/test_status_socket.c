/* The status socket (daemon/watch/status_socket.h): whole answers, also long ones to slow readers; who does
 * not read is cut off; what lies in the socket's place. */
#include "daemon/watch/status_socket.h"
#include "test/workplace.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LONG_BYTES = 3 << 20 };

static struct status_socket asked;
static struct error error;
static char address[128];
static size_t answer_bytes;
static unsigned answers;

/* All 'x', ended by a line feed. */
static char *answer(void *arg)
{
    char *text = cJSON_malloc(answer_bytes + 2);
    ck_assert_ptr_eq(arg, &answers);
    answers++;
    memset(text, 'x', answer_bytes);
    memcpy(text + answer_bytes, "\n", 2);
    return text;
}

static void open_socket(void)
{
    workplace_open();
    answer_bytes = 20;
    /* No *.sock: `coalesced list` of another test would ask it, too. */
    snprintf(address, sizeof address, "ipc://%s/asked", workplace.folder);
    const enum status status = status_socket_open(&asked, address, answer, &answers, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void close_socket(void)
{
    status_socket_close(&asked);
    workplace_close();
}

static int connect_client(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "%.100s", asked.path);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&name, sizeof name), 0);
    return fd;
}

static void turn(void)
{
    struct pollfd waits[STATUS_WAITS];
    status_socket_waits(&asked, waits);
    poll(waits, STATUS_WAITS, 0);
    status_socket_serve(&asked, waits);
}

/* Bytes until the stream's end; turns meanwhile. */
static size_t read_all(int fd)
{
    static char block[65536];
    size_t sum = 0;
    for (;;) {
        const ssize_t got = recv(fd, block, sizeof block, 0);
        if (got == 0)
            break;
        if (got > 0)
            sum += (size_t)got;
        else
            ck_assert_int_eq(errno, EAGAIN);
        turn();
    }
    close(fd);
    return sum;
}

START_TEST(everyone_gets_a_whole_answer)
{
    answer_bytes = _i == 0 ? 20 : LONG_BYTES;
    int clients[STATUS_CLIENTS_MAX];
    for (int i = 0; i < STATUS_CLIENTS_MAX; i++) {
        clients[i] = connect_client();
        turn();
    }
    for (int i = 0; i < STATUS_CLIENTS_MAX; i++)
        ck_assert_uint_eq(read_all(clients[i]), answer_bytes + 1);
    ck_assert_uint_eq(answers, STATUS_CLIENTS_MAX);
}
END_TEST

START_TEST(who_does_not_read_is_cut_off)
{
    answer_bytes = LONG_BYTES;
    const int stalled = connect_client();
    turn();
    const struct monotime now = monotime_now(), due = status_socket_check(&asked, now);
    ck_assert(monotime_us_between(now, due) > 4000000 && monotime_us_between(now, due) <= 5000000);
    ck_assert(monotime_is_never(status_socket_check(&asked, due)));
    ck_assert_uint_lt(read_all(stalled), LONG_BYTES);
}
END_TEST

START_TEST(of_too_many_the_oldest_goes)
{
    answer_bytes = LONG_BYTES;
    int clients[STATUS_CLIENTS_MAX + 1];
    for (int i = 0; i <= STATUS_CLIENTS_MAX; i++) {
        clients[i] = connect_client();
        turn();
    }
    ck_assert_uint_lt(read_all(clients[0]), LONG_BYTES);
    for (int i = 1; i <= STATUS_CLIENTS_MAX; i++)
        ck_assert_uint_eq(read_all(clients[i]), LONG_BYTES + 1);
}
END_TEST

START_TEST(who_has_gone_costs_nothing)
{
    answer_bytes = LONG_BYTES;
    const int gone = connect_client();
    turn();
    close(gone);
    turn();
    ck_assert_uint_eq(read_all(connect_client()), LONG_BYTES + 1);
}
END_TEST

START_TEST(a_leftover_is_replaced_and_a_file_is_not)
{
    struct status_socket again;
    struct stat info;
    ck_assert_int_eq(stat(asked.path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    ck_assert_int_eq(status_socket_open(&again, address, answer, &answers, &error), STATUS_OK);
    status_socket_close(&again);
    ck_assert_int_eq(access(asked.path, F_OK), -1);
    ck_assert_int_eq(mkdir(asked.path, 0700), 0);
    ck_assert_int_eq(status_socket_open(&again, address, answer, &answers, &error), STATUS_PERMISSION);
    ck_assert_ptr_nonnull(strstr(error.text, asked.path));
    status_socket_close(&again);
    ck_assert_int_eq(rmdir(asked.path), 0);
}
END_TEST

/* Of others than the group nobody may look into such a folder. */
START_TEST(a_folder_for_a_group_has_a_socket_for_the_group)
{
    static const mode_t folders[] = {0700, 0710, 0750, 0755}, sockets[] = {0600, 0600, 0660, 0600};
    struct stat info;
    status_socket_close(&asked);
    ck_assert_int_eq(chmod(workplace.folder, folders[_i]), 0);
    ck_assert_int_eq(status_socket_open(&asked, address, answer, &answers, &error), STATUS_OK);
    ck_assert_int_eq(stat(asked.path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, sockets[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status_socket");
    TCase *tcase = tcase_create("clients");
    tcase_add_checked_fixture(tcase, open_socket, close_socket);
    tcase_add_loop_test(tcase, everyone_gets_a_whole_answer, 0, 2);
    tcase_add_test(tcase, who_does_not_read_is_cut_off);
    tcase_add_test(tcase, of_too_many_the_oldest_goes);
    tcase_add_test(tcase, who_has_gone_costs_nothing);
    tcase_add_test(tcase, a_leftover_is_replaced_and_a_file_is_not);
    tcase_add_loop_test(tcase, a_folder_for_a_group_has_a_socket_for_the_group, 0, 4);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
