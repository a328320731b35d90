/* What one client says to a listener on 127.0.0.1: a thread that forwards one connection's bytes, and keeps
 * those of the client. For test programs that replay a handshake. */
#ifndef TEST_WORKER_NET_RECORD_H
#define TEST_WORKER_NET_RECORD_H

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECORD_BYTES_MAX = 1 << 16 };

struct record {
    uint16_t port; /* where the client connects to */
    uint16_t to;   /* the listener's port */
    size_t bytes;  /* that the client has said */
    uint8_t said[RECORD_BYTES_MAX];
    int listener;
    pthread_t thread;
};

static inline struct sockaddr_in record_address(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Passes on what one end says. The count of bytes; 0: it has closed. */
static inline size_t record_forward(int from, int to, uint8_t *bytes, size_t room)
{
    const ssize_t got = recv(from, bytes, room, 0);
    if (got <= 0 || send(to, bytes, (size_t)got, MSG_NOSIGNAL) != got)
        return 0;
    return (size_t)got;
}

static inline void *record_run(void *arg)
{
    struct record *record = arg;
    uint8_t answer[4096];
    const struct sockaddr_in to = record_address(record->to);
    struct pollfd ends[2] = {{.events = POLLIN}, {.events = POLLIN}};
    ends[0].fd = accept(record->listener, NULL, NULL);
    ends[1].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t got = connect(ends[1].fd, (const struct sockaddr *)&to, sizeof to) == 0;
    while (got > 0 && poll(ends, 2, -1) > 0) {
        if (ends[1].revents != 0)
            got = record_forward(ends[1].fd, ends[0].fd, answer, sizeof answer);
        if (ends[0].revents != 0) {
            got = record_forward(ends[0].fd, ends[1].fd, record->said + record->bytes,
                                 sizeof record->said - record->bytes);
            record->bytes += got;
        }
    }
    close(ends[0].fd);
    close(ends[1].fd);
    return NULL;
}

static inline void record_start(struct record *record, uint16_t to)
{
    struct sockaddr_in own = record_address(0);
    socklen_t bytes = sizeof own;
    record->to = to;
    record->bytes = 0;
    record->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(record->listener, (const struct sockaddr *)&own, sizeof own), 0);
    ck_assert_int_eq(listen(record->listener, 1), 0);
    ck_assert_int_eq(getsockname(record->listener, (struct sockaddr *)&own, &bytes), 0);
    record->port = ntohs(own.sin_port);
    ck_assert_int_eq(pthread_create(&record->thread, NULL, record_run, record), 0);
}

/* Waits until either end has closed. */
static inline void record_stop(struct record *record)
{
    pthread_join(record->thread, NULL);
    close(record->listener);
}

#endif
