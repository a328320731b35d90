/* A library to preload that delays messages.
 *
 *   DELAYS_MS=20 LD_PRELOAD=build/release/test/preload/delays.so build/release/test/test_rpc
 *
 * libzmq's threads sleep in epoll_wait and use each other's sockets with send and recv. One wakeup in eight,
 * and one send or recv in 24, takes up to DELAYS_MS milliseconds longer. Messages, acknowledgments and ends
 * of connections then arrive in orders that a loaded machine shows and an idle one hardly ever. A test that
 * passes only because a message arrives soon fails.
 *
 * Each thread has a generator of its own, seeded by its id and start time: no two runs are the same. Without
 * a number in DELAYS_MS nothing is delayed. */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { WAKEUPS = 8, CALLS = 24, MS_MAX = 1000 };

static int most_ms;

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("DELAYS_MS");
    const int ms = text == NULL ? 0 : atoi(text);
    most_ms = ms > 0 && ms <= MS_MAX ? ms : 0;
}

/* xorshift64 (Marsaglia 2003), its lower bits left out. */
static uint32_t draw(void)
{
    static _Thread_local uint64_t state;
    if (state == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = (uint64_t)gettid() << 32 | (uint64_t)now.tv_nsec | 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 20);
}

/* Sleeps in one of `calls` calls. */
static void delay(uint32_t calls)
{
    const int saved = errno;
    if (most_ms > 0 && draw() % calls == 0) {
        const uint32_t us = draw() % ((uint32_t)most_ms * 1000);
        nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
    }
    errno = saved;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    static int (*next)(int, struct epoll_event *, int, int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "epoll_wait");
    const int count = next(epoll, events, most, timeout);
    if (count > 0)
        delay(WAKEUPS);
    return count;
}

ssize_t send(int descriptor, const void *bytes, size_t count, int flags)
{
    static ssize_t (*next)(int, const void *, size_t, int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "send");
    delay(CALLS);
    return next(descriptor, bytes, count, flags);
}

ssize_t recv(int descriptor, void *bytes, size_t count, int flags)
{
    static ssize_t (*next)(int, void *, size_t, int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "recv");
    delay(CALLS);
    return next(descriptor, bytes, count, flags);
}
