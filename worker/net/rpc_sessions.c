/* The table of sessions, sockets, greetings, dialing. Thread: the owner of the rpc. */
#include "worker/net/rpc_sessions.h"

#include "kernels/base/profile.h"
#include "worker/net/greeting.h"
#include "worker/net/rpc_rules.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)ENDPOINT_SET_MAX >= 2 + RPC_DIALED_MAX, "two bound sockets and all dialed ones");

enum { HELLO_EVERY_US = 250000 };

/* ---- opening and closing ---- */

/* Keeps the job's text, for this worker and for its own WELCOMEs. STATUS_NO_MEMORY. */
static enum status sessions_keep_job(struct sessions *sessions, const void *text, size_t bytes)
{
    uint8_t *welcome = malloc(WIRE_PROOF_BYTES + bytes + 1);
    if (welcome == NULL)
        return STATUS_NO_MEMORY;
    if (bytes > 0)
        memcpy(welcome + WIRE_PROOF_BYTES, text, bytes);
    welcome[WIRE_PROOF_BYTES + bytes] = '\0';
    free(sessions->welcome);
    sessions->welcome = welcome;
    sessions->job_bytes = bytes;
    return STATUS_OK;
}

/* The session with oneself never ends. */
enum status sessions_init(struct sessions *sessions, struct rpc_common *common, struct outgoing *outgoing)
{
    const struct rpc_config *config = &common->config;
    sessions->common = common;
    sessions->outgoing = outgoing;
    sessions->table = calloc(config->workers, sizeof *sessions->table);
    if (sessions->table == NULL)
        return STATUS_NO_MEMORY;
    sessions->table[config->worker] = (struct session){
        .is_live = true, .was_live = true, .incarnation = config->incarnation, .socket = SIZE_MAX};
    outgoing_open(outgoing, config->worker, NULL, 0, true);
    return sessions_keep_job(sessions, config->welcome, config->welcome_bytes);
}

void sessions_fini(struct sessions *sessions, int linger_ms)
{
    free(sessions->table);
    free(sessions->welcome);
    while (sessions->socket_count > 0)
        endpoint_free(sessions->endpoints[--sessions->socket_count], linger_ms);
}

static void sessions_add_socket(struct sessions *sessions, struct endpoint *endpoint, int dialed, bool is_far)
{
    sessions->sockets[sessions->socket_count] = (struct session_socket){dialed, is_far};
    sessions->endpoints[sessions->socket_count++] = endpoint;
    sessions->bound_count += dialed < 0;
}

/* The endpoint in whose ZeroMQ context the next one is made. */
static struct endpoint *sessions_first(const struct sessions *sessions)
{
    return sessions->socket_count > 0 ? sessions->endpoints[0] : NULL;
}

enum status sessions_bind(struct sessions *sessions, const char *address, struct error *error)
{
    const struct rpc_config *config = &sessions->common->config;
    struct endpoint *endpoint;
    enum status status = STATUS_OK;
    if (address != NULL) {
        struct wire_pass pass;
        greeting_make_pass(&pass, config->secret, config->worker);
        status = endpoint_bind(&endpoint, address, &pass, config->workers, error);
        if (status == STATUS_OK)
            sessions_add_socket(sessions, endpoint, -1, false);
    }
    if (status == STATUS_OK && config->far_address != NULL) {
        status = endpoint_bind_far(&endpoint, sessions_first(sessions), config->far_address, config->keys,
                                   config->workers, error);
        if (status == STATUS_OK)
            sessions_add_socket(sessions, endpoint, -1, true);
    }
    return status;
}

static void session_open(struct sessions *sessions, size_t socket, const struct wire_header *greeting,
                         uint32_t peer)
{
    struct session *session = &sessions->table[greeting->source];
    session->is_live = session->was_live = true;
    session->socket = socket;
    session->peer = peer;
    session->incarnation = greeting->incarnation;
    outgoing_open(sessions->outgoing, greeting->source, sessions->endpoints[socket], peer,
                  sessions->common->config.outbox != NULL && !sessions->sockets[socket].is_far);
}

