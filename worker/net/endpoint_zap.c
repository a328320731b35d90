/* The door is the handler of libzmq's authentication protocol. Thread: one of its own per context with a
 * bound endpoint, which owns the handler's socket. The count is atomic; the door's lock guards the pass and
 * the keys.
 *
 * The gate is accept4 in the place of the C library's, and the ring of connections that wait. Threads:
 * libzmq's I/O thread accepts, closes connections and calls accept4; the door admits; the owners of endpoints
 * count. The gate's lock guards its whole state. A connection is known by its descriptor and its inode: once
 * libzmq has closed it, the descriptor is free or another file's, and the inode differs. Nobody but the I/O
 * thread, which is in accept4, closes a connection, so one that is cut off here stays what it is. */
#include "worker/net/endpoint_zap.h"

#include "kernels/base/thread.h"
#include "worker/net/limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zmq.h>

/* ---- the gate ---- */

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

/* A connection from `from` has shown its pass or key: those from there that wait are not cut off any more.
 * `from` is libzmq's text: a network address, or HOST:UID:GID:PID of a unix socket's peer. */
static void gate_admit(const char *from)
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

/* ---- the door ---- */

/* A request's frames, as RFC 27 numbers them. PLAIN has two credentials, CURVE one: the public key. */
enum {
    ZAP_VERSION,
    ZAP_REQUEST,
    ZAP_DOMAIN,
    ZAP_ADDRESS,
    ZAP_IDENTITY,
    ZAP_MECHANISM,
    ZAP_USER,
    ZAP_PASSWORD,
    ZAP_FRAMES,
    ZAP_KEY = ZAP_USER
};

enum { ZAP_FRAME_BYTES = 257 }; /* a user or password has at most 255 bytes; behind it a zero */

struct endpoint_zap {
    void *socket;
    pthread_t thread;
    pthread_mutex_t lock;
    bool has_pass;
    struct wire_pass pass;
    struct host_keys keys;
    _Atomic uint64_t refused;
};

struct zap_frame {
    int bytes;
    char data[ZAP_FRAME_BYTES];
};

/* Receives a request. False: the context has ended. Frames beyond the last one are dropped. */
static bool door_receive(struct endpoint_zap *door, struct zap_frame frames[ZAP_FRAMES])
{
    int more = 1;
    size_t bytes = sizeof more;
    memset(frames, 0, ZAP_FRAMES * sizeof *frames);
    for (unsigned i = 0; more; i++) {
        struct zap_frame dropped, *frame = i < ZAP_FRAMES ? &frames[i] : &dropped;
        do
            frame->bytes = zmq_recv(door->socket, frame->data, sizeof frame->data - 1, 0);
        while (frame->bytes < 0 && zmq_errno() == EINTR);
        if (frame->bytes < 0 || zmq_getsockopt(door->socket, ZMQ_RCVMORE, &more, &bytes) != 0)
            return false;
    }
    return true;
}

/* `right` fills its room behind a terminating zero with zeros, as a frame does. */
static bool frame_is(const struct zap_frame *frame, const char *right, size_t right_bytes)
{
    return (size_t)frame->bytes == strlen(right) && sodium_memcmp(frame->data, right, right_bytes) == 0;
}

static bool is_right_pass(const struct endpoint_zap *door, const struct zap_frame frames[ZAP_FRAMES])
{
    const struct wire_pass *pass = &door->pass;
    return door->has_pass && frame_is(&frames[ZAP_USER], pass->user, sizeof pass->user) &&
           frame_is(&frames[ZAP_PASSWORD], pass->password, sizeof pass->password);
}

/* Whether the keys of some hosts are still to come. */
static bool lacks_keys(const struct host_keys *keys)
{
    for (unsigned i = 0; i < keys->count; i++)
        if (sodium_is_zero(keys->public_of_host[i], HOST_KEY_BYTES))
            return true;
    return false;
}

