/* HELLO and WELCOME as they arrive: the answer to this worker's HELLO, and the HELLO of others. Thread: the
 * owner of the rpc.
 *
 * A connection of the bound socket that has no session is a stranger. A stranger may say HELLO. Anything
 * else, or a HELLO that is refused, is answered with one BYE, and the connection is ignored for a while.
 *
 * The listener proves the secret over the dialing worker's fresh nonce. The dialing worker proves it over its
 * own nonce: a nonce of the listener would cost one more round trip, and a HELLO that is repeated by another
 * has no effect anyway, because the listener accepts one HELLO of each incarnation. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>
#include <string.h>

bool hello_is_awaited(const struct rpc_socket *socket)
{
    return socket->dialed != NULL && !socket->dialed->was_live;
}

/* ---- the answer to HELLO ---- */

enum status hello_keep_job(struct rpc *rpc, const void *text, size_t bytes)
{
    uint8_t *welcome = malloc(WIRE_PROOF_BYTES + bytes + 1);
    if (welcome == NULL)
        return STATUS_NO_MEMORY;
    if (bytes > 0)
        memcpy(welcome + WIRE_PROOF_BYTES, text, bytes);
    welcome[WIRE_PROOF_BYTES + bytes] = '\0';
    free(rpc->welcome);
    rpc->welcome = welcome;
    rpc->welcome_bytes = bytes;
    return STATUS_OK;
}

/* Keeps the job of the first dialed worker's WELCOME, unless the configuration has a job. */
static enum status hello_keep_welcome(struct rpc *rpc, const struct rpc_socket *socket,
                                      const struct endpoint_message *message)
{
    const struct rpc_socket *first = &rpc->sockets[rpc->bound_count];
    if (rpc->config.welcome_bytes > 0 || socket != first)
        return STATUS_OK;
    if (hello_keep_job(rpc, message->payload + WIRE_PROOF_BYTES, message->payload_bytes - WIRE_PROOF_BYTES) !=
        STATUS_OK)
        return error_set(&rpc->join_error, STATUS_NO_MEMORY, "no memory for the text of WELCOME");
    return STATUS_OK;
}

static bool hello_welcome_is_proven(const struct rpc *rpc, const struct rpc_session *session,
                                    const struct endpoint_message *message)
{
    const struct greeting greeting = {.header = message->header,
                                      .nonce = session->nonce,
                                      .text = message->payload + WIRE_PROOF_BYTES,
                                      .text_bytes = message->payload_bytes - WIRE_PROOF_BYTES};
    return greeting_is_proven(&greeting, rpc->config.secret, message->payload);
}

static void hello_receive_welcome(struct rpc *rpc, struct rpc_socket *socket,
                                  const struct wire_header *header, const struct endpoint_message *message)
{
    const uint16_t worker = (uint16_t)(socket->dialed - rpc->sessions);
    if (!hello_welcome_is_proven(rpc, socket->dialed, message)) {
        rpc->counters.strangers++;
        error_set(&rpc->join_error, STATUS_PERMISSION, "its WELCOME does not prove the job's secret");
    } else if (header->generation != rpc->config.generation || header->source != worker ||
               header->destination != rpc->config.worker || header->role != rpc->roster[worker]) {
        rpc->counters.stale++;
    } else if (hello_keep_welcome(rpc, socket, message) == STATUS_OK) {
        session_open(socket->dialed, socket, header, 0);
    }
}

/* The answer to HELLO: WELCOME, or BYE with a reason. */
void hello_receive_answer(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
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
    } else if (header.kind == WIRE_WELCOME) {
        hello_receive_welcome(rpc, socket, &header, message);
    } else {
        rpc->counters.stale++;
    }
    endpoint_release(message);
}

/* ---- the HELLO of others ---- */

/* False: WELCOME could not be sent. */
static bool hello_welcome(struct rpc *rpc, struct endpoint *endpoint, uint16_t worker, uint32_t peer,
                          const uint8_t nonce[WIRE_NONCE_BYTES])
{
    struct wire_header header;
    uint8_t encoded[WIRE_HEADER_BYTES];
    const size_t payload_bytes = WIRE_PROOF_BYTES + rpc->welcome_bytes;
    const struct greeting greeting = {.header = encoded,
                                      .nonce = nonce,
                                      .text = rpc->welcome + WIRE_PROOF_BYTES,
                                      .text_bytes = rpc->welcome_bytes};
    rpc_header(rpc, &header, WIRE_WELCOME, worker);
    header.role = rpc->config.role;
    header.payload_bytes = (uint32_t)payload_bytes;
    wire_encode(&header, encoded);
    greeting_prove(&greeting, rpc->config.secret, rpc->welcome);
    return send_text(rpc, endpoint, &header, peer, rpc->welcome, payload_bytes, false);
}

