/* Who is at the other end, and what is checked of every message before anything else sees it.
 *
 * A dialed socket is one server's. A connection of the bound one is known by its routing id (rpc_peers.c):
 * either it has a session, or it is a stranger. A stranger may say HELLO; whatever else it says, or a HELLO
 * that is refused, is answered with one BYE, and the connection is ignored for a while. The order of checks:
 * the header by itself, the job's generation, the sender, the kind, and then, in the files for calls and
 * answers, method, caller, shapes, and whether it was seen before. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status sessions_new(struct rpc *rpc)
{
    rpc->sessions = calloc(rpc->config.workers, sizeof *rpc->sessions);
    if (rpc->sessions == NULL || forward_new(rpc) != STATUS_OK)
        return STATUS_NO_MEMORY;
    return peers_new(rpc);
}

/* A session that never was is not touched. */
static void release_session(struct rpc_session *session)
{
    if (session->segment.data != NULL)
        segment_detach(&session->segment);
    if (session->arriving.total != 0)
        bodies_drop(session);
}

void sessions_free(struct rpc *rpc)
{
    peers_free(rpc);
    forward_free(rpc);
    for (size_t i = 0; rpc->sessions != NULL && i < rpc->config.workers; i++)
        release_session(&rpc->sessions[i]);
    free(rpc->sessions);
}

struct rpc_session *session_of(struct rpc *rpc, uint16_t worker)
{
    if (worker >= rpc->config.workers || !rpc->sessions[worker].is_live)
        return NULL;
    return &rpc->sessions[worker];
}

/* Whose the message is that came through `socket`. NULL: nobody's who has a session. */
static struct rpc_session *find_session(struct rpc *rpc, const struct rpc_socket *socket, uint32_t peer)
{
    if (socket->dialed == NULL)
        return peers_find(rpc, peer);
    return socket->dialed->is_live ? socket->dialed : NULL;
}

bool session_is_awaited(const struct rpc_socket *socket)
{
    return socket->dialed != NULL && !socket->dialed->was_live;
}

/* ---- the end of a session ---- */

void session_say_bye(struct rpc *rpc, struct rpc_socket *socket, uint32_t peer, uint16_t destination,
                     uint32_t addressee, const char *text)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_BYE, destination);
    header.addressee = addressee;
    size_t bytes = strlen(text);
    rpc_send_text(rpc, socket->endpoint, &header, peer, text,
                  bytes < WIRE_ERROR_TEXT_MAX ? bytes : WIRE_ERROR_TEXT_MAX, true);
}

static void callback_left(struct rpc *rpc, uint16_t worker, enum status why, const char *text)
{
    rpc->callbacks++;
    if (rpc->config.left != NULL)
        rpc->config.left(rpc->config.context, worker, why, text);
    for (size_t i = 0; i < rpc->listener_count; i++)
        rpc->listeners[i].left(rpc->listeners[i].context, worker, why, text);
    rpc->callbacks--;
}

static void close_session(struct rpc *rpc, struct rpc_session *session)
{
    answers_detach(rpc, session);
    bodies_drop(session);
    session->is_live = false;
    if (session->is_lost)
        rpc->lost_count--;
    session->is_lost = session->leaves_answers = false;
    if (session->is_forwarded)
        return;
    if (session->socket->dialed != NULL) {
        rpc->gone_count++;
    } else {
        peers_remove(rpc, session->peer);
        peers_ignore(rpc, session->peer);
    }
}

/* The text is copied first: it may lie in a message or an object that ends here. With a connection end those
 * sessions whose messages came by way of it. */
static void finish_session(struct rpc *rpc, struct rpc_session *session, enum status why,
                           enum status call_status, const char *text, bool says_bye)
{
    char copy[WIRE_ERROR_TEXT_MAX + 1];
    snprintf(copy, sizeof copy, "%s", text);
    close_session(rpc, session);
    struct rpc_session *link = session_link(rpc, session);
    if (says_bye && (link == session || link->is_live))
        session_say_bye(rpc, link->socket, link->peer, session->worker,
                        session->is_forwarded ? session->incarnation : 0, copy);
    if (!rpc->is_server && session == &rpc->sessions[0])
        forward_end_all(rpc);
    if (rpc->is_server)
        forward_tell_end(rpc, session, copy);
    calls_complete(rpc, session, call_status, copy);
    callback_left(rpc, session->worker, why, copy);
    futures_tell(rpc);
}

