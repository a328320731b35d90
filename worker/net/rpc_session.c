/* Who is at the other end, and what is checked of every message before anything else sees it.
 *
 * A server knows a connection by its routing id: either it has a session, found in a small hash table, or
 * it is a stranger. A stranger may say HELLO; whatever else it says, or a HELLO that is refused, is
 * answered with one BYE, and the connection is ignored as long as it stands among the last STRANGERS_MAX
 * of that sort. The order of checks: the header by itself, the job's generation, the sender, the kind, and
 * then, in the files for calls and answers, method, caller, shapes, and whether it was seen before. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status sessions_new(struct rpc *rpc)
{
    uint32_t slots = 4;
    rpc->session_count = rpc->is_server ? rpc->config.peers_max : 1;
    while (slots < 2 * rpc->session_count)
        slots *= 2;
    rpc->peers_mask = slots - 1;
    rpc->peers = calloc(slots, sizeof *rpc->peers);
    rpc->sessions = calloc(rpc->session_count, sizeof *rpc->sessions);
    if (rpc->peers == NULL || rpc->sessions == NULL)
        return STATUS_NO_MEMORY;
    for (size_t i = 0; i < rpc->session_count; i++)
        rpc->sessions[i].worker = rpc->is_server ? (uint16_t)(i + 1) : 0;
    return STATUS_OK;
}

void sessions_free(struct rpc *rpc)
{
    free(rpc->peers);
    free(rpc->sessions);
}

struct rpc_session *session_of(struct rpc *rpc, uint16_t worker)
{
    size_t index = rpc->is_server ? (size_t)worker - 1 : worker;
    if (index >= rpc->session_count || !rpc->sessions[index].is_live)
        return NULL;
    return &rpc->sessions[index];
}

/* ---- connections: the table of those with a session, the ring of strangers ---- */

static uint32_t peer_home(const struct rpc *rpc, uint32_t peer)
{
    return (peer * UINT32_C(0x9e3779b1)) >> 7 & rpc->peers_mask;
}

static struct rpc_session *find_session(struct rpc *rpc, uint32_t peer)
{
    if (!rpc->is_server)
        return rpc->sessions[0].is_live ? &rpc->sessions[0] : NULL;
    for (uint32_t at = peer_home(rpc, peer); rpc->peers[at].session != 0; at = (at + 1) & rpc->peers_mask)
        if (rpc->peers[at].peer == peer)
            return &rpc->sessions[rpc->peers[at].session - 1];
    return NULL;
}

static void add_peer(struct rpc *rpc, struct rpc_session *session)
{
    uint32_t at = peer_home(rpc, session->peer);
    while (rpc->peers[at].session != 0)
        at = (at + 1) & rpc->peers_mask;
    rpc->peers[at] = (struct peer_slot){session->peer, (uint32_t)(session - rpc->sessions) + 1};
}

/* Fills the gap with what a search would no longer find behind it. */
static void remove_peer(struct rpc *rpc, uint32_t peer)
{
    uint32_t gap = peer_home(rpc, peer);
    while (rpc->peers[gap].peer != peer || rpc->peers[gap].session == 0)
        gap = (gap + 1) & rpc->peers_mask;
    for (uint32_t at = (gap + 1) & rpc->peers_mask; rpc->peers[at].session != 0;
         at = (at + 1) & rpc->peers_mask) {
        uint32_t home = peer_home(rpc, rpc->peers[at].peer);
        if (((at - home) & rpc->peers_mask) < ((at - gap) & rpc->peers_mask))
            continue;
        rpc->peers[gap] = rpc->peers[at];
        gap = at;
    }
    rpc->peers[gap].session = 0;
}

static bool is_ignored(const struct rpc *rpc, uint32_t peer)
{
    for (unsigned i = 0; i < rpc->stranger_count; i++)
        if (rpc->strangers[i] == peer)
            return true;
    return false;
}

static void ignore(struct rpc *rpc, uint32_t peer)
{
    if (!rpc->is_server)
        return;
    rpc->strangers[rpc->stranger_next] = peer;
    rpc->stranger_next = (rpc->stranger_next + 1) % STRANGERS_MAX;
    if (rpc->stranger_count < STRANGERS_MAX)
        rpc->stranger_count++;
}

/* ---- the end of a session ---- */

static void say_bye(struct rpc *rpc, uint32_t peer, uint16_t destination, const char *text)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_BYE, destination);
    size_t bytes = strlen(text);
    rpc_send_text(rpc, &header, peer, text, bytes < WIRE_ERROR_TEXT_MAX ? bytes : WIRE_ERROR_TEXT_MAX, true);
}

static void callback_left(struct rpc *rpc, uint16_t worker, enum status why, const char *text)
{
    if (rpc->config.left == NULL)
        return;
    rpc->callbacks++;
    rpc->config.left(rpc->config.context, worker, why, text);
    rpc->callbacks--;
}