/* A HELLO, without its frames. */
struct hello {
    struct wire_header header;
    uint8_t nonce[WIRE_NONCE_BYTES];
    bool is_proven;
    int host; /* by the key of its connection; -1: this one, where connections have no keys */
};

static void hello_read(const struct rpc *rpc, struct hello *hello, const struct endpoint_message *message)
{
    const struct greeting greeting = {.header = message->header, .nonce = message->payload};
    hello->is_proven = greeting_is_proven(&greeting, rpc->config.secret, message->payload + WIRE_NONCE_BYTES);
    memcpy(hello->nonce, message->payload, sizeof hello->nonce);
    hello->host = endpoint_message_host(message);
}

/* Whether the worker that says HELLO runs on the host whose key its connection has shown. */
static bool hello_is_in_place(const struct rpc *rpc, const struct hello *hello)
{
    const uint16_t source = hello->header.source;
    return hello->host < 0 || source >= rpc->config.workers ||
           rpc->config.host_of_worker[source] == hello->host;
}

/* Why a HELLO is refused, or NULL. */
static const char *hello_fault(const struct rpc *rpc, const struct hello *hello)
{
    const struct wire_header *header = &hello->header;
    if (!hello->is_proven)
        return "it does not prove the job's secret";
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
    const struct rpc_session *session = &rpc->sessions[header->source];
    if (session->was_live && header->incarnation <= session->incarnation)
        return session->is_live ? "this incarnation of the worker is here already"
                                : "this incarnation of the worker has ended";
    return NULL;
}

static void hello_receive(struct rpc *rpc, struct rpc_socket *socket, const struct hello *hello,
                          uint32_t peer)
{
    const struct wire_header *header = &hello->header;
    const char *reason = hello_fault(rpc, hello);
    if (reason == NULL && !hello_is_in_place(rpc, hello)) {
        rpc->counters.strangers++;
        return;
    }
    if (reason != NULL) {
        rpc->counters.strangers++;
        rpc->counters.stale += hello->is_proven && header->generation != rpc->config.generation;
        peer_ignore(rpc, socket, peer);
        session_say_bye(rpc, socket, peer, header->source, reason);
        return;
    }
    struct rpc_session *session = &rpc->sessions[header->source];
    if (session->is_live)
        session_end(rpc, session, STATUS_PEER_DIED, STATUS_PEER_DIED, "replaced by a later incarnation");
    /* A session begins with WELCOME. Without one the peer says HELLO again. */
    if (!hello_welcome(rpc, socket->endpoint, header->source, peer, hello->nonce))
        return;
    session_open(session, socket, header, peer);
    if (rpc->config.joined != NULL) {
        rpc->callbacks++;
        rpc->config.joined(rpc->config.context, session->worker);
        rpc->callbacks--;
    }
}

void hello_receive_stranger(struct rpc *rpc, struct rpc_socket *socket, struct endpoint_message *message)
{
    struct hello hello = {.is_proven = false};
    const struct wire_header *header = &hello.header;
    struct error error;
    uint32_t peer = message->peer;
    bool is_known = socket->dialed != NULL || peer_is_ignored(rpc, socket, peer);
    enum status status = is_known ? STATUS_OK
                                  : wire_decode(&hello.header, message->header, message->header_bytes,
                                                message->payload_bytes, &error);
    bool is_hello = !is_known && status == STATUS_OK && header->kind == WIRE_HELLO;
    if (is_hello)
        hello_read(rpc, &hello, message);
    endpoint_release(message);
    if (is_hello) {
        hello_receive(rpc, socket, &hello, peer);
        return;
    }
    rpc->counters.strangers++;
    if (is_known)
        return;
    peer_ignore(rpc, socket, peer);
    if (status != STATUS_OK)
        session_say_bye(rpc, socket, peer, 0, error.text);
    else if (header->kind != WIRE_BYE)
        session_say_bye(rpc, socket, peer, header->source, "expected HELLO first");
}

/* HELLO and WELCOME may be repeated; from the wrong end of the session they are bad messages. */
void hello_receive_again(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival)
{
    const struct wire_header *header = &arrival->header;
    bool is_ours_to_welcome = session->socket->dialed == NULL;
    uint8_t nonce[WIRE_NONCE_BYTES] = {0};
    if (header->kind == WIRE_HELLO)
        memcpy(nonce, arrival->frames->payload, sizeof nonce);
    endpoint_release(arrival->frames);
    enum wire_kind expected = is_ours_to_welcome ? WIRE_HELLO : WIRE_WELCOME;
    if (header->kind != expected || header->role != session->role)
        session_end_bad(rpc, session, "a greeting out of place");
    else if (is_ours_to_welcome)
        hello_welcome(rpc, session->socket->endpoint, session->worker, session->peer, nonce);
}
