/* ZeroMQ sockets: opening, sending, receiving and waiting, and the work that libzmq leaves to its users:
 * frame counts, silent drops, edge triggered descriptors. Thread: the owner of the endpoint and of those
 * beside it. libzmq's own I/O thread (one per context, so one for all of these) does the system calls on the
 * connections.
 *
 * Waiting is done here with ppoll(2) on ZMQ_FD rather than by zmq_poll, which asks for every event twice
 * before it sleeps. The descriptor is edge triggered, and signals commands, not messages. It is safe to sleep
 * on it only after the socket has been found empty with all its commands processed, which is what a refused
 * receive does; `quiet` remembers that nothing has touched the socket since. Before sleeping on several
 * sockets, all of them must be quiet. */
#include "worker/net/endpoint.h"

#include "kernels/base/log.h"
#include "kernels/base/thread.h"
#include "worker/net/endpoint_zap.h"
#include "worker/net/wire.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

/* Hidden in the header of libzmq 4.3.4, which has it. Without it a socket whose ZAP handler does not answer
 * lets every key in. */
#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
#define ZMQ_ZAP_ENFORCE_DOMAIN 93
#endif

_Static_assert(sizeof(zmq_msg_t) <= ENDPOINT_FRAME_WORDS * sizeof(uint64_t), "a frame fits its place");
_Static_assert(_Alignof(zmq_msg_t) <= _Alignof(uint64_t), "a frame may lie there");

enum {
    FRAME_BYTES_SLACK = 4096, /* frames a little too long are refused by name, longer by libzmq */
    CONNECT_MS = 2000,        /* between hosts: then another connection is tried */
    HANDSHAKE_MS = 5000,      /* between hosts */
    ROUTING_ID_BYTES = 5,     /* an automatic routing id: a zero byte and a 32-bit number */
    SPIN_US = 150,            /* a round trip on idle processors, and some */
    SPINS_IN_VAIN_MAX = 3,
    SLEEPS_PER_TRIAL = 64,
    UNWATCHED_MAX = 32,
    SENDING_WAIT_US_MAX = 1000,    /* how often a refused send is tried again at the least */
    STRANGERS_EVERY_US = 10000000, /* between two warnings */
    STRANGERS_LOOK_US = 100000,
};

/* A ZeroMQ context and how many endpoints live in it; all of one thread. */
struct shared_context {
    void *zmq;
    unsigned users;
    struct endpoint_zap *door; /* of the bound endpoints; NULL: there is none */
};

struct endpoint {
    struct shared_context *context;
    void *socket;
    void *monitor; /* of a DEALER with keys: tells of handshakes that failed */
    int fd;
    bool is_router;
    bool quiet; /* the last thing done to the socket was a receive that found nothing */
    char *path; /* of a bound ipc socket, else NULL */
    dev_t path_device;
    ino_t path_inode;
    /* Of waits in which this one comes first: */
    unsigned spins_in_vain; /* since the last that found something */
    unsigned sleeps;        /* since the last spin */
    unsigned unwatched;     /* that messages ended before the watches were looked at */
};

/* The process's contexts, A_CONTEXT each, and messages, in one number: each message that is prepared or
 * received must be sent or released before the last context is freed. A leak checker cannot test this: libzmq
 * 4.3.4 itself loses the first frame of a message whose rest is under way when its socket is closed right
 * behind a send (test/lsan.supp). */
static const int64_t A_CONTEXT = INT64_C(1) << 32;
static _Atomic int64_t alive;

static void endpoint_count_message(int change)
{
    atomic_fetch_add_explicit(&alive, change, memory_order_relaxed);
}

/* ---- opening and closing: contexts, options, credentials, addresses ---- */