/* Whether the door lets this connection in, as a status of ZAP: 200 yes, 400 no. 300: not yet. The host whose
 * key is still to come is not told of it, and tries again; after 400 it would not. `user`: the host's number
 * where the connection has a key, else empty. */
static const char *door_judge(struct endpoint_zap *door, const struct zap_frame frames[ZAP_FRAMES],
                              char user[8])
{
    bool agrees = false, early = false;
    user[0] = '\0';
    pthread_mutex_lock(&door->lock);
    if (frame_is(&frames[ZAP_MECHANISM], "PLAIN", sizeof "PLAIN")) {
        agrees = is_right_pass(door, frames);
    } else if (frame_is(&frames[ZAP_MECHANISM], "CURVE", sizeof "CURVE") &&
               frames[ZAP_KEY].bytes == HOST_KEY_BYTES) {
        const int host = host_keys_find(&door->keys, (const uint8_t *)frames[ZAP_KEY].data);
        agrees = host >= 0;
        early = lacks_keys(&door->keys);
        if (agrees)
            snprintf(user, 8, "%d", host);
    }
    pthread_mutex_unlock(&door->lock);
    return agrees ? "200" : early ? "300" : "400";
}

static void door_answer(struct endpoint_zap *door, const struct zap_frame *request, const char *status,
                        const char *user)
{
    zmq_send(door->socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(door->socket, request->data, (size_t)request->bytes, ZMQ_SNDMORE);
    zmq_send(door->socket, status, strlen(status), ZMQ_SNDMORE);
    zmq_send(door->socket, "", 0, ZMQ_SNDMORE); /* the status's text, */
    zmq_send(door->socket, user, strlen(user), ZMQ_SNDMORE);
    zmq_send(door->socket, "", 0, 0); /* and metadata */
}

static void *door_run(void *arg)
{
    struct endpoint_zap *door = arg;
    struct zap_frame frames[ZAP_FRAMES];
    while (door_receive(door, frames)) {
        char user[8];
        const char *status = door_judge(door, frames, user);
        if (status[0] == '2')
            gate_admit(frames[ZAP_ADDRESS].data);
        else if (status[0] == '4')
            atomic_fetch_add(&door->refused, 1);
        door_answer(door, &frames[ZAP_REQUEST], status, user);
    }
    zmq_close(door->socket);
    return NULL;
}

void endpoint_zap_pass(struct endpoint_zap *door, const struct wire_pass *pass)
{
    pthread_mutex_lock(&door->lock);
    door->pass = *pass;
    door->has_pass = true;
    pthread_mutex_unlock(&door->lock);
}

void endpoint_zap_keys(struct endpoint_zap *door, const struct host_keys *keys)
{
    pthread_mutex_lock(&door->lock);
    door->keys = *keys;
    pthread_mutex_unlock(&door->lock);
}

enum status endpoint_zap_open(struct endpoint_zap **out, void *zmq_context, struct error *error)
{
    const int linger = 0;
    struct endpoint_zap *door = calloc(1, sizeof *door);
    if (door == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a socket's door");
    pthread_mutex_init(&door->lock, NULL);
    door->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (door->socket == NULL || zmq_setsockopt(door->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(door->socket, "inproc://zeromq.zap.01") != 0) {
        error_set(error, STATUS_IO, "cannot open a socket's door: %s", zmq_strerror(zmq_errno()));
        goto fail;
    }
    if (thread_start(&door->thread, door_run, door, "the thread of a socket's door", error) != STATUS_OK)
        goto fail;
    *out = door;
    return STATUS_OK;
fail:
    if (door->socket != NULL)
        zmq_close(door->socket);
    free(door);
    return STATUS_IO;
}

void endpoint_zap_free(struct endpoint_zap *door)
{
    if (door == NULL)
        return;
    pthread_join(door->thread, NULL);
    free(door);
}

uint64_t endpoint_zap_refused(const struct endpoint_zap *door)
{
    return atomic_load(&door->refused);
}