/* Sends a BYE, which may wait for room. */
static void session_say_bye(struct sessions *sessions, size_t socket, uint32_t peer, uint16_t destination,
                            const char *text)
{
    struct wire_header header = outgoing_header(sessions->outgoing, WIRE_BYE, destination);
    const size_t bytes = strlen(text);
    outgoing_send_bytes(sessions->outgoing, sessions->endpoints[socket], &header, peer, text,
                        bytes < WIRE_ERROR_TEXT_MAX ? bytes : WIRE_ERROR_TEXT_MAX, true);
}

static void sessions_ignore(struct sessions *sessions, size_t socket, uint32_t peer)
{
    sessions->strangers[sessions->stranger_next] = (struct stranger){socket, peer};
    sessions->stranger_next = (sessions->stranger_next + 1) % STRANGERS_MAX;
    if (sessions->stranger_count < STRANGERS_MAX)
        sessions->stranger_count++;
}

void sessions_close(struct sessions *sessions, uint16_t worker, const char *bye)
{
    struct session *session = &sessions->table[worker];
    session->is_live = false;
    if (sessions->sockets[session->socket].dialed >= 0)
        sessions->gone_count++;
    else
        sessions_ignore(sessions, session->socket, session->peer);
    if (bye != NULL)
        session_say_bye(sessions, session->socket, session->peer, worker, bye);
}

/* ---- questions ---- */

const char *sessions_job(const struct sessions *sessions, size_t *bytes)
{
    if (bytes != NULL)
        *bytes = sessions->job_bytes;
    return (const char *)sessions->welcome + WIRE_PROOF_BYTES;
}

uint16_t sessions_far_port(const struct sessions *sessions)
{
    for (size_t i = 0; i < sessions->bound_count; i++)
        if (sessions->sockets[i].is_far)
            return endpoint_port(sessions->endpoints[i]);
    return 0;
}

struct endpoint_counts sessions_strangers(const struct sessions *sessions)
{
    const struct endpoint_counts none = {0};
    return sessions->bound_count == 0 ? none : endpoint_counts(sessions->endpoints[0]);
}

struct endpoint *const *sessions_endpoints(const struct sessions *sessions, size_t *count)
{
    *count = sessions->socket_count;
    return sessions->endpoints;
}

static bool sessions_is_ignored(const struct sessions *sessions, size_t socket, uint32_t peer)
{
    for (unsigned i = 0; i < sessions->stranger_count; i++)
        if (sessions->strangers[i].peer == peer && sessions->strangers[i].socket == socket)
            return true;
    return false;
}

/* Routing ids are names within one socket. */
static bool session_is_of(const struct session *session, size_t socket, uint32_t peer)
{
    return session->is_live && session->peer == peer && session->socket == socket;
}

/* The worker whose session a message of this connection belongs to; -1: a stranger's. `source`: the worker
 * that the message names, which is looked at first. */
static int sessions_find(const struct sessions *sessions, size_t socket, uint32_t peer, uint16_t source)
{
    const uint32_t workers = sessions->common->config.workers;
    const int dialed = sessions->sockets[socket].dialed;
    if (dialed >= 0)
        return sessions->table[dialed].is_live ? dialed : -1;
    if (peer != 0 && source < workers && session_is_of(&sessions->table[source], socket, peer))
        return source;
    if (peer == 0 || sessions_is_ignored(sessions, socket, peer))
        return -1;
    for (uint32_t i = 0; i < workers; i++)
        if (session_is_of(&sessions->table[i], socket, peer))
            return (int)i;
    return -1;
}

const struct session *sessions_live(const struct sessions *sessions, uint16_t worker)
{
    const bool is_live = worker < sessions->common->config.workers && sessions->table[worker].is_live;
    return is_live ? &sessions->table[worker] : NULL;
}

