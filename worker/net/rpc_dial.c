/* HELLO to the workers of lower numbers, until all have answered. Thread: the owner of the rpc.
 *
 * A worker that has sent WELCOME may call at once. While rpc_dial waits for the others, those calls wait in
 * the socket for the first turn. */
#include "worker/net/rpc_internal.h"

#include <assert.h>

enum { HELLO_EVERY_US = 250000 };

void rpc_add_socket(struct rpc *rpc, struct endpoint *endpoint, struct rpc_session *dialed)
{
    struct rpc_socket *socket = &rpc->sockets[rpc->socket_count];
    *socket = (struct rpc_socket){endpoint, dialed};
    rpc->endpoints[rpc->socket_count++] = endpoint;
    if (dialed != NULL)
        dialed->socket = socket;
}

static uint16_t dial_worker_at(const struct rpc *rpc, const struct rpc_socket *socket)
{
    return (uint16_t)(socket->dialed - rpc->sessions);
}

static void hello_say(struct rpc *rpc, const struct rpc_socket *socket)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_HELLO, dial_worker_at(rpc, socket));
    header.role = rpc->config.role;
    send_text(rpc, socket->endpoint, &header, 0, NULL, 0, false);
}

static enum status dial_connect_all(struct rpc *rpc, const struct rpc_address *addresses, size_t count,
                                    struct error *error)
{
    assert(count <= RPC_DIALED_MAX);
    for (size_t i = 0; i < count; i++) {
        uint16_t worker = addresses[i].worker;
        struct endpoint *endpoint, *beside = rpc->socket_count > 0 ? rpc->endpoints[0] : NULL;
        struct error reason;
        assert(worker < rpc->config.worker && rpc->sessions[worker].socket == NULL);
        enum status status = endpoint_connect(&endpoint, beside, addresses[i].address, &reason);
        if (status != STATUS_OK)
            return error_set(error, status, "worker %u: %s", worker, reason.text);
        rpc_add_socket(rpc, endpoint, &rpc->sessions[worker]);
    }
    return STATUS_OK;
}

/* The sockets from `first` on that still await an answer, in the order of `addresses`. */
static size_t dial_find_awaited(struct rpc *rpc, size_t first, size_t *places, struct endpoint **endpoints)
{
    size_t count = 0;
    for (size_t i = first; i < rpc->socket_count; i++) {
        if (!hello_is_awaited(&rpc->sockets[i]))
            continue;
        places[count] = i;
        endpoints[count++] = rpc->endpoints[i];
    }
    return count;
}

/* HELLO is repeated, since a server may come up after this worker. No other message may be repeated. */
static enum status dial_await_all(struct rpc *rpc, const struct rpc_address *addresses, size_t first,
                                  struct monotime deadline, struct error *error)
{
    struct monotime next_hello = {0};
    struct endpoint *endpoints[RPC_DIALED_MAX];
    size_t places[RPC_DIALED_MAX], count;
    while ((count = dial_find_awaited(rpc, first, places, endpoints)) > 0) {
        struct monotime now = monotime_now();
        const struct rpc_address *address = &addresses[places[0] - first];
        bool took_any = false, readable;
        if (!monotime_before(now, deadline))
            return error_set(error, STATUS_TIMEOUT, "worker %u (%s): no answer to HELLO", address->worker,
                             address->address);
        for (size_t i = 0; i < count && !monotime_before(now, next_hello); i++)
            hello_say(rpc, &rpc->sockets[places[i]]);
        if (!monotime_before(now, next_hello))
            next_hello = monotime_add_us(now, HELLO_EVERY_US);
        for (size_t i = 0; i < count; i++) {
            address = &addresses[places[i] - first];
            took_any |= receive_one(rpc, &rpc->sockets[places[i]]);
            if (rpc->join_error.status != STATUS_OK)
                return error_set(error, rpc->join_error.status, "worker %u (%s): %s", address->worker,
                                 address->address, rpc->join_error.text);
        }
        if (!took_any && endpoint_wait(endpoints, count, NULL, 0, false,
                                       monotime_earliest(deadline, next_hello), &readable) != STATUS_OK)
            rpc->has_failed = true;
        if (rpc->has_failed)
            return error_set(error, STATUS_IO, "worker %u (%s): the socket failed", address->worker,
                             address->address);
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
    size_t first = rpc->socket_count;
    assert(rpc->callbacks == 0 && !rpc->in_turn && first <= 1 &&
           (first == 0 || rpc->sockets[0].dialed == NULL));
    if (count == 0)
        return STATUS_OK;
    enum status status = dial_connect_all(rpc, addresses, count, error);
    if (status == STATUS_OK)
        status = dial_await_all(rpc, addresses, first, deadline, error);
    if (status != STATUS_OK)
        dial_withdraw(rpc);
    return status;
}
