/* A scripted PMI-1 server for tests of daemon/hosts/pmi.h: a thread with one end of a socket pair per client.
 * The script is a list of turns. Each turn awaits one request and sends one answer. */
#ifndef TEST_DAEMON_HOSTS_FAKE_PMI_H
#define TEST_DAEMON_HOSTS_FAKE_PMI_H

#include "test/process.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 2, TURNS_MAX = 16 };

/* One step of the server. NULL: it awaits no request, or sends no answer. */
struct turn {
    const char *awaits, *answers;
};

static const char hangs_up[] = "(the server closes the connection)";

static struct server {
    int client_fds[CLIENTS], fds[CLIENTS];
    struct turn turns[TURNS_MAX];
    unsigned clients[TURNS_MAX]; /* whose turn it is */
    unsigned turn_count;
    unsigned wait_ms; /* before each answer */
    bool torn;        /* every byte is sent by itself */
    pthread_t thread;
    _Atomic unsigned turns_done;
    char wrong[2048]; /* a request that was not awaited */
} server;

static inline bool server_reads(int fd, char *line, size_t size)
{
    size_t length = 0;
    while (length < size - 1 && (length == 0 || line[length - 1] != '\n')) {
        const ssize_t got = recv(fd, line + length, size - 1 - length, 0);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    line[length] = '\0';
    return length > 0;
}

static inline void server_sends(int fd, const char *answer)
{
    const size_t length = strlen(answer), piece = server.torn ? 1 : length;
    for (size_t at = 0; at < length; at += piece) {
        if (at > 0 && at % 8 == 0)
            sleep_ms(1);
        send(fd, answer + at, piece, MSG_NOSIGNAL);
    }
}

static inline void *server_run(void *unused)
{
    char line[sizeof server.wrong];
    for (unsigned i = 0; i < server.turn_count; i++) {
        const struct turn *turn = &server.turns[i];
        const int fd = server.fds[server.clients[i]];
        if (turn->awaits != NULL &&
            (!server_reads(fd, line, sizeof line) || strcmp(line, turn->awaits) != 0)) {
            snprintf(server.wrong, sizeof server.wrong, "%s", line);
            shutdown(fd, SHUT_RDWR);
            break;
        }
        sleep_ms(server.wait_ms);
        if (turn->answers == hangs_up)
            shutdown(fd, SHUT_RDWR);
        else if (turn->answers != NULL)
            server_sends(fd, turn->answers);
        server.turns_done = i + 1;
    }
    return unused;
}

static inline void add_turns(unsigned client, const struct turn *turns, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        ck_assert_uint_lt(server.turn_count, TURNS_MAX);
        server.clients[server.turn_count] = client;
        server.turns[server.turn_count++] = turns[i];
    }
}

static inline void add_turn(unsigned client, const char *awaits, const char *answers)
{
    add_turns(client, &(struct turn){awaits, answers}, 1);
}

static inline void server_begin(void)
{
    ck_assert_int_eq(pthread_create(&server.thread, NULL, server_run, NULL), 0);
}

/* After it no request has differed from what the turns await, and all turns are done. */
static inline void server_end(void)
{
    ck_assert_int_eq(pthread_join(server.thread, NULL), 0);
    ck_assert_str_eq(server.wrong, "");
    ck_assert_uint_eq(server.turns_done, server.turn_count);
}

static inline void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static inline void set_client(unsigned client)
{
    set_number("PMI_FD", server.client_fds[client]);
    set_number("PMI_RANK", (int)client);
    set_number("PMI_SIZE", CLIENTS);
    setenv("PMI_JOBID", "4.0", 1);
}

static inline void open_sockets(void)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        int pair[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        server.client_fds[i] = pair[0];
        server.fds[i] = pair[1];
    }
    set_client(0);
}

static inline void close_sockets(void)
{
    for (unsigned i = 0; i < CLIENTS; i++)
        close(server.fds[i]);
}

#endif