bool sessions_is_far(const struct sessions *sessions, uint16_t worker)
{
    const struct session *session = sessions_live(sessions, worker);
    return session != NULL && worker != sessions->common->config.worker &&
           sessions->sockets[session->socket].is_far;
}

bool sessions_is_gone(const struct sessions *sessions, uint16_t worker)
{
    return worker < sessions->common->config.workers && sessions->table[worker].was_live &&
           !sessions->table[worker].is_live;
}

unsigned sessions_gone_count(const struct sessions *sessions)
{
    return sessions->gone_count;
}

/* ---- messages that arrive ---- */

/* Answers a stranger with BYE, once, and ignores it from then on. `source`: the worker that it says it is.
 * `why` NULL: no BYE. */
static void sessions_refuse(struct sessions *sessions, size_t socket, uint32_t peer, uint16_t source,
                            const char *why)
{
    sessions->common->counters.strangers++;
    if (sessions->sockets[socket].dialed >= 0 || peer == 0 || sessions_is_ignored(sessions, socket, peer))
        return;
    sessions_ignore(sessions, socket, peer);
    if (why != NULL)
        session_say_bye(sessions, socket, peer, source, why);
}

/* False: WELCOME could not be sent. */
static bool session_welcome(struct sessions *sessions, size_t socket, uint16_t worker, uint32_t peer,
                            const uint8_t nonce[WIRE_NONCE_BYTES])
{
    const struct rpc_config *config = &sessions->common->config;
    struct wire_header header = outgoing_header(sessions->outgoing, WIRE_WELCOME, worker);
    uint8_t encoded[WIRE_HEADER_BYTES];
    const size_t payload_bytes = WIRE_PROOF_BYTES + sessions->job_bytes;
    const struct greeting greeting = {.header = encoded,
                                      .nonce = nonce,
                                      .text = sessions->welcome + WIRE_PROOF_BYTES,
                                      .text_bytes = sessions->job_bytes};
    header.role = config->role;
    header.payload_bytes = (uint32_t)payload_bytes;
    wire_encode(&header, encoded);
    greeting_prove(&greeting, config->secret, sessions->welcome);
    return outgoing_send_bytes(sessions->outgoing, sessions->endpoints[socket], &header, peer,
                               sessions->welcome, payload_bytes, false);
}

/* Why a HELLO is refused, or NULL. */
static const char *hello_fault(const struct sessions *sessions, const struct wire_header *header,
                               bool is_proven)
{
    const struct rpc_config *config = &sessions->common->config;
    if (!is_proven)
        return "it does not prove the job's secret";
    if (header->generation != config->generation)
        return "the job has another generation";
    if (header->source >= config->workers || header->source == config->worker)
        return "no such worker in this job";
    if (header->source < config->worker)
        return "a worker dials only lower numbers: this worker's number is higher";
    if (header->role != config->roster[header->source])
        return "not the role of that worker in this job";
    if (header->destination != config->worker)
        return "this is another worker of the job";
    const struct session *session = &sessions->table[header->source];
    if (session->was_live && header->incarnation <= session->incarnation)
        return session->is_live ? "this incarnation of the worker is here already"
                                : "this incarnation of the worker has ended";
    return NULL;
}

/* The connection has no session. A worker says HELLO from the host whose key its connection has shown, or is
 * ignored. */
static enum received receive_from_stranger(struct sessions *sessions, size_t socket,
                                           const struct arrival *arrival)
{
    const struct rpc_config *config = &sessions->common->config;
    const struct wire_header *header = &arrival->header;
    const struct endpoint_message *frames = &arrival->frames;
    if (header->kind != WIRE_HELLO || sessions->sockets[socket].dialed >= 0 ||
        sessions_is_ignored(sessions, socket, frames->peer)) {
        sessions_refuse(sessions, socket, frames->peer, header->source,
                        header->kind == WIRE_BYE ? NULL : "expected HELLO first");
        return RECEIVED_DROPPED;
    }
    const struct greeting greeting = {.header = frames->header, .nonce = frames->payload};
    const bool is_proven = greeting_is_proven(&greeting, config->secret, frames->payload + WIRE_NONCE_BYTES);
    const char *fault = hello_fault(sessions, header, is_proven);
    if (fault != NULL) {
        sessions->common->counters.stale += is_proven && header->generation != config->generation;
        sessions_refuse(sessions, socket, frames->peer, header->source, fault);
        return RECEIVED_DROPPED;
    }
    const int host = endpoint_message_host(frames);
    if (host < 0 || config->host_of_worker[header->source] == host)
        return RECEIVED_HELLO;
    sessions->common->counters.strangers++;
    return RECEIVED_DROPPED;
}

