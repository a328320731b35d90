/* HELLO to the workers of lower numbers at once, then their answers one after the other. Thread: the owner of
 * the rpc.
 *
 * A worker that has sent WELCOME may call at once. While rpc_dial waits for the others, those calls wait in
 * the socket for the first turn. */
#include "worker/net/rpc_internal.h"

#include "kernels/base/profile.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

enum { HELLO_EVERY_US = 250000 };

void rpc_add_socket(struct rpc *rpc, struct endpoint *endpoint, struct rpc_session *dialed, bool is_far)
{
    struct rpc_socket *socket = &rpc->sockets[rpc->socket_count];
    *socket = (struct rpc_socket){endpoint, dialed, is_far};
    rpc->endpoints[rpc->socket_count++] = endpoint;
    if (dialed != NULL)
        dialed->socket = socket;
    else
        rpc->bound_count++;
}

static uint16_t dial_worker_at(const struct rpc *rpc, const struct rpc_socket *socket)
{
    return (uint16_t)(socket->dialed - rpc->sessions);
}

static void hello_say(struct rpc *rpc, const struct rpc_socket *socket)
{
    struct wire_header header;
    uint8_t encoded[WIRE_HEADER_BYTES], payload[WIRE_HELLO_BYTES];
    const struct greeting greeting = {.header = encoded, .nonce = payload};
    rpc_header(rpc, &header, WIRE_HELLO, dial_worker_at(rpc, socket));
    header.role = rpc->config.role;
    header.payload_bytes = sizeof payload;
    wire_encode(&header, encoded);
    memcpy(payload, socket->dialed->nonce, WIRE_NONCE_BYTES);
    greeting_prove(&greeting, rpc->config.secret, payload + WIRE_NONCE_BYTES);
    send_text(rpc, socket->endpoint, &header, 0, payload, sizeof payload, false);
}

static enum status dial_open(struct rpc *rpc, const struct rpc_address *address, struct endpoint **out,
                             struct error *error)
{
    struct endpoint *beside = rpc->socket_count > 0 ? rpc->endpoints[0] : NULL;
    struct wire_pass pass;
    if (address->is_far)
        return endpoint_connect_far(out, beside, address->address, rpc->config.keys, address->host, error);
    greeting_make_pass(&pass, rpc->config.secret, address->worker);
    return endpoint_connect(out, beside, address->address, &pass, error);
}

/* Connects to a worker and says HELLO. */
static enum status dial_connect(struct rpc *rpc, const struct rpc_address *address, struct error *error)
{
    struct endpoint *endpoint;
    struct error reason;
    assert(address->worker < rpc->config.worker && rpc->sessions[address->worker].socket == NULL);
    enum status status = dial_open(rpc, address, &endpoint, &reason);
    if (status != STATUS_OK)
        return error_set(error, status, "worker %u: %s", address->worker, reason.text);
    rpc_add_socket(rpc, endpoint, &rpc->sessions[address->worker], address->is_far);
    randombytes_buf(rpc->sessions[address->worker].nonce, WIRE_NONCE_BYTES);
    hello_say(rpc, rpc->sessions[address->worker].socket);
    return STATUS_OK;
}

/* Waits for a worker's WELCOME. HELLO is repeated, since a server may come up after this worker. No other
 * message may be repeated. */
static enum status dial_await(struct rpc *rpc, const struct rpc_address *address, struct monotime deadline,
                              struct error *error)
{
    struct rpc_socket *socket = rpc->sessions[address->worker].socket;
    struct monotime now = monotime_now(), next_hello = monotime_add_us(now, HELLO_EVERY_US);
    for (; hello_is_awaited(socket); now = monotime_now()) {
        bool readable;
        if (!monotime_before(now, deadline))
            return error_set(error, STATUS_TIMEOUT, "worker %u (%s): no answer to HELLO", address->worker,
                             address->address);
        if (!monotime_before(now, next_hello)) {
            hello_say(rpc, socket);
            next_hello = monotime_add_us(now, HELLO_EVERY_US);
        }
        if (!receive_one(rpc, socket) &&
            endpoint_wait(&socket->endpoint, 1, NULL, 0, false, monotime_earliest(deadline, next_hello),
                          &readable) != STATUS_OK)
            rpc->has_failed = true;
        if (rpc->has_failed)
            error_set(&rpc->join_error, STATUS_IO, "the socket failed");
        if (rpc->join_error.status != STATUS_OK)
            return error_set(error, rpc->join_error.status, "worker %u (%s): %s", address->worker,
                             address->address, rpc->join_error.text);
    }
    return STATUS_OK;
}

/* Sends BYE to every worker that HELLO was sent to, also when its WELCOME is still under way. */
static void dial_withdraw(struct rpc *rpc)
{
    for (size_t i = 0; i < rpc->socket_count; i++)
        if (hello_is_awaited(&rpc->sockets[i]))
            session_say_bye(rpc, &rpc->sockets[i], 0, dial_worker_at(rpc, &rpc->sockets[i]),
                            "this worker could not join all of its peers");
}

enum status rpc_dial(struct rpc *rpc, const struct rpc_address *addresses, size_t count,
                     struct monotime deadline, struct error *error)
{
    assert(rpc->callbacks == 0 && !rpc->in_turn && rpc->socket_count == rpc->bound_count);
    assert(count <= RPC_DIALED_MAX);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = dial_connect(rpc, &addresses[i], error);
    const enum profile_kind before = profile_enter(PROFILE_WAITING);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = dial_await(rpc, &addresses[i], deadline, error);
    profile_leave(before);
    if (status != STATUS_OK)
        dial_withdraw(rpc);
    return status;
}