/* The session with oneself does not end. */
void session_end(struct rpc *rpc, struct rpc_session *session, enum status why, enum status call_status,
                 const char *text)
{
    if (session->is_live && !session->is_self)
        finish_session(rpc, session, why, call_status, text, true);
}

void session_end_quietly(struct rpc *rpc, struct rpc_session *session, enum status why, const char *text)
{
    finish_session(rpc, session, why, STATUS_PEER_DIED, text, false);
}

static void lose(struct rpc *rpc, struct rpc_session *session)
{
    assert(!session->is_self);
    if (!session->is_live || session->is_lost)
        return;
    session->is_lost = true;
    rpc->lost_count++;
}

void session_lose(struct rpc *rpc, struct rpc_session *session)
{
    if (!session->is_lost)
        lose(rpc, session_link(rpc, session));
}

void session_lose_slow(struct rpc *rpc, struct rpc_session *session)
{
    session->leaves_answers |= !session->is_lost;
    lose(rpc, session);
}

static void end_bad(struct rpc *rpc, struct rpc_session *session, const char *text)
{
    rpc->counters.bad++;
    session_end(rpc, session, STATUS_INVALID, STATUS_PEER_DIED, text);
}

void sessions_reap(struct rpc *rpc)
{
    for (size_t i = 0; i < rpc->config.workers && rpc->lost_count > 0; i++) {
        struct rpc_session *session = &rpc->sessions[i];
        if (session->is_lost && session->leaves_answers)
            end_bad(rpc, session, "its answers are not taken");
        else if (session->is_lost)
            session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, "its connection is gone");
    }
}

void rpc_peer_died(struct rpc *rpc, uint16_t worker, const char *text)
{
    struct rpc_session *session = session_of(rpc, worker);
    if (session != NULL)
        session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, text);
}

void rpc_reject_worker(struct rpc *rpc, uint16_t worker, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    struct rpc_session *session = session_of(rpc, worker);
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (session != NULL)
        end_bad(rpc, session, text);
}

/* ---- HELLO and WELCOME ---- */

static void send_welcome(struct rpc *rpc, const struct rpc_session *session)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_WELCOME, session->worker);
    header.role = rpc->config.role;
    rpc_send_text(rpc, session->socket->endpoint, &header, session->peer, rpc->welcome, rpc->welcome_bytes,
                  false);
}

void session_begin(struct rpc_session *session, uint16_t worker, uint8_t role, uint32_t incarnation)
{
    session->worker = worker;
    session->is_live = session->was_live = true;
    session->role = role;
    session->incarnation = incarnation;
    session->next_request = 1;
    session->window_top = 0;
    memset(session->window, 0, sizeof session->window);
}

/* Others may have sent it something that waits here for it. */
static void open_session(struct rpc *rpc, struct rpc_session *session, struct rpc_socket *socket,
                         const struct wire_header *header, uint32_t peer)
{
    forward_note_joined(rpc, session, header->incarnation);
    session_begin(session, header->source, header->role, header->incarnation);
    session->socket = socket;
    session->peer = peer;
    rpc->held_total += session->held.count;
    if (socket->dialed == NULL)
        peers_add(rpc, session);
}

/* Why a HELLO is refused, or NULL. */
static const char *refusal(const struct rpc *rpc, const struct wire_header *header)
{
    if (header->generation != rpc->config.generation)
        return "the job has another generation";
    if (header->source >= rpc->config.workers || header->source == rpc->config.worker)
        return "no such worker in this job";
    if (header->source < rpc->config.worker)
        return "this server dials that worker, which has a lower number";
    if (header->role != rpc->roster[header->source])
        return "not the role of that worker in this job";
    if (header->destination != rpc->config.worker)
        return "this is another server of the job";
    if (header->incarnation > rpc->config.peer_incarnation_max)
        return "nobody has started this incarnation of the worker";
    const struct rpc_session *session = &rpc->sessions[header->source];
    if (session->was_live && header->incarnation <= session->incarnation)
        return session->is_live ? "this incarnation of the worker is here already"
                                : "this incarnation of the worker has ended";
    return NULL;
}

