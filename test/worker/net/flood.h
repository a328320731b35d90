/* Processes that flood a listener through bare sockets, while a test goes on beside them. They use
 * system calls alone, as a process must that was forked from one with threads. */
#ifndef TEST_WORKER_NET_FLOOD_H
#define TEST_WORKER_NET_FLOOD_H

#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ZMTP_GREETING = 64, ZMTP_MORE = 1, ZMTP_LONG = 2, ZMTP_COMMAND = 4, FLOOD_FRAME = 1 << 20 };

static uint8_t flood_bytes[FLOOD_FRAME];

/* To a port of 127.0.0.1, from an address of that network that no worker has. Waits while all ports of that
 * address are taken. */
static inline int flood_connect_tcp(const char *place)
{
    const struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000009)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), late = 1;
    if (fd < 0)
        return -1;
    to.sin_port = htons((uint16_t)strtoul(strrchr(place, ':') + 1, NULL, 10));
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late);
    if (bind(fd, (const struct sockaddr *)&from, sizeof from) != 0)
        _exit(1);
    while (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) {
        if (errno != EADDRNOTAVAIL)
            _exit(1);
        poll(NULL, 0, 10);
    }
    return fd;
}

/* A connection; waits while the listener's queue is full. -1: no descriptor is left. `path`: of a socket, or
 * ADDRESS:PORT. */
static inline int flood_connect(const char *path)
{
    if (path[0] != '/')
        return flood_connect_tcp(path);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        _exit(1);
    return fd;
}

/* Writes all bytes, as fast as the other end takes them. False: it has closed. */
static inline bool flood_write(int fd, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    while (count > 0) {
        const ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

/* ZMTP 3.0's greeting. */
static inline bool flood_greet(int fd, const char *mechanism)
{
    uint8_t greeting[ZMTP_GREETING] = {[0] = 0xff, [9] = 0x7f, [10] = 3};
    memcpy(greeting + 12, mechanism, strlen(mechanism));
    return flood_write(fd, greeting, sizeof greeting);
}

/* The head of a frame of `bytes`, in the long form. */
static inline bool flood_head(int fd, uint8_t flags, uint64_t bytes)
{
    uint8_t head[9] = {flags | ZMTP_LONG};
    for (unsigned i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)(bytes >> (56 - 8 * i));
    return flood_write(fd, head, sizeof head);
}

static inline bool flood_frame(int fd, uint8_t flags, const void *bytes, size_t count)
{
    return flood_head(fd, flags, count) && flood_write(fd, bytes, count);
}

/* Waits until so many bytes have come, or the other end has closed. */
static inline void flood_read(int fd, size_t count)
{
    uint8_t bytes[512];
    ssize_t got;
    while (count > 0 && (got = recv(fd, bytes, count < sizeof bytes ? count : sizeof bytes, 0)) > 0)
        count -= (size_t)got;
}

/* Starts a process that floods the socket at `address`, "ipc://PATH" or "tcp://ADDRESS:PORT", and then waits
 * to be killed. */
static inline pid_t flood_start(void (*flood)(const char *path), const char *address)
{
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    struct rlimit limit;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, 19); /* other tests run meanwhile */
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    flood(address + strlen("ipc://"));
    for (;;)
        pause();
}

static inline void flood_stop(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* This process's memory now, in MiB. */
static inline long resident_mib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

#endif