static void close_session(struct rpc *rpc, struct rpc_session *session)
{
    session->is_live = false;
    if (session->is_lost)
        rpc->lost_count--;
    session->is_lost = false;
    if (rpc->is_server)
        remove_peer(rpc, session->peer);
    ignore(rpc, session->peer);
    answers_detach(rpc, session);
}

/* The text is copied first: it may lie in a message or an object that ends here. */
void session_end(struct rpc *rpc, struct rpc_session *session, enum status why, enum status call_status,
                 const char *text)
{
    if (!session->is_live)
        return;
    char copy[WIRE_ERROR_TEXT_MAX + 1];
    snprintf(copy, sizeof copy, "%s", text);
    close_session(rpc, session);
    say_bye(rpc, session->peer, session->worker, copy);
    calls_complete(rpc, session, call_status, copy);
    callback_left(rpc, session->worker, why, copy);
    futures_tell(rpc);
}

void session_lose(struct rpc *rpc, struct rpc_session *session)
{
    if (!session->is_live || session->is_lost)
        return;
    session->is_lost = true;
    rpc->lost_count++;
}

void sessions_reap(struct rpc *rpc)
{
    for (size_t i = 0; i < rpc->session_count && rpc->lost_count > 0; i++)
        if (rpc->sessions[i].is_lost)
            session_end(rpc, &rpc->sessions[i], STATUS_PEER_DIED, STATUS_PEER_DIED, "its connection is gone");
}

void rpc_peer_died(struct rpc *rpc, uint16_t worker, const char *text)
{
    struct rpc_session *session = session_of(rpc, worker);
    if (session != NULL)
        session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, text);
}

static void end_bad(struct rpc *rpc, struct rpc_session *session, const char *text)
{
    rpc->counters.bad++;
    session_end(rpc, session, STATUS_INVALID, STATUS_PEER_DIED, text);
}

/* ---- HELLO and WELCOME ---- */

static void send_welcome(struct rpc *rpc, const struct rpc_session *session)
{
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_WELCOME, session->worker);
    header.role = rpc->config.role;
    rpc_send_text(rpc, &header, session->peer, rpc->welcome, rpc->welcome_bytes, false);
}

static void open_session(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header,
                         uint32_t peer)
{
    session->is_live = session->was_live = true;
    session->role = header->role;
    session->incarnation = header->incarnation;
    session->peer = peer;
    session->next_request = 1;
    session->window_top = 0;
    memset(session->window, 0, sizeof session->window);
    if (rpc->is_server)
        add_peer(rpc, session);
}

/* Why a HELLO is refused, or NULL. */
static const char *refusal(const struct rpc *rpc, const struct rpc_session *session,
                           const struct wire_header *header)
{
    if (header->generation != rpc->config.generation)
        return "the job has another generation";
    if (session == NULL)
        return "no such worker in this job";
    if (header->role != rpc->config.peer_role || header->destination != rpc->config.worker)
        return "not the role that this server serves";
    if (header->incarnation > rpc->config.peer_incarnation_max)
        return "nobody has started this incarnation of the worker";
    if (session->was_live && header->incarnation <= session->incarnation)
        return session->is_live ? "this incarnation of the worker is here already"
                                : "this incarnation of the worker has ended";
    return NULL;
}

static void receive_hello(struct rpc *rpc, const struct wire_header *header, uint32_t peer)
{
    size_t index = (size_t)header->source - 1;
    struct rpc_session *session = index < rpc->session_count ? &rpc->sessions[index] : NULL;
    const char *reason = refusal(rpc, session, header);
    if (reason != NULL) {
        rpc->counters.strangers++;
        rpc->counters.stale += header->generation != rpc->config.generation;
        ignore(rpc, peer);
        say_bye(rpc, peer, header->source, reason);
        return;
    }
    assert(session != NULL);
    if (session->is_live)
        session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, "replaced by a later incarnation");
    open_session(rpc, session, header, peer);
    send_welcome(rpc, session);
    if (rpc->config.joined != NULL) {
        rpc->callbacks++;
        rpc->config.joined(rpc->config.context, session->worker);
        rpc->callbacks--;
    }
}

/* A server hears of a connection for the first time, or of one that it ignores. */
static void receive_stranger(struct rpc *rpc, struct endpoint_message *message)
{
    struct wire_header header;
    struct error error;
    uint32_t peer = message->peer;
    bool is_known = !rpc->is_server || is_ignored(rpc, peer);
    enum status status = is_known ? STATUS_OK
                                  : wire_decode(&header, message->header, message->header_bytes,
                                                message->payload_bytes, &error);
    endpoint_release(message);
    if (!is_known && status == STATUS_OK && header.kind == WIRE_HELLO) {
        receive_hello(rpc, &header, peer);
        return;
    }
    rpc->counters.strangers++;
    if (is_known)
        return;
    ignore(rpc, peer);
    if (status != STATUS_OK)
        say_bye(rpc, peer, 0, error.text);
    else if (header.kind != WIRE_BYE)
        say_bye(rpc, peer, header.source, "expected HELLO first");
}