static enum status socket_set_options(struct endpoint *endpoint, struct error *error)
{
    int queue = WIRE_QUEUE_MAX, linger = 0, mandatory = 1;
    int64_t frame_bytes_max = WIRE_PAYLOAD_BYTES_MAX + FRAME_BYTES_SLACK;
    void *socket = endpoint->socket;
    bool failed = zmq_setsockopt(socket, ZMQ_SNDHWM, &queue, sizeof queue) != 0 ||
                  zmq_setsockopt(socket, ZMQ_RCVHWM, &queue, sizeof queue) != 0 ||
                  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
                  zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame_bytes_max, sizeof frame_bytes_max) != 0;
    if (endpoint->is_router)
        failed = failed || zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory) != 0;
    size_t bytes = sizeof endpoint->fd;
    failed = failed || zmq_getsockopt(socket, ZMQ_FD, &endpoint->fd, &bytes) != 0;
    return failed ? error_set(error, STATUS_IO, "a ZeroMQ socket's options: %s", zmq_strerror(errno))
                  : STATUS_OK;
}

static enum status context_open_door(struct shared_context *context, struct error *error)
{
    return context->door != NULL ? STATUS_OK : endpoint_zap_open(&context->door, context->zmq, error);
}

/* A ROUTER asks for the pass, a DEALER shows it. */
static enum status socket_set_pass(struct endpoint *endpoint, const struct wire_pass *pass,
                                   struct error *error)
{
    const int is_server = 1;
    void *socket = endpoint->socket;
    bool failed;
    if (endpoint->is_router)
        failed = zmq_setsockopt(socket, ZMQ_PLAIN_SERVER, &is_server, sizeof is_server) != 0;
    else
        failed = zmq_setsockopt(socket, ZMQ_PLAIN_USERNAME, pass->user, strlen(pass->user)) != 0 ||
                 zmq_setsockopt(socket, ZMQ_PLAIN_PASSWORD, pass->password, strlen(pass->password)) != 0;
    if (failed)
        return error_set(error, STATUS_IO, "a ZeroMQ socket's pass: %s", zmq_strerror(errno));
    if (!endpoint->is_router)
        return STATUS_OK;
    const enum status status = context_open_door(endpoint->context, error);
    if (status == STATUS_OK)
        endpoint_zap_pass(endpoint->context->door, pass);
    return status;
}

/* A ROUTER has the door look each key up. An empty ZAP domain cannot be enforced. */
static enum status socket_set_router_keys(struct endpoint *endpoint, const struct host_keys *keys,
                                          struct error *error)
{
    static const char domain[] = "coalesced";
    const int yes = 1;
    void *socket = endpoint->socket;
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &yes, sizeof yes) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, HOST_KEY_BYTES) != 0 ||
        zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, sizeof domain - 1) != 0 ||
        zmq_setsockopt(socket, ZMQ_ZAP_ENFORCE_DOMAIN, &yes, sizeof yes) != 0)
        return error_set(error, STATUS_IO, "a ZeroMQ socket's keys: %s", zmq_strerror(errno));
    const enum status status = context_open_door(endpoint->context, error);
    if (status == STATUS_OK)
        endpoint_zap_keys(endpoint->context->door, keys);
    return status;
}

static enum status socket_set_keys(struct endpoint *endpoint, const struct endpoint_credentials *shown,
                                   struct error *error)
{
    const struct host_keys *keys = shown->keys;
    const int handshake_ms = HANDSHAKE_MS, connect_ms = CONNECT_MS;
    void *socket = endpoint->socket;
    assert(keys != NULL);
    if (!zmq_has("curve"))
        return error_set(error, STATUS_UNAVAILABLE,
                         "this libzmq has no CURVE: expected one that was built with libsodium");
    if (zmq_setsockopt(socket, ZMQ_HANDSHAKE_IVL, &handshake_ms, sizeof handshake_ms) != 0)
        return error_set(error, STATUS_IO, "a ZeroMQ socket's handshake: %s", zmq_strerror(errno));
    if (endpoint->is_router)
        return socket_set_router_keys(endpoint, keys, error);
    /* The kernel waits ever longer between its tries to reach a host that is silent. */
    if (zmq_setsockopt(socket, ZMQ_CONNECT_TIMEOUT, &connect_ms, sizeof connect_ms) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys->public_of_host[shown->host], HOST_KEY_BYTES) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->public_of_host[keys->host], HOST_KEY_BYTES) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, HOST_KEY_BYTES) != 0)
        return error_set(error, STATUS_IO, "a ZeroMQ socket's keys: %s", zmq_strerror(errno));
    return STATUS_OK;
}

