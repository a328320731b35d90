/* Opening and closing endpoints: contexts, options, credentials, addresses. Run by the one thread that owns
 * the endpoint. */
#include "worker/net/endpoint_internal.h"

#include "kernels/base/thread.h"
#include "worker/net/endpoint_door.h"
#include "worker/net/endpoint_gate.h"
#include "worker/net/wire.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
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

enum {
    CONNECT_MS = 2000,   /* between hosts: then another connection is tried */
    HANDSHAKE_MS = 5000, /* between hosts */
};

/* The process's contexts, A_CONTEXT each, and messages, in one number: each message that is prepared or
 * received must be sent or released before the last context is freed. A leak checker cannot test this: libzmq
 * 4.3.4 itself loses the first frame of a message whose rest is under way when its socket is closed right
 * behind a send (test/lsan.supp). */
static const int64_t A_CONTEXT = INT64_C(1) << 32;
static _Atomic int64_t alive;

void endpoint_count_message(int change)
{
    atomic_fetch_add_explicit(&alive, change, memory_order_relaxed);
}

static enum status socket_set_options(struct endpoint *endpoint, struct error *error)
{
    int queue = WIRE_QUEUE_MAX, linger = 0, mandatory = 1;
    int64_t frame_bytes_max = WIRE_PAYLOAD_BYTES_MAX + ENDPOINT_FRAME_BYTES_SLACK;
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

/* How an endpoint knows the other ends of its connections: by a pass on one host, by keys between hosts. */
struct credentials {
    const struct wire_pass *pass; /* NULL: keys */
    const struct host_keys *keys;
    uint16_t host; /* a DEALER's: where the listener is */
};

static enum status context_open_door(struct shared_context *context, struct error *error)
{
    return context->door != NULL ? STATUS_OK : endpoint_door_open(&context->door, context->zmq, error);
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
        endpoint_door_pass(endpoint->context->door, pass);
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
        endpoint_door_keys(endpoint->context->door, keys);
    return status;
}

static enum status socket_set_keys(struct endpoint *endpoint, const struct credentials *shown,
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
    endpoint_door_free(context->door);
    free(context);
    const int64_t left = atomic_fetch_sub(&alive, A_CONTEXT) - A_CONTEXT;
    assert(left == 0 || left > A_CONTEXT / 2);
    (void)left;
}

static enum status endpoint_open(struct endpoint **out, struct endpoint *beside, bool is_router,
                                 const struct credentials *shown, struct error *error)
{
    struct endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a socket");
    enum status status = STATUS_OK;
    endpoint->is_router = is_router;
    if (beside != NULL)
        endpoint->context = beside->context;
    else
        status = context_new(&endpoint->context, error);
    if (status == STATUS_OK) {
        endpoint->context->users++;
        endpoint->socket = zmq_socket(endpoint->context->zmq, is_router ? ZMQ_ROUTER : ZMQ_DEALER);
        status = endpoint->socket != NULL ? socket_set_options(endpoint, error)
                                          : error_set_errno(error, errno, "cannot make a ZeroMQ socket");
    }
    if (status == STATUS_OK)
        status = shown->pass != NULL ? socket_set_pass(endpoint, shown->pass, error)
                                     : socket_set_keys(endpoint, shown, error);
    if (status != STATUS_OK) {
        endpoint_free(endpoint, 0);
        return status;
    }
    *out = endpoint;
    return STATUS_OK;
}

/* libzmq removes any file at the path before it binds: so no file may be there. */
static enum status address_check_ipc_path(const char *address, bool must_be_free, struct error *error)
{
    const char *path = address + strlen("ipc://");
    size_t length = strlen(path);
    if (length == 0 || path[0] != '/')
        return error_set(error, STATUS_INVALID, "%s: expected ipc:// and an absolute path", address);
    if (length > sizeof((struct sockaddr_un *)0)->sun_path - 1)
        return error_set(error, STATUS_INVALID, "%s: the path has %zu bytes, expected at most 107", address,
                         length);
    struct stat info;
    if (must_be_free && lstat(path, &info) == 0)
        return error_set(error, STATUS_BUSY, "%s: the path exists", address);
    return STATUS_OK;
}

/* Without keys nobody beyond this host may connect. */
static bool address_is_loopback(const char *host_and_port)
{
    static const char *const loopback[] = {"localhost:", "[::1]:"};
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        if (strncmp(host_and_port, loopback[i], strlen(loopback[i])) == 0)
            return true;
    char host[INET_ADDRSTRLEN];
    const char *colon = strrchr(host_and_port, ':');
    size_t length = colon == NULL ? 0 : (size_t)(colon - host_and_port);
    if (length == 0 || length >= sizeof host)
        return false;
    memcpy(host, host_and_port, length);
    host[length] = '\0';
    struct in_addr parsed;
    return inet_pton(AF_INET, host, &parsed) == 1 && ntohl(parsed.s_addr) >> 24 == 127;
}

static enum status address_check_far(const char *address, struct error *error)
{
    return strncmp(address, "tcp://", 6) == 0
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "%s: expected tcp:// between hosts", address);
}

