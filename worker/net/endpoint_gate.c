/* accept4 in the place of the C library's, and the ring of connections that wait. Threads: libzmq's I/O
 * thread accepts, closes connections and calls accept4; the owners of endpoints admit and count. The lock
 * guards the whole state.
 *
 * A connection is known by its descriptor and its inode: once libzmq has closed it, the descriptor is free or
 * another file's, and the inode differs. Nobody but the I/O thread, which is in accept4, closes a connection,
 * so one that is cut off here stays what it is. */
#include "worker/net/endpoint_gate.h"

#include "worker/net/limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The other end of a connection: a network address (of IPv4 in IPv6's form), or a process. */
struct gate_place {
    struct in6_addr address; /* all zero: a process */
    pid_t pid;               /* 0: the kernel does not name it */
};

struct waiting {
    int fd;
    struct gate_place from;
    uint64_t inode; /* 0: none */
};

static struct {
    pthread_mutex_t lock;
    struct waiting ring[GATE_WAITING_MAX]; /* (room) from `next` on, the oldest first */
    unsigned room, next;                   /* room 0: this process has no endpoint */
    struct endpoint_gate_counts counts;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The inode of a socket; 0: the descriptor is none. The number may be any file's of any thread by now: the
 * thread sanitizer calls fstat of such a number a race. */
static uint64_t inode_of(int fd)
{
    struct statx info;
    return statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &info) == 0 && S_ISSOCK(info.stx_mode)
               ? info.stx_ino
               : 0;
}

/* Whether the connection is there still. Forgets one that libzmq has closed. */
static bool waiting_is_open(struct waiting *waiting)
{
    if (waiting->inode != 0 && inode_of(waiting->fd) != waiting->inode)
        waiting->inode = 0;
    return waiting->inode != 0;
}

/* libzmq reads the end of the connection and closes it. */
static void waiting_cut_off(struct waiting *waiting)
{
    if (waiting_is_open(waiting)) {
        shutdown(waiting->fd, SHUT_RDWR);
        gate.counts.crowded++;
    }
    waiting->inode = 0;
}

static void map_address(struct in6_addr *out, const struct in_addr *address)
{
    out->s6_addr[10] = out->s6_addr[11] = 0xff;
    memcpy(&out->s6_addr[12], address, sizeof *address);
}

static struct gate_place place_of_connection(int fd)
{
    struct gate_place place = {.pid = 0};
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } peer = {.any.sa_family = AF_UNSPEC};
    socklen_t bytes = sizeof peer;
    getpeername(fd, &peer.any, &bytes);
    if (peer.any.sa_family == AF_INET) {
        map_address(&place.address, &peer.v4.sin_addr);
    } else if (peer.any.sa_family == AF_INET6) {
        place.address = peer.v6.sin6_addr;
    } else {
        struct ucred process = {0};
        bytes = sizeof process;
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &process, &bytes);
        place.pid = process.pid;
    }
    return place;
}

static struct gate_place place_of_text(const char *from)
{
    struct gate_place place = {.pid = 0};
    struct in_addr v4;
    if (inet_pton(AF_INET, from, &v4) == 1)
        map_address(&place.address, &v4);
    else if (inet_pton(AF_INET6, from, &place.address) != 1)
        sscanf(from + strcspn(from, ":"), ":%*u:%*u:%d", &place.pid);
    return place;
}

static bool is_same_place(const struct gate_place *a, const struct gate_place *b)
{
    return a->pid == b->pid && memcmp(&a->address, &b->address, sizeof a->address) == 0;
}

static void gate_note(int fd)
{
    struct waiting *oldest = &gate.ring[gate.next];
    waiting_cut_off(oldest);
    *oldest = (struct waiting){.fd = fd, .from = place_of_connection(fd), .inode = inode_of(fd)};
    gate.next = (gate.next + 1) % gate.room;
    gate.counts.accepted++;
}

/* No descriptor is left: the connection that has waited longest gives up its own. libzmq closes it and asks
 * again. */
static void gate_make_room(void)
{
    const uint64_t before = gate.counts.crowded;
    for (unsigned i = 0; i < gate.room && gate.counts.crowded == before; i++)
        waiting_cut_off(&gate.ring[(gate.next + i) % gate.room]);
}

/* libzmq ignores ECONNABORTED and ends the process at other errnos. In a process without an endpoint the
 * caller is another library, such as the HTTP server's in the supervisor, which has limits of its own. */
int accept4(int listener, __SOCKADDR_ARG address, socklen_t *restrict address_bytes, int flags)
{
    const int fd = (int)syscall(SYS_accept4, listener, address.__sockaddr__, address_bytes, flags);
    const int errnum = errno;
    pthread_mutex_lock(&gate.lock);
    const bool is_used = gate.room > 0;
    if (is_used && fd >= 0)
        gate_note(fd);
    else if (is_used && (errnum == EMFILE || errnum == ENFILE))
        gate_make_room();
    pthread_mutex_unlock(&gate.lock);
    if (fd < 0)
        errno = !is_used || errnum == EAGAIN || errnum == EINTR ? errnum : ECONNABORTED;
    return fd;
}

void endpoint_gate_widen(unsigned count)
{
    pthread_mutex_lock(&gate.lock);
    if (count > GATE_WAITING_MAX)
        count = GATE_WAITING_MAX;
    if (count > gate.room)
        gate.room = count;
    pthread_mutex_unlock(&gate.lock);
}

void endpoint_gate_admit(const char *from)
{
    const struct gate_place place = place_of_text(from);
    pthread_mutex_lock(&gate.lock);
    for (unsigned i = 0; i < gate.room; i++) {
        if (gate.ring[i].inode == 0 || !is_same_place(&gate.ring[i].from, &place))
            continue;
        gate.ring[i].inode = 0;
        gate.counts.admitted++;
    }
    pthread_mutex_unlock(&gate.lock);
}

struct endpoint_gate_counts endpoint_gate_counts(void)
{
    pthread_mutex_lock(&gate.lock);
    struct endpoint_gate_counts counts = gate.counts;
    for (unsigned i = 0; i < gate.room; i++)
        counts.waiting += waiting_is_open(&gate.ring[i]);
    pthread_mutex_unlock(&gate.lock);
    return counts;
}