/* HELLO and WELCOME may be repeated; from the wrong end of the session they are bad messages. */
static bool session_receive_again(struct sessions *sessions, uint16_t worker, const struct arrival *arrival)
{
    const struct session *session = &sessions->table[worker];
    const bool is_ours_to_welcome = sessions->sockets[session->socket].dialed < 0;
    const bool is_expected = arrival->header.kind == (is_ours_to_welcome ? WIRE_HELLO : WIRE_WELCOME) &&
                             arrival->header.role == sessions->common->config.roster[worker];
    if (is_expected && is_ours_to_welcome)
        session_welcome(sessions, session->socket, worker, session->peer, arrival->frames.payload);
    return is_expected;
}

/* HELLO has bound the connection to one worker and one incarnation. */
static enum received receive_in_session(struct sessions *sessions, uint16_t worker,
                                        const struct arrival *arrival, struct error *fault)
{
    const struct wire_header *header = &arrival->header;
    const char *text = NULL;
    if (header->generation != sessions->common->config.generation) {
        sessions->common->counters.stale++;
        return RECEIVED_DROPPED;
    }
    if (header->source != worker)
        text = "the source is not the connection's worker";
    else if (header->incarnation != sessions->table[worker].incarnation)
        text = "the incarnation is not the connection's";
    else if (header->destination != sessions->common->config.worker)
        text = "the destination is another worker";
    else if (header->kind != WIRE_HELLO && header->kind != WIRE_WELCOME)
        return RECEIVED_MESSAGE;
    else if (session_receive_again(sessions, worker, arrival))
        return RECEIVED_DROPPED;
    else
        text = "a greeting out of place";
    error_set(fault, STATUS_INVALID, "%s", text);
    return RECEIVED_FAULT;
}

/* Takes a message and decodes it. STATUS_INVALID, with the text in *fault: a bad one, of which only the
 * peer's name is left. STATUS_AGAIN: there is none. STATUS_IO. */
static enum status sessions_take(struct sessions *sessions, size_t socket, struct arrival *arrival,
                                 struct error *fault)
{
    struct endpoint_message *frames = &arrival->frames;
    enum status status = endpoint_receive(sessions->endpoints[socket], frames);
    if (status == STATUS_AGAIN)
        return status;
    if (status != STATUS_OK && status != STATUS_INVALID)
        return error_set(fault, STATUS_IO, "the socket failed");
    sessions->common->counters.received++;
    if (status == STATUS_INVALID)
        return error_set(fault, status, "a message that is not two frames within the limits");
    status =
        wire_decode(&arrival->header, frames->header, frames->header_bytes, frames->payload_bytes, fault);
    if (status != STATUS_OK)
        endpoint_release(frames);
    return status;
}

enum received sessions_receive(struct sessions *sessions, size_t socket, struct arrival *arrival,
                               uint16_t *worker, struct error *fault)
{
    const enum status status = sessions_take(sessions, socket, arrival, fault);
    if (status == STATUS_AGAIN || status == STATUS_IO)
        return status == STATUS_AGAIN ? RECEIVED_NOTHING : RECEIVED_FAILURE;
    const uint32_t peer = arrival->frames.peer;
    const uint16_t source = status == STATUS_OK ? arrival->header.source : 0;
    const int found = sessions_find(sessions, socket, peer, source);
    *worker = found >= 0 ? (uint16_t)found : source;
    if (status != STATUS_OK) {
        if (found < 0)
            sessions_refuse(sessions, socket, peer, 0, fault->text);
        return found < 0 ? RECEIVED_DROPPED : RECEIVED_FAULT;
    }
    const enum received received = found < 0 ? receive_from_stranger(sessions, socket, arrival)
                                             : receive_in_session(sessions, *worker, arrival, fault);
    if (received == RECEIVED_DROPPED || received == RECEIVED_FAULT)
        endpoint_release(&arrival->frames);
    return received;
}