/* A client's first answer: WELCOME, or the reason why not. */
static void receive_joining(struct rpc *rpc, struct endpoint_message *message)
{
    struct wire_header header;
    struct error *error = &rpc->join_error;
    if (wire_decode(&header, message->header, message->header_bytes, message->payload_bytes, error) !=
        STATUS_OK) {
        rpc->counters.bad++;
    } else if (header.kind == WIRE_BYE) {
        char text[WIRE_ERROR_TEXT_MAX + 1];
        rules_copy_text(text, sizeof text, message->payload, message->payload_bytes);
        error_set(error, STATUS_PERMISSION, "%s", text);
    } else if (header.kind == WIRE_WELCOME && header.generation == rpc->config.generation &&
               header.source == 0 && header.destination == rpc->config.worker &&
               header.role == rpc->config.peer_role) {
        rpc->welcome = malloc(message->payload_bytes + 1);
        if (rpc->welcome == NULL) {
            error_set(error, STATUS_NO_MEMORY, "no memory for the server's welcome");
        } else {
            memcpy(rpc->welcome, message->payload, message->payload_bytes);
            rpc->welcome[message->payload_bytes] = '\0';
            rpc->welcome_bytes = message->payload_bytes;
            open_session(rpc, &rpc->sessions[0], &header, 0);
            rpc->is_joining = false;
        }
    } else {
        rpc->counters.stale++;
    }
    endpoint_release(message);
}

/* ---- every message ---- */

/* The header binds the connection to who said HELLO on it. NULL when it does. */
static const char *sender_fault(const struct rpc *rpc, const struct rpc_session *session,
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

/* HELLO may be repeated, and so may its answer; from the wrong end they are bad. */
static void receive_greeting(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header)
{
    enum wire_kind expected = rpc->is_server ? WIRE_HELLO : WIRE_WELCOME;
    if (header->kind != expected || header->role != session->role)
        end_bad(rpc, session, "a greeting out of place");
    else if (rpc->is_server)
        send_welcome(rpc, session);
}

static void receive_bye(struct rpc *rpc, struct rpc_session *session, struct endpoint_message *message)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    rules_copy_text(text, sizeof text, message->payload, message->payload_bytes);
    endpoint_release(message);
    close_session(rpc, session);
    calls_complete(rpc, session, STATUS_PEER_DIED, text);
    callback_left(rpc, session->worker, STATUS_PEER_DIED, text);
    futures_tell(rpc);
}

void session_receive_malformed(struct rpc *rpc, uint32_t peer)
{
    struct rpc_session *session = find_session(rpc, peer);
    rpc->counters.received++;
    if (rpc->is_joining) {
        rpc->counters.bad++;
        error_set(&rpc->join_error, STATUS_INVALID, "it answered with a message that is not two frames");
    } else if (session != NULL) {
        end_bad(rpc, session, "a message that is not two frames within the limits");
    } else {
        rpc->counters.strangers++;
        if (rpc->is_server && peer != 0 && !is_ignored(rpc, peer)) {
            ignore(rpc, peer);
            say_bye(rpc, peer, 0, "a message that is not two frames within the limits");
        }
    }
}

static void receive_in_session(struct rpc *rpc, struct rpc_session *session, struct endpoint_message *message)
{
    struct wire_header header;
    struct error error;
    const char *fault = NULL;
    if (wire_decode(&header, message->header, message->header_bytes, message->payload_bytes, &error) !=
        STATUS_OK)
        fault = error.text;
    else if (header.generation == rpc->config.generation)
        fault = sender_fault(rpc, session, &header);
    if (fault != NULL) {
        endpoint_release(message);
        end_bad(rpc, session, fault);
    } else if (header.generation != rpc->config.generation) {
        endpoint_release(message);
        rpc->counters.stale++;
    } else if (header.kind == WIRE_REQUEST) {
        answers_receive_request(rpc, session, &header, message);
    } else if (header.kind == WIRE_REPLY) {
        calls_receive_reply(rpc, session, &header, message);
    } else if (header.kind == WIRE_BYE) {
        receive_bye(rpc, session, message);
    } else {
        endpoint_release(message);
        receive_greeting(rpc, session, &header);
    }
}

void session_receive(struct rpc *rpc, struct endpoint_message *message)
{
    rpc->counters.received++;
    struct rpc_session *session = find_session(rpc, message->peer);
    if (session != NULL)
        receive_in_session(rpc, session, message);
    else if (rpc->is_joining)
        receive_joining(rpc, message);
    else
        receive_stranger(rpc, message);
}
