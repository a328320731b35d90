/* HELLO and WELCOME as they arrive: the answer to this worker's HELLO, and the HELLO of others. Thread: the
 * owner of the rpc.
 *
 * A connection of the bound socket that has no session is a stranger. A stranger may say HELLO. Anything
 * else, or a HELLO that is refused, is answered with one BYE, and the connection is ignored for a while. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>
#include <string.h>

bool hello_is_awaited(const struct rpc_socket *socket)
{
    return socket->dialed != NULL && !socket->dialed->was_live;
}

/* ---- the answer to HELLO ---- */

/* Keeps the job of the first dialed worker's WELCOME, unless the configuration has a job. */
static enum status hello_keep_welcome(struct rpc *rpc, const struct rpc_socket *socket,
                                      const struct endpoint_message *message)
{
    const struct rpc_socket *first = &rpc->sockets[rpc->sockets[0].dialed == NULL ? 1 : 0];
    if (rpc->config.welcome_bytes > 0 || socket != first)
        return STATUS_OK;
    rpc->welcome = malloc(message->payload_bytes + 1);
    if (rpc->welcome == NULL)
        return error_set(&rpc->join_error, STATUS_NO_MEMORY, "no memory for the text of WELCOME");
    memcpy(rpc->welcome, message->payload, message->payload_bytes);
    rpc->welcome[message->payload_bytes] = '\0';
    rpc->welcome_bytes = message->payload_bytes;
    return STATUS_OK;
}

/* The answer to HELLO: WELCOME, or BYE with a reason. */
void hello_receive_answer(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
{
    struct wire_header header;
    struct error *error = &rpc->join_error;
    const uint16_t worker = (uint16_t)(socket->dialed - rpc->sessions);
    if (wire_decode(&header, message->header, message->header_bytes, message->payload_bytes, error) !=
        STATUS_OK) {
        rpc->counters.bad++;
    } else if (header.kind == WIRE_BYE) {
        char text[WIRE_ERROR_TEXT_MAX + 1];
        rules_copy_text(text, sizeof text, message->payload, message->payload_bytes);
        error_set(error, STATUS_PERMISSION, "%s", text);
    } else if (header.kind == WIRE_WELCOME && header.generation == rpc->config.generation &&
               header.source == worker && header.destination == rpc->config.worker &&
               header.role == rpc->roster[worker]) {
        if (hello_keep_welcome(rpc, socket, message) == STATUS_OK)
            session_open(socket->dialed, socket, &header, 0);
    } else {
        rpc->counters.stale++;
    }
    endpoint_release(message);
}

/* ---- the HELLO of others ---- */

static void hello_welcome(struct rpc *rpc, const struct rpc_session *session)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_WELCOME, session->worker);
    header.role = rpc->config.role;
    send_text(rpc, session->socket->endpoint, &header, session->peer, rpc->welcome, rpc->welcome_bytes,
              false);
}

/* Why a HELLO is refused, or NULL. */
static const char *hello_fault(const struct rpc *rpc, const struct wire_header *header)
{
    if (header->generation != rpc->config.generation)
        return "the job has another generation";
    if (header->source >= rpc->config.workers || header->source == rpc->config.worker)
        return "no such worker in this job";
    if (header->source < rpc->config.worker)
        return "a worker dials only lower numbers: this worker's number is higher";
    if (header->role != rpc->roster[header->source])
        return "not the role of that worker in this job";
    if (header->destination != rpc->config.worker)
        return "this is another worker of the job";
    if (header->incarnation > rpc->config.peer_incarnation_max)
        return "the supervisor has not started this incarnation of the worker";
    const struct rpc_session *session = &rpc->sessions[header->source];
    if (session->was_live && header->incarnation <= session->incarnation)
        return session->is_live ? "this incarnation of the worker is here already"
                                : "this incarnation of the worker has ended";
    return NULL;
}

static void hello_receive(struct rpc *rpc, struct rpc_socket *socket, const struct wire_header *header,
                          uint32_t peer)
{
    const char *reason = hello_fault(rpc, header);
    if (reason != NULL) {
        rpc->counters.strangers++;
        rpc->counters.stale += header->generation != rpc->config.generation;
        peer_ignore(rpc, peer);
        session_say_bye(rpc, socket, peer, header->source, reason);
        return;
    }
    struct rpc_session *session = &rpc->sessions[header->source];
    if (session->is_live)
        session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, "replaced by a later incarnation");
    session_open(session, socket, header, peer);
    hello_welcome(rpc, session);
    if (rpc->config.joined != NULL) {
        rpc->callbacks++;
        rpc->config.joined(rpc->config.context, session->worker);
        rpc->callbacks--;
    }
}

void hello_receive_stranger(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
{
    struct wire_header header;
    struct error error;
    uint32_t peer = message->peer;
    bool is_known = socket->dialed != NULL || peer_is_ignored(rpc, peer);
    enum status status = is_known ? STATUS_OK
                                  : wire_decode(&header, message->header, message->header_bytes,
                                                message->payload_bytes, &error);
    endpoint_release(message);
    if (!is_known && status == STATUS_OK && header.kind == WIRE_HELLO) {
        hello_receive(rpc, socket, &header, peer);
        return;
    }
    rpc->counters.strangers++;
    if (is_known)
        return;
    peer_ignore(rpc, peer);
    if (status != STATUS_OK)
        session_say_bye(rpc, socket, peer, 0, error.text);
    else if (header.kind != WIRE_BYE)
        session_say_bye(rpc, socket, peer, header.source, "expected HELLO first");
}

/* HELLO and WELCOME may be repeated; from the wrong end of the session they are bad messages. */
void hello_receive_again(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header)
{
    bool is_ours_to_welcome = session->socket->dialed == NULL;
    enum wire_kind expected = is_ours_to_welcome ? WIRE_HELLO : WIRE_WELCOME;
    if (header->kind != expected || header->role != session->role)
        session_end_bad(rpc, session, "a greeting out of place");
    else if (is_ours_to_welcome)
        hello_welcome(rpc, session);
}