static enum status address_check(const char *address, bool is_bind, struct error *error)
{
    if (strncmp(address, "ipc://", 6) == 0)
        return address_check_ipc_path(address, is_bind, error);
    if (strncmp(address, "tcp://", 6) != 0)
        return error_set(error, STATUS_INVALID, "%s: expected ipc:// or tcp://", address);
    if (is_bind && !address_is_loopback(address + 6))
        return error_set(error, STATUS_INVALID, "%s: expected a loopback address: connections have no keys",
                         address);
    return STATUS_OK;
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

static enum status endpoint_open_bound(struct endpoint **out, struct endpoint *beside, const char *address,
                                       const struct credentials *shown, unsigned peers, struct error *error)
{
    struct endpoint *endpoint;
    enum status status = endpoint_open(&endpoint, beside, true, shown, error);
    if (status != STATUS_OK)
        return status;
    endpoint_gate_widen(STRANGERS_MAX + peers);
    if (zmq_bind(endpoint->socket, address) != 0) {
        int errnum = errno;
        status = errnum == EADDRINUSE ? error_set(error, STATUS_BUSY, "%s: the address is in use", address)
                                      : error_set(error,
                                                  errnum == EACCES || errnum == EPERM ? STATUS_PERMISSION
                                                  : errnum == EINVAL                  ? STATUS_INVALID
                                                                                      : STATUS_IO,
                                                  "%s: %s", address, zmq_strerror(errnum));
    } else if (strncmp(address, "ipc://", 6) == 0) {
        status = endpoint_remember_path(endpoint, address + 6, error);
    }
    if (status != STATUS_OK) {
        endpoint_free(endpoint, 0);
        return status;
    }
    *out = endpoint;
    return STATUS_OK;
}

enum status endpoint_bind(struct endpoint **out, const char *address, const struct wire_pass *pass,
                          unsigned peers, struct error *error)
{
    const struct credentials shown = {.pass = pass};
    const enum status status = address_check(address, true, error);
    return status == STATUS_OK ? endpoint_open_bound(out, NULL, address, &shown, peers, error) : status;
}

enum status endpoint_bind_far(struct endpoint **out, struct endpoint *beside, const char *address,
                              const struct host_keys *keys, unsigned peers, struct error *error)
{
    const struct credentials shown = {.keys = keys};
    const enum status status = address_check_far(address, error);
    return status == STATUS_OK ? endpoint_open_bound(out, beside, address, &shown, peers, error) : status;
}

static enum status endpoint_open_connected(struct endpoint **out, struct endpoint *beside,
                                           const char *address, const struct credentials *shown,
                                           struct error *error)
{
    struct endpoint *endpoint;
    enum status status = endpoint_open(&endpoint, beside, false, shown, error);
    if (status != STATUS_OK)
        return status;
    if (zmq_connect(endpoint->socket, address) != 0) {
        status = error_set(error, errno == EINVAL ? STATUS_INVALID : STATUS_IO, "%s: %s", address,
                           zmq_strerror(errno));
        endpoint_free(endpoint, 0);
        return status;
    }
    *out = endpoint;
    return STATUS_OK;
}

enum status endpoint_connect(struct endpoint **out, struct endpoint *beside, const char *address,
                             const struct wire_pass *pass, struct error *error)
{
    const struct credentials shown = {.pass = pass};
    const enum status status = address_check(address, false, error);
    return status == STATUS_OK ? endpoint_open_connected(out, beside, address, &shown, error) : status;
}

enum status endpoint_connect_far(struct endpoint **out, struct endpoint *beside, const char *address,
                                 const struct host_keys *keys, uint16_t host, struct error *error)
{
    const struct credentials shown = {.keys = keys, .host = host};
    assert(host < keys->count);
    const enum status status = address_check_far(address, error);
    return status == STATUS_OK ? endpoint_open_connected(out, beside, address, &shown, error) : status;
}

void endpoint_admit(struct endpoint *endpoint, const struct host_keys *keys)
{
    endpoint_door_keys(endpoint->context->door, keys);
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
    context_leave(endpoint->context);
    struct stat info;
    if (endpoint->path != NULL && lstat(endpoint->path, &info) == 0 && info.st_dev == endpoint->path_device &&
        info.st_ino == endpoint->path_inode)
        unlink(endpoint->path);
    free(endpoint->path);
    free(endpoint);
}