/* Before the socket connects, so that no failure is missed. */
static enum status socket_monitor(struct endpoint *endpoint, struct error *error)
{
    char address[64];
    const int failures = ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                         ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
    snprintf(address, sizeof address, "inproc://monitor-%p", endpoint->socket);
    if (zmq_socket_monitor(endpoint->socket, address, failures) == 0)
        endpoint->monitor = zmq_socket(endpoint->context->zmq, ZMQ_PAIR);
    return endpoint->monitor != NULL && zmq_connect(endpoint->monitor, address) == 0
               ? STATUS_OK
               : error_set(error, STATUS_IO, "a ZeroMQ socket's monitor: %s", zmq_strerror(errno));
}

static void *thread_wait(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

static enum status context_try_memory(struct error *error)
{
    enum { ROOM_MIB = 64 };
    char limits[THREAD_LIMITS_BYTES];
    void *room = mmap(NULL, (size_t)ROOM_MIB << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room != MAP_FAILED) {
        munmap(room, (size_t)ROOM_MIB << 20);
        return STATUS_OK;
    }
    thread_limits(limits);
    return error_set(error, STATUS_IO, "ZeroMQ needs room for %d MiB more%s", ROOM_MIB, limits);
}

/* libzmq ends the process where it cannot start its two threads or has no memory, so that is tried first. */
static enum status context_try(struct error *error)
{
    enum { THREADS = 2 };
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[THREADS];
    unsigned count = 0;
    enum status status = STATUS_OK;
    pthread_mutex_lock(&gate);
    while (count < THREADS && status == STATUS_OK) {
        status = thread_start(&threads[count], thread_wait, &gate, "the threads of ZeroMQ", error);
        count += status == STATUS_OK;
    }
    if (status == STATUS_OK)
        status = context_try_memory(error);
    pthread_mutex_unlock(&gate);
    while (count > 0)
        pthread_join(threads[--count], NULL);
    return status;
}

static enum status context_new(struct shared_context **out, struct error *error)
{
    const enum status status = context_try(error);
    if (status != STATUS_OK)
        return status;
    struct shared_context *context = malloc(sizeof *context);
    void *zmq = context != NULL ? zmq_ctx_new() : NULL;
    if (zmq == NULL) {
        free(context);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a ZeroMQ context");
    }
    *context = (struct shared_context){.zmq = zmq};
    atomic_fetch_add(&alive, A_CONTEXT);
    *out = context;
    return STATUS_OK;
}

/* The last endpoint waits for messages that linger in sockets that were closed before. */
static void context_leave(struct shared_context *context)
{
    if (context == NULL || --context->users > 0)
        return;
    while (zmq_ctx_term(context->zmq) != 0 && errno == EINTR)
        ;
    endpoint_zap_free(context->door);
    free(context);
    const int64_t left = atomic_fetch_sub(&alive, A_CONTEXT) - A_CONTEXT;
    assert(left == 0 || left > A_CONTEXT / 2);
    (void)left;
}

/* libzmq removes any file at the path before it binds: so no file may be there. */
static enum status address_check_path(const char *address, bool is_bind, struct error *error)
{
    const char *path = address + strlen("ipc://");
    struct stat info;
    if (strncmp(address, "ipc:///", strlen("ipc:///")) != 0)
        return error_set(error, STATUS_INVALID, "%s: expected ipc:// and an absolute path", address);
    if (strlen(path) > sizeof((struct sockaddr_un *)0)->sun_path - 1)
        return error_set(error, STATUS_INVALID, "%s: the path has %zu bytes, expected at most 107", address,
                         strlen(path));
    if (is_bind && lstat(path, &info) == 0)
        return error_set(error, STATUS_BUSY, "%s: the path exists", address);
    return STATUS_OK;
}

static enum status address_check(const char *address, bool is_bind, bool is_far, struct error *error)
{
    if (!is_far)
        return address_check_path(address, is_bind, error);
    return strncmp(address, "tcp://", strlen("tcp://")) == 0
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "%s: expected tcp:// between hosts", address);
}

