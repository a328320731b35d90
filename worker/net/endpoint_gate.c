/* accept4 in the place of the C library's, and the ring of connections that wait. Threads: libzmq's I/O
 * thread accepts, closes connections and calls accept4; the owners of endpoints admit and count. The lock
 * guards the whole state.
 *
 * A connection is known by its descriptor and its inode: once libzmq has closed it, the descriptor is free or
 * another file's, and the inode differs. Nobody but the I/O thread, which is in accept4, closes a connection,
 * so one that is cut off here stays what it is. */
#include "worker/net/endpoint_gate.h"

#include "worker/net/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct waiting {
    int fd;
    pid_t pid;      /* at the other end; 0: the kernel does not name it */
    uint64_t inode; /* 0: none */
};

static struct {
    pthread_mutex_t lock;
    struct waiting ring[GATE_WAITING_MAX]; /* (room) from `next` on, the oldest first */
    unsigned room, next;
    struct endpoint_gate_counts counts;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .room = STRANGERS_MAX};

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

static void gate_note(int fd)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    struct waiting *oldest = &gate.ring[gate.next];
    waiting_cut_off(oldest);
    *oldest = (struct waiting){.fd = fd, .pid = peer.pid, .inode = inode_of(fd)};
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

/* libzmq ignores ECONNABORTED and ends the process at other errnos. */
int accept4(int listener, __SOCKADDR_ARG address, socklen_t *restrict address_bytes, int flags)
{
    int fd = (int)syscall(SYS_accept4, listener, address.__sockaddr__, address_bytes, flags);
    const int errnum = errno;
    pthread_mutex_lock(&gate.lock);
    if (fd >= 0)
        gate_note(fd);
    else if (errnum == EMFILE || errnum == ENFILE)
        gate_make_room();
    pthread_mutex_unlock(&gate.lock);
    if (fd < 0)
        errno = errnum == EAGAIN || errnum == EINTR ? errnum : ECONNABORTED;
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

void endpoint_gate_admit(pid_t pid)
{
    pthread_mutex_lock(&gate.lock);
    for (unsigned i = 0; i < gate.room; i++) {
        if (gate.ring[i].pid != pid || gate.ring[i].inode == 0)
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