static void receive_hello(struct rpc *rpc, struct rpc_socket *socket, const struct wire_header *header,
                          uint32_t peer)
{
    const char *reason = refusal(rpc, header);
    if (reason != NULL) {
        rpc->counters.strangers++;
        rpc->counters.stale += header->generation != rpc->config.generation;
        peers_ignore(rpc, peer);
        session_say_bye(rpc, socket, peer, header->source, 0, reason);
        return;
    }
    struct rpc_session *session = &rpc->sessions[header->source];
    if (session->is_live)
        session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, "replaced by a later incarnation");
    open_session(rpc, session, socket, header, peer);
    send_welcome(rpc, session);
    if (rpc->config.joined != NULL) {
        rpc->callbacks++;
        rpc->config.joined(rpc->config.context, session->worker);
        rpc->callbacks--;
    }
}

/* A connection is heard of for the first time, or is one that is ignored, or a server whose session is over.
 */
static void receive_stranger(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
{
    struct wire_header header;
    struct error error;
    uint32_t peer = message->peer;
    bool is_known = socket->dialed != NULL || peers_is_ignored(rpc, peer);
    enum status status = is_known ? STATUS_OK
                                  : wire_decode(&header, message->header, message->header_bytes,
                                                message->payload_bytes, &error);
    endpoint_release(message);
    if (!is_known && status == STATUS_OK && header.kind == WIRE_HELLO) {
        receive_hello(rpc, socket, &header, peer);
        return;
    }
    rpc->counters.strangers++;
    if (is_known)
        return;
    peers_ignore(rpc, peer);
    if (status != STATUS_OK)
        session_say_bye(rpc, socket, peer, 0, 0, error.text);
    else if (header.kind != WIRE_BYE)
        session_say_bye(rpc, socket, peer, header.source, 0, "expected HELLO first");
}

/* A client's job is what its first server says it is; a server has been told before. */
static enum status keep_welcome(struct rpc *rpc, const struct rpc_socket *socket,
                                const struct endpoint_message *message)
{
    if (rpc->is_server || socket != &rpc->sockets[0])
        return STATUS_OK;
    rpc->welcome = malloc(message->payload_bytes + 1);
    if (rpc->welcome == NULL)
        return error_set(&rpc->join_error, STATUS_NO_MEMORY, "no memory for the server's welcome");
    memcpy(rpc->welcome, message->payload, message->payload_bytes);
    rpc->welcome[message->payload_bytes] = '\0';
    rpc->welcome_bytes = message->payload_bytes;
    return STATUS_OK;
}

/* A server's first answer: WELCOME, or the reason why not. */
static void receive_joining(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
{
    struct wire_header header;
    struct error *error = &rpc->join_error;
    uint16_t server = (uint16_t)(socket->dialed - rpc->sessions);
    if (wire_decode(&header, message->header, message->header_bytes, message->payload_bytes, error) !=
        STATUS_OK) {
        rpc->counters.bad++;
    } else if (header.kind == WIRE_BYE) {
        char text[WIRE_ERROR_TEXT_MAX + 1];
        rules_copy_text(text, sizeof text, message->payload, message->payload_bytes);
        error_set(error, STATUS_PERMISSION, "%s", text);
    } else if (header.kind == WIRE_WELCOME && header.generation == rpc->config.generation &&
               header.source == server && header.destination == rpc->config.worker &&
               header.role == rpc->roster[server]) {
        if (keep_welcome(rpc, socket, message) == STATUS_OK)
            open_session(rpc, socket->dialed, socket, &header, 0);
    } else {
        rpc->counters.stale++;
    }
    endpoint_release(message);
}

/* ---- every message ---- */

/* The header binds the connection to who said HELLO on it. NULL when it does. */
static const char *sender_fault(const struct rpc_session *session, const struct wire_header *header)
{
    if (header->source != session->worker)
        return "the source is not the connection's worker";
    if (header->incarnation != session->incarnation)
        return "the incarnation is not the connection's";
    return NULL;
}

/* Only what is passed on can find another than the one it is meant for. */
static const char *direct_fault(const struct rpc *rpc, const struct wire_header *header)
{
    if (header->destination == rpc->config.worker && header->addressee != 0)
        return "an addressee in a message that is not passed on";
    return NULL;
}

/* HELLO may be repeated, and so may its answer; from the wrong end they are bad. */
static void receive_greeting(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header)
{
    bool is_ours_to_welcome = session->socket->dialed == NULL;
    enum wire_kind expected = is_ours_to_welcome ? WIRE_HELLO : WIRE_WELCOME;
    if (header->kind != expected || header->role != session->role)
        end_bad(rpc, session, "a greeting out of place");
    else if (is_ours_to_welcome)
        send_welcome(rpc, session);
}

static void receive_bye(struct rpc *rpc, struct rpc_session *session, struct endpoint_message *message)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    rules_copy_text(text, sizeof text, message->payload, message->payload_bytes);
    endpoint_release(message);
    session_end_quietly(rpc, session, STATUS_PEER_DIED, text);
}

void session_receive_malformed(struct rpc *rpc, struct rpc_socket *socket, uint32_t peer)
{
    struct rpc_session *session = find_session(rpc, socket, peer);
    rpc->counters.received++;
    if (session_is_awaited(socket)) {
        rpc->counters.bad++;
        error_set(&rpc->join_error, STATUS_INVALID, "it answered with a message that is not two frames");
    } else if (session != NULL) {
        end_bad(rpc, session, "a message that is not two frames within the limits");
    } else {
        rpc->counters.strangers++;
        if (socket->dialed == NULL && peer != 0 && !peers_is_ignored(rpc, peer)) {
            peers_ignore(rpc, peer);
            session_say_bye(rpc, socket, peer, 0, 0, "a message that is not two frames within the limits");
        }
    }
}

/* Where the tensors lie that a peer lends. Its segment is mapped once, when it first lends something. */
static enum status find_lent(const struct rpc *rpc, struct rpc_session *session,
                             const struct wire_header *header, const void *lent[WIRE_TENSORS_MAX],
                             struct error *error)
{
    if (!rules_lends(header))
        return STATUS_OK;
    if (rpc->config.outbox == NULL)
        return error_set(error, STATUS_INVALID, "a tensor is lent: nothing is in this job");
    if (session->segment.data == NULL &&
        segment_attach(&session->segment, session->worker, 0, error) != STATUS_OK)
        return STATUS_INVALID;
    return rules_find_lent(header, &session->segment, lent, error);
}

static void receive_call(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival)
{
    struct error error;
    bodies_take(session, &arrival->header, &arrival->body, &arrival->body_state);
    if (find_lent(rpc, session, &arrival->header, arrival->lent, &error) != STATUS_OK) {
        arrival_drop(arrival);
        end_bad(rpc, session, error.text);
    } else if (arrival->header.kind == WIRE_REQUEST) {
        answers_receive_request(rpc, session, arrival);
    } else {
        calls_receive_reply(rpc, session, arrival);
    }
}

static void receive_piece(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header,
                          struct endpoint_message *message)
{
    const char *fault = bodies_receive_piece(session, header, message->payload);
    endpoint_release(message);
    if (fault != NULL)
        end_bad(rpc, session, fault);
}

/* What came in a session of this worker. */
static void dispatch(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival)
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
        endpoint_release(message);
        receive_greeting(rpc, session, &arrival->header);
    }
}