bool sessions_accept(struct sessions *sessions, size_t socket, const struct arrival *hello)
{
    const uint32_t peer = hello->frames.peer;
    if (!session_welcome(sessions, socket, hello->header.source, peer, hello->frames.payload))
        return false;
    session_open(sessions, socket, &hello->header, peer);
    return true;
}

/* ---- dialing: HELLO to the workers of lower numbers, then their answers one after the other ---- */

static void dial_say_hello(struct sessions *sessions, size_t socket)
{
    const uint16_t worker = (uint16_t)sessions->sockets[socket].dialed;
    struct wire_header header = outgoing_header(sessions->outgoing, WIRE_HELLO, worker);
    uint8_t encoded[WIRE_HEADER_BYTES], payload[WIRE_HELLO_BYTES];
    const struct greeting greeting = {.header = encoded, .nonce = payload};
    header.role = sessions->common->config.role;
    header.payload_bytes = sizeof payload;
    wire_encode(&header, encoded);
    memcpy(payload, sessions->table[worker].nonce, WIRE_NONCE_BYTES);
    greeting_prove(&greeting, sessions->common->config.secret, payload + WIRE_NONCE_BYTES);
    outgoing_send_bytes(sessions->outgoing, sessions->endpoints[socket], &header, 0, payload, sizeof payload,
                        false);
}

/* Connects to a worker and says HELLO. */
static enum status dial_connect(struct sessions *sessions, const struct rpc_address *address,
                                struct error *error)
{
    const struct rpc_config *config = &sessions->common->config;
    struct endpoint *endpoint;
    struct wire_pass pass;
    struct error reason;
    enum status status;
    assert(address->worker < config->worker);
    greeting_make_pass(&pass, config->secret, address->worker);
    if (address->is_far)
        status = endpoint_connect_far(&endpoint, sessions_first(sessions), address->address, config->keys,
                                      address->host, &reason);
    else
        status = endpoint_connect(&endpoint, sessions_first(sessions), address->address, &pass, &reason);
    if (status != STATUS_OK)
        return error_set(error, status, "worker %u: %s", address->worker, reason.text);
    sessions_add_socket(sessions, endpoint, address->worker, address->is_far);
    randombytes_buf(sessions->table[address->worker].nonce, WIRE_NONCE_BYTES);
    dial_say_hello(sessions, sessions->socket_count - 1);
    return STATUS_OK;
}

