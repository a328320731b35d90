/* Every message that arrives, checked before anything else sees it. Thread: the owner of the rpc.
 *
 * The order of checks: two frames, the header by itself, the job's generation, source, incarnation and
 * destination, what is lent; then, in the files for calls and answers, method, caller, tensors, unread
 * answers, repetition.
 */
#include "worker/net/rpc_internal.h"

#include <string.h>

/* The session of the connection that a message came through. NULL: it has none. `source`: the worker that the
 * message names. */
static struct rpc_session *receive_find_session(struct rpc *rpc, const struct rpc_socket *socket,
                                                uint32_t peer, uint16_t source)
{
    if (socket->dialed == NULL)
        return session_of_peer(rpc, socket, peer, source);
    return socket->dialed->is_live ? socket->dialed : NULL;
}

/* HELLO has bound the connection to one worker and one incarnation. NULL: the header agrees with both. */
static const char *receive_sender_fault(const struct rpc *rpc, const struct rpc_session *session,
                                        const struct wire_header *header)
{
    if (header->source != session->worker)
        return "the source is not the connection's worker";
    if (header->incarnation != session->incarnation)
        return "the incarnation is not the connection's";
    if (header->destination != rpc->config.worker)
        return "the destination is another worker";
    return NULL;
}

static void receive_bye(struct rpc *rpc, struct rpc_session *session, struct endpoint_message *message)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    rules_copy_text(text, sizeof text, message->payload, message->payload_bytes);
    endpoint_release(message);
    session_end_quietly(rpc, session, STATUS_PEER_DIED, text);
}

/* Finds the tensors that a peer lends. Its segment is mapped once, when the peer first lends a tensor. */
static enum status receive_find_lent(const struct rpc *rpc, struct rpc_session *session,
                                     const struct wire_header *header, const void *lent[WIRE_TENSORS_MAX],
                                     struct error *error)
{
    if (!rules_lends(header))
        return STATUS_OK;
    if (!session_lends(rpc, session))
        return error_set(error, STATUS_INVALID, "a tensor is lent, but %s",
                         rpc->config.outbox == NULL ? "this job has no shared memory"
                                                    : "its worker is on another host");
    if (session->segment.data == NULL &&
        segment_attach(&session->segment, session->worker, 0, error) != STATUS_OK)
        return STATUS_INVALID;
    return rules_find_lent(header, &session->segment, lent, error);
}

static void receive_call(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival)
{
    struct error error;
    bodies_take(session, &arrival->header, &arrival->body, &arrival->body_state);
    if (receive_find_lent(rpc, session, &arrival->header, arrival->lent, &error) != STATUS_OK) {
        arrival_drop(arrival);
        session_end_bad(rpc, session, error.text);
    } else if (arrival->header.kind == WIRE_REQUEST) {
        if (answers_receive_request(rpc, session, arrival, &error) != STATUS_OK)
            session_end_bad(rpc, session, error.text);
    } else {
        const char *fault = calls_receive_reply(rpc, session, arrival);
        if (fault != NULL)
            session_end_bad(rpc, session, fault);
    }
}

static void receive_piece(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header,
                          struct endpoint_message *message)
{
    const char *fault = bodies_receive_piece(session, header, message->payload);
    endpoint_release(message);
    if (fault != NULL)
        session_end_bad(rpc, session, fault);
}

static void receive_kind(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival)
{
    struct endpoint_message *message = arrival->frames;
    switch (arrival->header.kind) {
    case WIRE_REQUEST:
    case WIRE_REPLY:
        receive_call(rpc, session, arrival);
        break;
    case WIRE_PIECE:
        receive_piece(rpc, session, &arrival->header, message);
        break;
    case WIRE_BYE:
        receive_bye(rpc, session, message);
        break;
    default:
        hello_receive_again(rpc, session, arrival);
    }
}

static void receive_in_session(struct rpc *rpc, struct rpc_session *session, struct endpoint_message *message)
{
    struct rpc_arrival arrival = {.frames = message};
    const struct wire_header *header = &arrival.header;
    struct error error;
    const char *fault = NULL;
    bool is_current = true;
    if (wire_decode(&arrival.header, message->header, message->header_bytes, message->payload_bytes,
                    &error) != STATUS_OK)
        fault = error.text;
    else if (header->generation != rpc->config.generation)
        is_current = false;
    else
        fault = receive_sender_fault(rpc, session, header);
    if (fault == NULL && is_current) {
        receive_kind(rpc, session, &arrival);
        return;
    }
    endpoint_release(message);
    rpc->counters.stale += !is_current;
    if (fault != NULL)
        session_end_bad(rpc, session, fault);
}

static void receive_message(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
{
    uint16_t source = 0;
    rpc->counters.received++;
    if (message->header_bytes == WIRE_HEADER_BYTES)
        memcpy(&source, message->header + offsetof(struct wire_header, source), sizeof source);
    struct rpc_session *session = receive_find_session(rpc, socket, message->peer, source);
    if (session != NULL)
        receive_in_session(rpc, session, message);
    else if (hello_is_awaited(socket))
        hello_receive_answer(rpc, socket, message);
    else
        hello_receive_stranger(rpc, socket, message);
}

static void receive_malformed(struct rpc *rpc, struct rpc_socket *socket, uint32_t peer)
{
    struct rpc_session *session = receive_find_session(rpc, socket, peer, 0);
    rpc->counters.received++;
    if (hello_is_awaited(socket)) {
        rpc->counters.bad++;
        error_set(&rpc->join_error, STATUS_INVALID, "the answer to HELLO is not two frames");
    } else if (session != NULL) {
        session_end_bad(rpc, session, "a message that is not two frames within the limits");
    } else {
        rpc->counters.strangers++;
        if (socket->dialed == NULL && peer != 0 && !peer_is_ignored(rpc, socket, peer)) {
            peer_ignore(rpc, socket, peer);
            session_say_bye(rpc, socket, peer, 0, "a message that is not two frames within the limits");
        }
    }
}

bool receive_one(struct rpc *rpc, struct rpc_socket *socket)
{
    struct endpoint_message message;
    enum status status = endpoint_receive(socket->endpoint, &message);
    if (status == STATUS_OK)
        receive_message(rpc, socket, &message);
    else if (status == STATUS_INVALID)
        receive_malformed(rpc, socket, message.peer);
    else if (status != STATUS_AGAIN)
        rpc->has_failed = true;
    return status == STATUS_OK || status == STATUS_INVALID;
}
