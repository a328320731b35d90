/* Sending, receiving and waiting, and the work that libzmq leaves to its users: frame counts, silent drops,
 * edge triggered descriptors. Run by the one thread that owns the endpoint and those
 * beside it; libzmq's own I/O thread (one per context, so one for all of these) does the system calls on the
 * connections.
 *
 * Waiting is done here with ppoll(2) on ZMQ_FD rather than by zmq_poll, which asks for every event twice
 * before it sleeps. The descriptor is edge triggered, and signals commands, not messages. It is safe to sleep
 * on it only after the socket has been found empty with all its commands processed, which is what a refused
 * receive does; `quiet` remembers that nothing has touched the socket since. Before sleeping on several
 * sockets, all of them must be quiet. */
#include "worker/net/endpoint_internal.h"

#include "worker/net/endpoint_door.h"
#include "worker/net/endpoint_gate.h"
#include "worker/net/wire.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

_Static_assert(sizeof(zmq_msg_t) <= ENDPOINT_FRAME_WORDS * sizeof(uint64_t), "a frame fits its place");
_Static_assert(_Alignof(zmq_msg_t) <= _Alignof(uint64_t), "a frame may lie there");

enum {
    ROUTING_ID_BYTES = 5, /* an automatic routing id: a zero byte and a 32-bit number */
    SPIN_US = 150,        /* a round trip on idle processors, and some */
    SPINS_IN_VAIN_MAX = 3,
    SLEEPS_PER_TRIAL = 64,
    UNWATCHED_MAX = 32,
    SENDING_WAIT_US_MAX = 1000, /* how often a refused send is tried again at the least */
};

static zmq_msg_t *message_frame(struct endpoint_message *message, unsigned i)
{
    return (zmq_msg_t *)message->frames[i];
}

/* ---- sending ---- */

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
    const struct endpoint_door *door = endpoint->context->door;
    return (struct endpoint_counts){.unproven = gate.accepted - gate.admitted - gate.waiting,
                                    .refused = door != NULL ? endpoint_door_refused(door) : 0,
                                    .crowded = gate.crowded};
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