static enum status dial_receive_welcome(struct sessions *sessions, size_t socket,
                                        const struct arrival *arrival, struct error *error)
{
    const struct rpc_config *config = &sessions->common->config;
    const uint16_t worker = (uint16_t)sessions->sockets[socket].dialed;
    const struct wire_header *header = &arrival->header;
    const struct endpoint_message *frames = &arrival->frames;
    const struct greeting greeting = {.header = frames->header,
                                      .nonce = sessions->table[worker].nonce,
                                      .text = frames->payload + WIRE_PROOF_BYTES,
                                      .text_bytes = frames->payload_bytes - WIRE_PROOF_BYTES};
    if (!greeting_is_proven(&greeting, config->secret, frames->payload)) {
        sessions->common->counters.strangers++;
        return error_set(error, STATUS_PERMISSION, "its WELCOME does not prove the job's secret");
    }
    if (header->generation != config->generation || header->source != worker ||
        header->destination != config->worker || header->role != config->roster[worker]) {
        sessions->common->counters.stale++;
        return STATUS_OK;
    }
    /* The first dialed worker's job, unless the configuration has one. */
    if (config->welcome_bytes == 0 && socket == sessions->bound_count &&
        sessions_keep_job(sessions, greeting.text, greeting.text_bytes) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the text of WELCOME");
    session_open(sessions, socket, header, 0);
    return STATUS_OK;
}

/* The answer to HELLO: WELCOME, or BYE with a reason. STATUS_AGAIN: there is none yet. */
static enum status dial_receive(struct sessions *sessions, size_t socket, struct error *error)
{
    struct arrival arrival;
    const struct endpoint_message *frames = &arrival.frames;
    enum status status = sessions_take(sessions, socket, &arrival, error);
    sessions->common->counters.bad += status == STATUS_INVALID;
    if (status != STATUS_OK)
        return status;
    if (arrival.header.kind == WIRE_BYE) {
        char text[WIRE_ERROR_TEXT_MAX + 1];
        rules_copy_text(text, sizeof text, frames->payload, frames->payload_bytes);
        status = error_set(error, STATUS_PERMISSION, "%s", text);
    } else if (arrival.header.kind == WIRE_WELCOME) {
        status = dial_receive_welcome(sessions, socket, &arrival, error);
    } else {
        sessions->common->counters.stale++;
    }
    endpoint_release(&arrival.frames);
    return status;
}

static bool dial_is_awaited(const struct sessions *sessions, size_t socket)
{
    const int dialed = sessions->sockets[socket].dialed;
    return dialed >= 0 && !sessions->table[dialed].was_live;
}

/* Waits for a worker's WELCOME. HELLO is repeated, since a server may come up after this worker. No other
 * message may be repeated. A worker that has sent WELCOME may call at once: while the others are waited for,
 * its calls wait in the socket for the first turn. */
static enum status dial_await(struct sessions *sessions, size_t socket, const struct rpc_address *address,
                              struct monotime deadline, struct error *error)
{
    struct monotime now = monotime_now(), next_hello = monotime_add_us(now, HELLO_EVERY_US);
    for (; dial_is_awaited(sessions, socket); now = monotime_now()) {
        bool readable;
        struct error reason;
        if (!monotime_before(now, deadline))
            return error_set(error, STATUS_TIMEOUT, "worker %u (%s): no answer to HELLO", address->worker,
                             address->address);
        if (!monotime_before(now, next_hello)) {
            dial_say_hello(sessions, socket);
            next_hello = monotime_add_us(now, HELLO_EVERY_US);
        }
        enum status status = dial_receive(sessions, socket, &reason);
        if (status == STATUS_AGAIN)
            status = endpoint_wait(&sessions->endpoints[socket], 1, NULL, 0, false,
                                   monotime_earliest(deadline, next_hello), &readable) == STATUS_OK
                         ? STATUS_OK
                         : error_set(&reason, STATUS_IO, "the socket failed");
        if (status != STATUS_OK)
            return error_set(error, status, "worker %u (%s): %s", address->worker, address->address,
                             reason.text);
    }
    return STATUS_OK;
}

/* Sends BYE to every worker that HELLO was sent to, also when its WELCOME is still under way. */
static void dial_withdraw(struct sessions *sessions)
{
    for (size_t i = 0; i < sessions->socket_count; i++)
        if (dial_is_awaited(sessions, i))
            session_say_bye(sessions, i, 0, (uint16_t)sessions->sockets[i].dialed,
                            "this worker could not join all of its peers");
}

enum status sessions_dial(struct sessions *sessions, const struct rpc_address *addresses, size_t count,
                          struct monotime deadline, struct error *error)
{
    const size_t first = sessions->bound_count;
    assert(count <= RPC_DIALED_MAX && sessions->socket_count == first);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = dial_connect(sessions, &addresses[i], error);
    const enum profile_kind before = profile_enter(PROFILE_WAITING);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = dial_await(sessions, first + i, &addresses[i], deadline, error);
    profile_leave(before);
    if (status != STATUS_OK)
        dial_withdraw(sessions);
    return status;
}