/* Whose session a message is of, that came over the connection of `link`. NULL: nobody's (any more). What the
 * worker there did wrong is a fault. */
static struct rpc_session *find_sender(struct rpc *rpc, struct rpc_session *link,
                                       const struct wire_header *header, const char **fault)
{
    if (!rpc->is_server && header->destination != rpc->config.worker) {
        *fault = "the destination is another worker";
        return NULL;
    }
    if (!rpc->is_server && link->worker == 0 && header->source != 0)
        return forward_find(rpc, header, fault);
    *fault = sender_fault(link, header);
    if (*fault == NULL)
        *fault = direct_fault(rpc, header);
    return link;
}

static void receive_in_session(struct rpc *rpc, struct rpc_session *link, struct endpoint_message *message)
{
    struct rpc_arrival arrival = {.frames = message};
    struct wire_header *header = &arrival.header;
    struct rpc_session *session = NULL;
    struct error error;
    const char *fault = NULL;
    if (wire_decode(header, message->header, message->header_bytes, message->payload_bytes, &error) !=
        STATUS_OK)
        fault = error.text;
    else if (header->generation != rpc->config.generation)
        rpc->counters.stale++;
    else
        session = find_sender(rpc, link, header, &fault);
    if (fault != NULL || session == NULL)
        endpoint_release(message);
    else if (header->destination != rpc->config.worker)
        fault = forward_pass(rpc, link, header, message);
    else
        dispatch(rpc, session, &arrival);
    if (fault != NULL)
        end_bad(rpc, link, fault);
}

void session_receive(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
{
    rpc->counters.received++;
    struct rpc_session *session = find_session(rpc, socket, message->peer);
    if (session != NULL)
        receive_in_session(rpc, session, message);
    else if (session_is_awaited(socket))
        receive_joining(rpc, socket, message);
    else
        receive_stranger(rpc, socket, message);
}
