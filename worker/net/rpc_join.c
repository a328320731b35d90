/* HELLO to one server or several, until all have answered. Run by the thread that owns the rpc, before its
 * first turn: a server that has welcomed us may call at once, so nothing more is taken from it here, and what
 * it sent waits in its socket for the turn. */
#include "worker/net/rpc_internal.h"

#include <assert.h>

enum {
    HELLO_EVERY_US = 250000,
    PARTING_MS = 100, /* for the BYE to the others when one could not be joined */
};

static void say_hello(struct rpc *rpc, const struct rpc_socket *socket)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_HELLO, (uint16_t)(socket->dialed - rpc->sessions));
    header.role = rpc->config.role;
    rpc_send_text(rpc, socket->endpoint, &header, 0, NULL, 0, false);
}

static enum status connect_all(struct rpc *rpc, const struct rpc_server *servers, size_t count,
                               struct error *error)
{
    assert(count <= RPC_SERVERS_MAX);
    for (size_t i = 0; i < count; i++) {
        uint16_t worker = servers[i].worker;
        struct endpoint *endpoint, *beside = rpc->socket_count > 0 ? rpc->endpoints[0] : NULL;
        struct error reason;
        assert(worker < rpc->config.worker && rpc->sessions[worker].socket == NULL);
        enum status status = endpoint_connect(&endpoint, beside, servers[i].address, &reason);
        if (status != STATUS_OK)
            return error_set(error, status, "server %u: %s", worker, reason.text);
        rpc_add_socket(rpc, endpoint, &rpc->sessions[worker]);
    }
    return STATUS_OK;
}

/* The sockets from `first` on that await an answer still, in `servers`' order. */
static size_t find_awaited(struct rpc *rpc, size_t first, size_t *places, struct endpoint **endpoints)
{
    size_t count = 0;
    for (size_t i = first; i < rpc->socket_count; i++) {
        if (!session_is_awaited(&rpc->sockets[i]))
            continue;
        places[count] = i;
        endpoints[count++] = rpc->endpoints[i];
    }
    return count;
}

/* HELLO is repeated, for a server may come up after us: it is the one message that may be. */
static enum status await_all(struct rpc *rpc, const struct rpc_server *servers, size_t first,
                             struct monotime deadline, struct error *error)
{
    struct monotime next_hello = {0};
    struct endpoint *endpoints[RPC_SERVERS_MAX];
    size_t places[RPC_SERVERS_MAX], count;
    while ((count = find_awaited(rpc, first, places, endpoints)) > 0) {
        struct monotime now = monotime_now();
        const struct rpc_server *server = &servers[places[0] - first];
        bool took_any = false, readable;
        if (!monotime_before(now, deadline))
            return error_set(error, STATUS_TIMEOUT, "server %u (%s): no answer to HELLO", server->worker,
                             server->address);
        for (size_t i = 0; i < count && !monotime_before(now, next_hello); i++)
            say_hello(rpc, &rpc->sockets[places[i]]);
        if (!monotime_before(now, next_hello))
            next_hello = monotime_add_us(now, HELLO_EVERY_US);
        for (size_t i = 0; i < count; i++) {
            server = &servers[places[i] - first];
            took_any |= rpc_take_one(rpc, &rpc->sockets[places[i]]);
            if (rpc->join_error.status != STATUS_OK)
                return error_set(error, rpc->join_error.status, "server %u (%s): %s", server->worker,
                                 server->address, rpc->join_error.text);
        }
        if (!took_any && endpoint_wait_any(endpoints, count, NULL, 0, false,
                                           monotime_earliest(deadline, next_hello), &readable) != STATUS_OK)
            rpc->has_failed = true;
        if (rpc->has_failed)
            return error_set(error, STATUS_IO, "server %u (%s): the socket failed", server->worker,
                             server->address);
    }
    return STATUS_OK;
}

enum status rpc_dial(struct rpc *rpc, const struct rpc_server *servers, size_t count,
                     struct monotime deadline, struct error *error)
{
    size_t first = rpc->socket_count;
    assert(rpc->callbacks == 0 && !rpc->in_turn && first == (rpc->is_server ? 1 : 0));
    enum status status = connect_all(rpc, servers, count, error);
    return status == STATUS_OK ? await_all(rpc, servers, first, deadline, error) : status;
}

/* BYE to all: also one whose WELCOME we did not wait for has had our HELLO. */
static void withdraw(struct rpc *rpc)
{
    const char *why = "it could not join all of its servers";
    for (size_t i = 0; i < rpc->socket_count; i++)
        if (session_is_awaited(&rpc->sockets[i]))
            session_say_bye(rpc, &rpc->sockets[i], 0, (uint16_t)(rpc->sockets[i].dialed - rpc->sessions), 0,
                            why);
    rpc_free(rpc, why, rpc->socket_count > 0 ? PARTING_MS : 0);
}

enum status rpc_join(struct rpc **out, const struct rpc_config *config, const struct rpc_server *servers,
                     size_t count, struct monotime deadline, struct error *error)
{
    struct rpc *rpc;
    assert(count >= 1);
    enum status status = rpc_new(&rpc, config, false, error);
    if (status != STATUS_OK)
        return status;
    status = rpc_dial(rpc, servers, count, deadline, error);
    if (status == STATUS_OK) {
        *out = rpc;
        return STATUS_OK;
    }
    withdraw(rpc);
    return status;
}