/* Makes the socket. The caller gives *out and the status to endpoint_keep, after a failure, too. */
static enum status endpoint_open(struct endpoint **out, struct endpoint *beside, const char *address,
                                 bool is_router, const struct endpoint_credentials *shown,
                                 struct error *error)
{
    enum status status = address_check(address, is_router, shown->pass == NULL, error);
    struct endpoint *endpoint = *out = status == STATUS_OK ? calloc(1, sizeof *endpoint) : NULL;
    if (status != STATUS_OK)
        return status;
    if (endpoint == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a socket");
    endpoint->is_router = is_router;
    if (beside != NULL)
        endpoint->context = beside->context;
    else
        status = context_new(&endpoint->context, error);
    if (status != STATUS_OK)
        return status;
    endpoint->context->users++;
    endpoint->socket = zmq_socket(endpoint->context->zmq, is_router ? ZMQ_ROUTER : ZMQ_DEALER);
    status = endpoint->socket != NULL ? socket_set_options(endpoint, error)
                                      : error_set_errno(error, errno, "cannot make a ZeroMQ socket");
    if (status == STATUS_OK)
        status = shown->pass != NULL ? socket_set_pass(endpoint, shown->pass, error)
                                     : socket_set_keys(endpoint, shown, error);
    if (status == STATUS_OK && shown->pass == NULL && !is_router)
        status = socket_monitor(endpoint, error);
    return status;
}

/* Gives out an endpoint, or frees it after a failure. */
static enum status endpoint_keep(struct endpoint **out, struct endpoint *endpoint, enum status status)
{
    if (status == STATUS_OK)
        *out = endpoint;
    else
        endpoint_free(endpoint, 0);
    return status;
}

static enum status endpoint_remember_path(struct endpoint *endpoint, const char *path, struct error *error)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return error_set_errno(error, errno, "%s", path);
    endpoint->path = strdup(path);
    if (endpoint->path == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for the name", path);
    endpoint->path_device = info.st_dev;
    endpoint->path_inode = info.st_ino;
    return STATUS_OK;
}

enum status endpoint_bind(struct endpoint **out, struct endpoint *beside, const char *address,
                          const struct endpoint_credentials *asked, unsigned peers, struct error *error)
{
    struct endpoint *endpoint;
    enum status status = endpoint_open(&endpoint, beside, address, true, asked, error);
    if (status == STATUS_OK)
        endpoint_gate_widen(STRANGERS_MAX + peers);
    if (status == STATUS_OK && zmq_bind(endpoint->socket, address) != 0) {
        int errnum = errno;
        status = errnum == EADDRINUSE ? error_set(error, STATUS_BUSY, "%s: the address is in use", address)
                                      : error_set(error,
                                                  errnum == EACCES || errnum == EPERM ? STATUS_PERMISSION
                                                  : errnum == EINVAL                  ? STATUS_INVALID
                                                                                      : STATUS_IO,
                                                  "%s: %s", address, zmq_strerror(errnum));
    } else if (status == STATUS_OK && asked->pass != NULL) {
        status = endpoint_remember_path(endpoint, address + strlen("ipc://"), error);
    }
    return endpoint_keep(out, endpoint, status);
}

enum status endpoint_connect(struct endpoint **out, struct endpoint *beside, const char *address,
                             const struct endpoint_credentials *shown, struct error *error)
{
    struct endpoint *endpoint;
    assert(shown->pass != NULL || shown->host < shown->keys->count);
    enum status status = endpoint_open(&endpoint, beside, address, false, shown, error);
    if (status == STATUS_OK && zmq_connect(endpoint->socket, address) != 0)
        status = error_set(error, errno == EINVAL ? STATUS_INVALID : STATUS_IO, "%s: %s", address,
                           zmq_strerror(errno));
    return endpoint_keep(out, endpoint, status);
}

/* An event is two frames: its number and its value, and the address. */
enum endpoint_refusal endpoint_refusal(struct endpoint *endpoint)
{
    enum endpoint_refusal refusal = ENDPOINT_NOT_REFUSED;
    uint8_t event[6];
    char address[256];
    while (zmq_recv(endpoint->monitor, event, sizeof event, ZMQ_DONTWAIT) >= (int)sizeof(uint16_t)) {
        uint16_t number;
        memcpy(&number, event, sizeof number);
        zmq_recv(endpoint->monitor, address, sizeof address, ZMQ_DONTWAIT);
        if (number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
            refusal = ENDPOINT_KEY_REFUSED;
        else if (refusal == ENDPOINT_NOT_REFUSED)
            refusal = ENDPOINT_BROKEN_OFF;
    }
    return refusal;
}

void endpoint_admit(struct endpoint *endpoint, const struct host_keys *keys)
{
    endpoint_zap_keys(endpoint->context->door, keys);
}

uint16_t endpoint_port(const struct endpoint *endpoint)
{
    char address[128];
    size_t bytes = sizeof address;
    const char *colon = zmq_getsockopt(endpoint->socket, ZMQ_LAST_ENDPOINT, address, &bytes) == 0
                            ? strrchr(address, ':')
                            : NULL;
    return colon != NULL ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
}

void endpoint_free(struct endpoint *endpoint, int linger_ms)
{
    if (endpoint == NULL)
        return;
    if (endpoint->socket != NULL) {
        zmq_setsockopt(endpoint->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_close(endpoint->socket);
    }
    if (endpoint->monitor != NULL)
        zmq_close(endpoint->monitor);
    context_leave(endpoint->context);
    struct stat info;
    if (endpoint->path != NULL && lstat(endpoint->path, &info) == 0 && info.st_dev == endpoint->path_device &&
        info.st_ino == endpoint->path_inode)
        unlink(endpoint->path);
    free(endpoint->path);
    free(endpoint);
}

/* ---- sending ---- */

static zmq_msg_t *message_frame(struct endpoint_message *message, unsigned i)
{
    return (zmq_msg_t *)message->frames[i];
}

enum status endpoint_prepare(struct endpoint_message *message, uint32_t peer, const uint8_t *header,
                             size_t header_bytes, size_t payload_bytes)
{
    if (zmq_msg_init_size(message_frame(message, 0), header_bytes) != 0)
        return STATUS_NO_MEMORY;
    if (zmq_msg_init_size(message_frame(message, 1), payload_bytes) != 0) {
        zmq_msg_close(message_frame(message, 0));
        return STATUS_NO_MEMORY;
    }
    memcpy(zmq_msg_data(message_frame(message, 0)), header, header_bytes);
    message->peer = peer;
    message->header = zmq_msg_data(message_frame(message, 0));
    message->header_bytes = header_bytes;
    message->payload = zmq_msg_data(message_frame(message, 1));
    message->payload_bytes = payload_bytes;
    endpoint_count_message(1);
    return STATUS_OK;
}

static enum status endpoint_send_status(int errnum)
{
    return errnum == EAGAIN ? STATUS_AGAIN : errnum == EHOSTUNREACH ? STATUS_NOT_FOUND : STATUS_IO;
}

static int endpoint_send_frame(struct endpoint *endpoint, zmq_msg_t *message, int flags)
{
    int rc;
    do
        rc = zmq_msg_send(message, endpoint->socket, flags | ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    return rc;
}

/* A ROUTER decides with the first frame, the routing id, whether the whole message can go; a DEALER with the
 * header. A later frame fails only because the connection has just ended, and the frames before it are lost
 * with it. */
enum status endpoint_send(struct endpoint *endpoint, struct endpoint_message *message)
{
    endpoint->quiet = false;
    if (endpoint->is_router) {
        zmq_msg_t id;
        zmq_msg_init_size(&id, ROUTING_ID_BYTES);
        uint8_t *bytes = zmq_msg_data(&id);
        bytes[0] = 0;
        memcpy(bytes + 1, &message->peer, sizeof message->peer);
        if (endpoint_send_frame(endpoint, &id, ZMQ_SNDMORE) < 0) {
            enum status status = endpoint_send_status(errno);
            zmq_msg_close(&id);
            return status;
        }
        if (endpoint_send_frame(endpoint, message_frame(message, 0), ZMQ_SNDMORE) < 0)
            return STATUS_NOT_FOUND;
    } else if (endpoint_send_frame(endpoint, message_frame(message, 0), ZMQ_SNDMORE) < 0) {
        return endpoint_send_status(errno);
    }
    if (endpoint_send_frame(endpoint, message_frame(message, 1), 0) < 0)
        return STATUS_NOT_FOUND;
    endpoint_count_message(-1);
    return STATUS_OK;
}

/* ---- receiving ---- */

static enum status endpoint_receive_frame(struct endpoint *endpoint, zmq_msg_t *message)
{
    zmq_msg_init(message);
    int rc;
    do
        rc = zmq_msg_recv(message, endpoint->socket, ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    if (rc >= 0)
        return STATUS_OK;
    return errno == EAGAIN ? STATUS_AGAIN : STATUS_IO;
}

/* Takes the rest of a message that has too many frames. All of them lie in libzmq's memory already; each is
 * released before the next is received. */
static void endpoint_drop_rest(struct endpoint *endpoint)
{
    bool more = true;
    while (more) {
        zmq_msg_t rest;
        if (endpoint_receive_frame(endpoint, &rest) != STATUS_OK)
            return;
        more = zmq_msg_more(&rest) != 0;
        zmq_msg_close(&rest);
    }
}

/* 0 when the peer chose its own routing id: such a peer is sent nothing. */
static uint32_t peer_of_routing_id(zmq_msg_t *id)
{
    uint32_t peer = 0;
    const uint8_t *bytes = zmq_msg_data(id);
    if (zmq_msg_size(id) == ROUTING_ID_BYTES && bytes[0] == 0)
        memcpy(&peer, bytes + 1, sizeof peer);
    return peer;
}

enum status endpoint_receive(struct endpoint *endpoint, struct endpoint_message *message)
{
    zmq_msg_t *header = message_frame(message, 0), *payload = message_frame(message, 1);
    enum status status = endpoint_receive_frame(endpoint, header);
    endpoint->quiet = status == STATUS_AGAIN;
    if (status != STATUS_OK)
        return status;
    message->peer = 0;
    bool more = zmq_msg_more(header) != 0;
    if (endpoint->is_router) {
        message->peer = peer_of_routing_id(header);
        zmq_msg_close(header);
        if (!more || endpoint_receive_frame(endpoint, header) != STATUS_OK)
            return STATUS_INVALID;
        more = zmq_msg_more(header) != 0;
    }
    if (!more || endpoint_receive_frame(endpoint, payload) != STATUS_OK) {
        zmq_msg_close(header);
        return STATUS_INVALID;
    }
    more = zmq_msg_more(payload) != 0;
    message->header = zmq_msg_data(header);
    message->header_bytes = zmq_msg_size(header);
    message->payload = zmq_msg_data(payload);
    message->payload_bytes = zmq_msg_size(payload);
    endpoint_count_message(1);
    bool is_nameless = endpoint->is_router && message->peer == 0;
    if (!more && !is_nameless && message->payload_bytes <= WIRE_PAYLOAD_BYTES_MAX)
        return STATUS_OK;
    endpoint_release(message);
    if (more)
        endpoint_drop_rest(endpoint);
    return STATUS_INVALID;
}

void endpoint_release(struct endpoint_message *message)
{
    zmq_msg_close(message_frame(message, 0));
    zmq_msg_close(message_frame(message, 1));
    endpoint_count_message(-1);
}

int endpoint_message_host(const struct endpoint_message *message)
{
    const char *user = zmq_msg_gets((const zmq_msg_t *)message->frames[1], "User-Id");
    return user != NULL && user[0] >= '0' && user[0] <= '9' ? atoi(user) : -1;
}

const char *endpoint_message_from(const struct endpoint_message *message)
{
    const char *from = zmq_msg_gets((const zmq_msg_t *)message->frames[1], "Peer-Address");
    return from != NULL ? from : "";
}

struct endpoint_counts endpoint_counts(const struct endpoint *endpoint)
{
    const struct endpoint_gate_counts gate = endpoint_gate_counts();
    const struct endpoint_zap *door = endpoint->context->door;
    return (struct endpoint_counts){.unproven = gate.accepted - gate.admitted - gate.waiting,
                                    .refused = door != NULL ? endpoint_zap_refused(door) : 0,
                                    .crowded = gate.crowded};
}

void strangers_report(struct strangers *reported, const char *whose, const struct endpoint_counts *counts,
                      uint64_t ignored, struct monotime now)
{
    const uint64_t sum = counts->unproven + counts->refused + counts->crowded + ignored;
    reported->due = monotime_add_us(now, sum == reported->sum ? STRANGERS_LOOK_US : STRANGERS_EVERY_US);
    if (sum == reported->sum)
        return;
    reported->sum = sum;
    log_warning("strangers at %s socket since the start: %" PRIu64
                " connections ended without this job's pass, %" PRIu64 " showed a wrong one, %" PRIu64
                " were cut off because too many waited, %" PRIu64 " messages were ignored",
                whose, counts->unproven, counts->refused, counts->crowded, ignored);
}

void endpoint_move(struct endpoint_message *to, struct endpoint_message *from)
{
    for (unsigned i = 0; i < 2; i++) {
        zmq_msg_init(message_frame(to, i));
        zmq_msg_move(message_frame(to, i), message_frame(from, i));
    }
    to->peer = from->peer;
    to->header = zmq_msg_data(message_frame(to, 0));
    to->header_bytes = from->header_bytes;
    to->payload = zmq_msg_data(message_frame(to, 1));
    to->payload_bytes = from->payload_bytes;
}

/* ---- waiting ---- */

static enum status endpoint_can_receive(struct endpoint *endpoint, bool *can)
{
    int events;
    size_t bytes = sizeof events;
    if (zmq_getsockopt(endpoint->socket, ZMQ_EVENTS, &events, &bytes) != 0) {
        *can = false;
        return errno == EINTR ? STATUS_OK : STATUS_IO;
    }
    *can = (events & ZMQ_POLLIN) != 0;
    endpoint->quiet = !*can;
    return STATUS_OK;
}

/* As endpoint_can_receive, for the endpoints of a set that are not quiet. `*all_quiet`: all of them are
 * quiet, so that a sleep is safe. */
static enum status endpoints_can_receive(struct endpoint *const *endpoints, size_t count, bool *can,
                                         bool *all_quiet)
{
    enum status status = STATUS_OK;
    *can = false;
    *all_quiet = true;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        bool can_this = false;
        if (!endpoints[i]->quiet)
            status = endpoint_can_receive(endpoints[i], &can_this);
        *can = *can || can_this;
        *all_quiet = *all_quiet && endpoints[i]->quiet;
    }
    return status;
}

static int endpoints_poll_until(struct pollfd *fds, size_t count, struct monotime until)
{
    if (monotime_is_never(until))
        return ppoll(fds, count, NULL, NULL);
    uint64_t now_ns = monotime_now().ns;
    uint64_t left_ns = until.ns > now_ns ? until.ns - now_ns : 0;
    struct timespec left = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
    return ppoll(fds, count, &left, NULL);
}

/* One sleep. A readable descriptor counts as a message; the receive that follows finds out. */
static enum status endpoints_sleep_once(struct endpoint *const *endpoints, size_t endpoint_count,
                                        struct endpoint_watch *watches, size_t count, struct monotime until,
                                        bool *readable)
{
    struct pollfd fds[ENDPOINT_SET_MAX + ENDPOINT_WATCH_MAX], *sockets = fds + count;
    for (size_t i = 0; i < count; i++)
        fds[i] = (struct pollfd){.fd = watches[i].fd, .events = POLLIN};
    for (size_t i = 0; i < endpoint_count; i++)
        sockets[i] = (struct pollfd){.fd = endpoints[i]->fd, .events = POLLIN};
    int ready = endpoints_poll_until(fds, count + endpoint_count, until);
    if (ready < 0)
        return errno == EINTR ? STATUS_OK : STATUS_IO;
    for (size_t i = 0; i < count && ready > 0; i++)
        watches[i].ready = fds[i].revents != 0;
    for (size_t i = 0; i < endpoint_count; i++)
        *readable = *readable || sockets[i].revents != 0;
    return STATUS_OK;
}

/* Looks again and again before the sleep, because waking an idle processor takes several times as long as a
 * switch of context. The yield lets other processes of this processor run. After three spins that found
 * nothing a wait sleeps at once, and one wait of 64 spins again: where workers outnumber processors, the next
 * message is far off. */
static enum status endpoints_spin(struct endpoint *const *endpoints, size_t count, struct monotime until,
                                  bool *readable)
{
    struct endpoint *first = endpoints[0];
    if (first->spins_in_vain >= SPINS_IN_VAIN_MAX && ++first->sleeps < SLEEPS_PER_TRIAL)
        return STATUS_OK;
    first->sleeps = 0;
    enum status status = STATUS_OK;
    until = monotime_earliest(until, monotime_add_us(monotime_now(), SPIN_US));
    do {
        sched_yield();
        for (size_t i = 0; i < count && status == STATUS_OK && !*readable; i++)
            status = endpoint_can_receive(endpoints[i], readable);
    } while (status == STATUS_OK && !*readable && monotime_before(monotime_now(), until));
    first->spins_in_vain = *readable ? 0 : first->spins_in_vain + 1;
    return status;
}

enum status endpoint_wait(struct endpoint *const *endpoints, size_t endpoint_count,
                          struct endpoint_watch *watches, size_t count, bool sending, struct monotime until,
                          bool *readable)
{
    assert(endpoint_count >= 1 && endpoint_count <= ENDPOINT_SET_MAX && count <= ENDPOINT_WATCH_MAX);
    bool is_glance = until.ns == 0, all_quiet;
    enum status status = endpoints_can_receive(endpoints, endpoint_count, readable, &all_quiet);
    if (status == STATUS_OK && !*readable && !is_glance)
        status = endpoints_spin(endpoints, endpoint_count, until, readable);
    for (size_t i = 0; i < count; i++)
        watches[i].ready = false;
    bool is_early = *readable && !is_glance;
    if (status != STATUS_OK || (is_early && ++endpoints[0]->unwatched < UNWATCHED_MAX))
        return status;
    endpoints[0]->unwatched = 0;
    if (is_early || !all_quiet) /* messages that keep coming must not hide the watches for ever */
        until = (struct monotime){0};
    if (sending)
        until = monotime_earliest(until, monotime_add_us(monotime_now(), SENDING_WAIT_US_MAX));
    return endpoints_sleep_once(endpoints, endpoint_count, watches, count, until, readable);
}
