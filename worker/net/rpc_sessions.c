/* The table of sessions, sockets, greetings and dialing; building, sending and holding messages. Thread: the
 * owner of the rpc. */
#include "worker/net/rpc_sessions.h"

#include "kernels/base/profile.h"
#include "worker/net/proof.h"

#include <assert.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)ENDPOINT_SET_MAX >= 2 + RPC_DIALED_MAX, "two bound sockets and all dialed ones");

enum { HELLO_EVERY_US = 250000, FLUSH_EVERY_US = 1000 };

/* A body that leaves. */
struct leaving_body {
    struct wire_header header; /* of the next piece */
    bool has_piece;
    struct endpoint_message piece; /* the next one, when it has been built */
    uint8_t *bytes; /* the rest of the body, from `first` on. NULL: they are the caller's still */
    uint32_t first;
};

struct held {
    struct held *next;
    struct endpoint *way; /* of a farewell */
    bool is_answer;       /* else a request */
    struct endpoint_message frames;
    struct leaving_body *leaving; /* leaves ahead of the frames; or NULL */
};

struct held_queue {
    struct held *first, *last;
    uint32_t count;
};

struct held_count {
    uint32_t messages;
    size_t bytes; /* of their payloads */
};

struct session {
    bool is_live, was_live;
    bool lends;                      /* large tensors in the outbox are lent */
    bool is_lost;                    /* a send has found the peer gone */
    size_t socket;                   /* of a session that is or was live */
    struct endpoint *way;            /* that socket; NULL: the session with this worker itself */
    uint32_t peer;                   /* as in struct endpoint_message */
    uint32_t incarnation;            /* the peer's */
    uint8_t nonce[WIRE_NONCE_BYTES]; /* of this worker's HELLO */
    struct held_queue held;
    struct held_count requests, answers; /* that are held */
    size_t body_bytes;                   /* of the bodies among both */
};

struct session_socket {
    int dialed;  /* the worker that it is for; -1: a bound one, which tells its connections apart by `peer` */
    bool is_far; /* to other hosts, with keys: nothing is lent through it */
};

/* A connection of a bound socket that this worker has ended and ignores. */
struct stranger {
    size_t socket;
    uint32_t peer;
};

struct sessions {
    const struct rpc_config *config;
    struct rpc_counters *counters;
    struct session *table;                           /* (workers) */
    struct session_socket sockets[ENDPOINT_SET_MAX]; /* the bound ones first: this host's, the other hosts' */
    struct endpoint *endpoints[ENDPOINT_SET_MAX];    /* theirs */
    size_t socket_count, bound_count;
    unsigned gone_count; /* sessions that this worker dialed and that have ended */
    unsigned lost_count; /* sessions that are lost */
    uint8_t *welcome;    /* WELCOME's payload: room for the proof, the job's text, a terminating zero */
    size_t job_bytes;    /* of the job's text */
    struct stranger strangers[STRANGERS_MAX];
    unsigned stranger_count, stranger_next;
    struct held_queue farewells;
    struct held_queue own;  /* to this worker itself */
    struct held *spare;     /* for messages that will wait: one for each worker, and those given back */
    uint32_t requests_held; /* of all sessions */
    uint32_t held_total;    /* messages that wait to leave, farewells included */
};

static const struct rpc_message no_value;

/* ---- messages that wait, and queues of them ---- */

/* Moves the frames into an object. NULL: no memory. */
static struct held *held_take(struct sessions *sessions, struct endpoint_message *frames)
{
    struct held *held = sessions->spare;
    if (held != NULL)
        sessions->spare = held->next;
    else
        held = malloc(sizeof *held);
    if (held == NULL)
        return NULL;
    *held = (struct held){0};
    endpoint_move(&held->frames, frames);
    return held;
}

/* Its frames have been sent, moved or released. */
static void held_give_back(struct sessions *sessions, struct held *held)
{
    if (held->leaving != NULL) {
        if (held->leaving->has_piece)
            endpoint_release(&held->leaving->piece);
        free(held->leaving->bytes);
        free(held->leaving);
    }
    held->next = sessions->spare;
    sessions->spare = held;
}

static void queue_push(struct held_queue *queue, struct held *held)
{
    held->next = NULL;
    *(queue->first == NULL ? &queue->first : &queue->last->next) = held;
    queue->last = held;
    queue->count++;
}

static struct held *queue_pop(struct held_queue *queue)
{
    struct held *first = queue->first;
    queue->first = first->next;
    queue->count--;
    return first;
}

static void queue_drop(struct sessions *sessions, struct held_queue *queue)
{
    while (queue->first != NULL) {
        struct held *first = queue_pop(queue);
        endpoint_release(&first->frames);
        held_give_back(sessions, first);
    }
}

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

void sessions_free(struct sessions *sessions, int linger_ms)
{
    if (sessions == NULL)
        return;
    queue_drop(sessions, &sessions->own);
    queue_drop(sessions, &sessions->farewells);
    for (uint32_t i = 0; sessions->table != NULL && i < sessions->config->workers; i++)
        queue_drop(sessions, &sessions->table[i].held);
    while (sessions->spare != NULL) {
        struct held *next = sessions->spare->next;
        free(sessions->spare);
        sessions->spare = next;
    }
    while (sessions->socket_count > 0)
        endpoint_free(sessions->endpoints[--sessions->socket_count], linger_ms);
    free(sessions->table);
    free(sessions->welcome);
    free(sessions);
}

static void sessions_add_socket(struct sessions *sessions, struct endpoint *endpoint, int dialed, bool is_far)
{
    sessions->sockets[sessions->socket_count] = (struct session_socket){dialed, is_far};
    sessions->endpoints[sessions->socket_count++] = endpoint;
    sessions->bound_count += dialed < 0;
}

static enum status sessions_bind_one(struct sessions *sessions, const char *address,
                                     const struct endpoint_credentials *asked, struct error *error)
{
    struct endpoint *endpoint;
    if (address == NULL)
        return STATUS_OK;
    const enum status status =
        endpoint_bind(&endpoint, sessions->endpoints[0], address, asked, sessions->config->workers, error);
    if (status == STATUS_OK)
        sessions_add_socket(sessions, endpoint, -1, asked->pass == NULL);
    return status;
}

static enum status sessions_bind(struct sessions *sessions, const char *address, struct error *error)
{
    const struct rpc_config *config = sessions->config;
    struct wire_pass pass;
    proof_make_pass(&pass, config->secret, config->worker);
    const struct endpoint_credentials near = {.pass = &pass}, far = {.keys = config->keys};
    const enum status status = sessions_bind_one(sessions, address, &near, error);
    return status == STATUS_OK ? sessions_bind_one(sessions, config->far_address, &far, error) : status;
}

/* All memory that the sessions begin with. False: there is none. */
static bool sessions_allocate(struct sessions *sessions)
{
    const struct rpc_config *config = sessions->config;
    sessions->table = calloc(config->workers, sizeof *sessions->table);
    if (sessions->table == NULL)
        return false;
    for (uint32_t i = 0; i < config->workers; i++) {
        struct held *held = calloc(1, sizeof *held);
        if (held == NULL)
            return false;
        held->next = sessions->spare;
        sessions->spare = held;
    }
    return sessions_keep_job(sessions, config->welcome, config->welcome_bytes) == STATUS_OK;
}

enum status sessions_open(struct sessions **out, const struct rpc_config *config,
                          struct rpc_counters *counters, const char *address, struct error *error)
{
    struct sessions *sessions = *out = calloc(1, sizeof *sessions);
    if (sessions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for connections");
    sessions->config = config;
    sessions->counters = counters;
    if (!sessions_allocate(sessions))
        return error_set(error, STATUS_NO_MEMORY, "no memory for connections");
    sessions->table[config->worker] = (struct session){.is_live = true,
                                                       .was_live = true,
                                                       .lends = true,
                                                       .incarnation = config->incarnation,
                                                       .socket = SIZE_MAX};
    return sessions_bind(sessions, address, error);
}

static void session_open(struct sessions *sessions, size_t socket, const struct wire_header *greeting,
                         uint32_t peer)
{
    sessions->table[greeting->source] =
        (struct session){.is_live = true,
                         .was_live = true,
                         .lends = sessions->config->outbox != NULL && !sessions->sockets[socket].is_far,
                         .socket = socket,
                         .way = sessions->endpoints[socket],
                         .peer = peer,
                         .incarnation = greeting->incarnation};
}

/* ---- the messages that a session holds ---- */

static bool session_is_own(const struct session *session)
{
    return session->way == NULL;
}

static void session_lose(struct sessions *sessions, struct session *session)
{
    assert(!session_is_own(session));
    sessions->lost_count += !session->is_lost;
    session->is_lost = true;
}

void sessions_lose(struct sessions *sessions, uint16_t worker)
{
    session_lose(sessions, &sessions->table[worker]);
}

int sessions_find_lost(const struct sessions *sessions)
{
    for (unsigned i = 0; sessions->lost_count > 0 && i < sessions->config->workers; i++)
        if (sessions->table[i].is_lost)
            return (int)i;
    return -1;
}

bool sessions_lends(const struct sessions *sessions, uint16_t worker)
{
    return sessions->table[worker].lends;
}

bool sessions_is_unread(const struct sessions *sessions, uint16_t worker)
{
    const struct held_count *answers = &sessions->table[worker].answers;
    return answers->messages > REPLIES_HELD_MAX || answers->bytes > HELD_BYTES_MAX;
}

static size_t held_body_bytes(const struct held *held)
{
    return held->leaving != NULL && held->leaving->bytes != NULL ? held->leaving->header.body_bytes : 0;
}

/* Requests and answers have bounds of their own. */
static void session_push(struct sessions *sessions, struct session *session, struct held *held)
{
    struct held_count *count = held->is_answer ? &session->answers : &session->requests;
    if (session_is_own(session)) {
        queue_push(&sessions->own, held);
        sessions->counters->sent++;
        return;
    }
    count->messages++;
    count->bytes += held->frames.payload_bytes;
    session->body_bytes += held_body_bytes(held);
    sessions->requests_held += !held->is_answer;
    sessions->held_total++;
    queue_push(&session->held, held);
}

static struct held *session_pop(struct sessions *sessions, struct session *session)
{
    struct held *held = queue_pop(&session->held);
    struct held_count *count = held->is_answer ? &session->answers : &session->requests;
    count->messages--;
    count->bytes -= held->frames.payload_bytes;
    session->body_bytes -= held_body_bytes(held);
    sessions->requests_held -= !held->is_answer;
    sessions->held_total--;
    return held;
}

/* Counts requests that wait for other workers, and all that waits for this one. Requests of calls that are
 * complete count too. */
static bool session_has_room(const struct sessions *sessions, const struct session *session,
                             uint32_t body_bytes)
{
    return sessions->requests_held + sessions->own.count < sessions->config->pending_max &&
           session->requests.bytes < HELD_BYTES_MAX && body_bytes <= RPC_BODY_BYTES_MAX - session->body_bytes;
}

/* STATUS_AGAIN: the message must be held. STATUS_NOT_FOUND: the session is lost, and earlier messages may be.
 */
static enum status session_try(struct sessions *sessions, const struct session *session,
                               struct endpoint_message *out)
{
    if (session->is_lost)
        return STATUS_NOT_FOUND;
    if (session_is_own(session) || session->held.count > 0)
        return STATUS_AGAIN;
    enum status status = endpoint_send(session->way, out);
    sessions->counters->sent += status == STATUS_OK;
    return status;
}

/* ---- building ---- */

/* Completes a header with what all messages of this worker have in common, and encodes it. */
static void message_encode(const struct sessions *sessions, struct wire_header *header,
                           uint8_t encoded[WIRE_HEADER_BYTES])
{
    const struct rpc_config *config = sessions->config;
    header->source = config->worker;
    header->incarnation = config->incarnation;
    header->generation = config->generation;
    wire_encode(header, encoded);
}

static enum status build_frames(const struct sessions *sessions, struct wire_header *header, uint32_t peer,
                                size_t tail_bytes, struct endpoint_message *out)
{
    uint8_t encoded[WIRE_HEADER_BYTES];
    message_encode(sessions, header, encoded);
    return endpoint_prepare(out, peer, encoded, sizeof encoded, header->payload_bytes + tail_bytes);
}

/* The message of `header` with `value`, or with `text` when that is not NULL. STATUS_INVALID: `value` is over
 * the limits, *error says which; STATUS_NO_MEMORY. */
static enum status build(const struct sessions *sessions, const struct session *session,
                         struct wire_header *header, const struct rpc_message *value, const char *text,
                         struct endpoint_message *out, struct error *error)
{
    const bool is_own = session_is_own(session);
    if (text != NULL)
        header->payload_bytes = (uint32_t)strlen(text);
    else if (message_describe(header, value, is_own, session->lends ? sessions->config->outbox : NULL,
                              error) != STATUS_OK)
        return STATUS_INVALID;
    enum status status = build_frames(sessions, header, session->peer, is_own ? OWN_TAIL_BYTES : 0, out);
    if (status != STATUS_OK)
        return status;
    if (text != NULL)
        memcpy(out->payload, text, header->payload_bytes);
    else
        message_gather(header, value, 0, header->payload_bytes, out->payload);
    if (is_own)
        message_add_own_tail(header, value, out->payload + header->payload_bytes);
    return STATUS_OK;
}

/* ---- pieces ---- */

/* Builds the next piece, of the bytes that were kept, or of the caller's. */
static enum status piece_build(const struct sessions *sessions, const struct session *session,
                               struct leaving_body *leaving, const struct wire_header *whole,
                               const struct rpc_message *value)
{
    struct wire_header *header = &leaving->header;
    const uint64_t offset = header->args[PIECE_OFFSET], left_bytes = header->body_bytes - offset;
    header->payload_bytes =
        left_bytes < WIRE_PAYLOAD_BYTES_MAX ? (uint32_t)left_bytes : WIRE_PAYLOAD_BYTES_MAX;
    enum status status = build_frames(sessions, header, session->peer, 0, &leaving->piece);
    if (status != STATUS_OK)
        return status;
    leaving->has_piece = true;
    if (leaving->bytes != NULL)
        memcpy(leaving->piece.payload, leaving->bytes + (offset - leaving->first), header->payload_bytes);
    else
        message_gather(whole, value, offset, header->payload_bytes, leaving->piece.payload);
    return STATUS_OK;
}

/* Sends pieces as long as there is room. STATUS_AGAIN: some are left, and the next one is built. `whole` and
 * `value`: the message, while the bytes are the caller's. */
static enum status pieces_send(struct sessions *sessions, const struct session *session,
                               struct leaving_body *leaving, const struct wire_header *whole,
                               const struct rpc_message *value)
{
    uint64_t *offset = &leaving->header.args[PIECE_OFFSET];
    while (*offset < leaving->header.body_bytes) {
        enum status status =
            leaving->has_piece ? STATUS_OK : piece_build(sessions, session, leaving, whole, value);
        if (status == STATUS_OK)
            status = value == NULL ? endpoint_send(session->way, &leaving->piece)
                                   : session_try(sessions, session, &leaving->piece);
        if (status != STATUS_OK)
            return status;
        sessions->counters->sent += value == NULL;
        leaving->has_piece = false;
        *offset += leaving->header.payload_bytes;
    }
    return STATUS_OK;
}

/* Sends the first pieces, and keeps the bytes of those behind the next one. STATUS_AGAIN: pieces
 * remain. STATUS_NO_MEMORY: some may have been sent. */
static enum status pieces_begin(struct sessions *sessions, const struct session *session, struct held *held,
                                const struct wire_header *whole, const struct rpc_message *value)
{
    struct leaving_body *leaving = held->leaving = calloc(1, sizeof *leaving);
    if (leaving == NULL)
        return STATUS_NO_MEMORY;
    leaving->header = (struct wire_header){.kind = WIRE_PIECE,
                                           .destination = whole->destination,
                                           .request = whole->request,
                                           .body_bytes = whole->body_bytes,
                                           .args[PIECE_KIND] = whole->kind};
    const enum status status = pieces_send(sessions, session, leaving, whole, value);
    if (status != STATUS_AGAIN)
        return status;
    leaving->first = (uint32_t)leaving->header.args[PIECE_OFFSET] + leaving->header.payload_bytes;
    const size_t left_bytes = whole->body_bytes - leaving->first;
    leaving->bytes = malloc(left_bytes + 1); /* the next piece may be the last */
    if (leaving->bytes == NULL)
        return STATUS_NO_MEMORY;
    message_gather(whole, value, leaving->first, left_bytes, leaving->bytes);
    return STATUS_AGAIN;
}

/* ---- sending ---- */

/* Sends or holds a built message; takes it over on STATUS_OK. A message with a body may have to be held after
 * its first piece has left, so the object for holding it is taken first. STATUS_BUSY: no object, or a request
 * finds no room. */
static enum status session_send(struct sessions *sessions, struct session *session,
                                const struct wire_header *header, const struct rpc_message *value,
                                struct endpoint_message *out)
{
    const bool is_answer = header->kind == WIRE_REPLY, has_body = header->body_bytes != 0;
    struct held *held = NULL;
    enum status status = has_body ? STATUS_AGAIN : session_try(sessions, session, out);
    if (status != STATUS_AGAIN)
        return status;
    if (is_answer || session_has_room(sessions, session, header->body_bytes))
        held = held_take(sessions, out);
    if (held == NULL)
        return STATUS_BUSY;
    held->is_answer = is_answer;
    if (has_body)
        status = pieces_begin(sessions, session, held, header, value);
    if (status == STATUS_OK)
        status = session_try(sessions, session, &held->frames);
    if (status == STATUS_AGAIN) {
        session_push(sessions, session, held);
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        endpoint_move(out, &held->frames);
    held_give_back(sessions, held);
    return status;
}

enum status sessions_send_request(struct sessions *sessions, struct wire_header *header,
                                  const struct rpc_message *message, struct error *error)
{
    struct session *session = &sessions->table[header->destination];
    struct endpoint_message out;
    struct error limit;
    if (message == NULL)
        message = &no_value;
    enum status status = build(sessions, session, header, message, NULL, &out, &limit);
    if (status == STATUS_INVALID)
        return error_set(error, status, "a request to worker %u cannot be sent: %s", header->destination,
                         limit.text);
    if (status != STATUS_OK)
        return error_set(error, status, "no memory for a request to worker %u", header->destination);
    status = session_send(sessions, session, header, message, &out);
    if (status == STATUS_OK)
        return STATUS_OK;
    endpoint_release(&out);
    if (status == STATUS_BUSY)
        return error_set(error, status, "no room for a request to worker %u: too many requests or bytes wait",
                         header->destination);
    session_lose(sessions, session);
    return error_set(error, STATUS_NOT_FOUND,
                     status == STATUS_NO_MEMORY ? "no memory to send to worker %u: its session is lost"
                                                : "worker %u is gone",
                     header->destination);
}

/* An answer over the limits becomes a failure and not an assertion, since the caller may have chosen its
 * size. */
static enum status answer_build(const struct sessions *sessions, const struct session *session,
                                struct wire_header *header, const struct rpc_message *value, const char *text,
                                struct endpoint_message *out)
{
    struct wire_header failure = *header;
    struct error limit;
    char why[WIRE_ERROR_TEXT_MAX + 1];
    enum status status = build(sessions, session, header, value, text, out, &limit);
    if (status == STATUS_INVALID) {
        snprintf(why, sizeof why, "an answer of worker %u cannot be sent: %.350s", sessions->config->worker,
                 limit.text);
    } else if (status == STATUS_OK && header->body_bytes > RPC_BODY_BYTES_MAX - session->body_bytes) {
        endpoint_release(out);
        status = STATUS_BUSY;
        snprintf(why, sizeof why, "too many bytes of answers wait already");
    } else {
        return status;
    }
    failure.status = (uint8_t)status;
    *header = failure;
    return build(sessions, session, header, &no_value, why, out, NULL);
}

enum status sessions_send_answer(struct sessions *sessions, struct wire_header *header,
                                 const struct rpc_message *value, const char *text)
{
    struct session *session = &sessions->table[header->destination];
    struct endpoint_message out;
    if (value == NULL)
        value = &no_value;
    enum status status = answer_build(sessions, session, header, value, text, &out);
    if (status == STATUS_OK) {
        status = session_send(sessions, session, header, value, &out);
        if (status != STATUS_OK)
            endpoint_release(&out);
    }
    if (status != STATUS_OK && session_is_own(session))
        return STATUS_NO_MEMORY;
    if (status != STATUS_OK)
        session_lose(sessions, session);
    return STATUS_OK;
}

/* Sends a message of bytes outside of a session. If it cannot leave at once it waits as a farewell (`hold`),
 * or is dropped: false. */
static bool send_bytes(struct sessions *sessions, size_t socket, struct wire_header *header, uint32_t peer,
                       const void *bytes, size_t count, bool hold)
{
    struct endpoint *way = sessions->endpoints[socket];
    struct endpoint_message message;
    struct held *held = NULL;
    header->payload_bytes = (uint32_t)count;
    if (build_frames(sessions, header, peer, 0, &message) != STATUS_OK)
        return false;
    if (count > 0)
        memcpy(message.payload, bytes, count);
    enum status status = endpoint_send(way, &message);
    sessions->counters->sent += status == STATUS_OK;
    if (status == STATUS_OK)
        return true;
    if (status == STATUS_AGAIN && hold && sessions->farewells.count < FAREWELLS_MAX)
        held = held_take(sessions, &message);
    if (held == NULL) {
        endpoint_release(&message);
        return false;
    }
    held->way = way;
    queue_push(&sessions->farewells, held);
    sessions->held_total++;
    return true;
}

/* ---- what waits ---- */

/* Sends a session's held messages, until there are none or the peer's queue is full. */
static void session_flush(struct sessions *sessions, struct session *session)
{
    while (session->held.first != NULL && !session->is_lost) {
        struct held *held = session->held.first;
        enum status status = STATUS_OK;
        if (held->leaving != NULL)
            status = pieces_send(sessions, session, held->leaving, NULL, NULL);
        if (status == STATUS_OK)
            status = endpoint_send(session->way, &held->frames);
        if (status == STATUS_AGAIN)
            return;
        session_pop(sessions, session);
        sessions->counters->sent += status == STATUS_OK;
        if (status != STATUS_OK) {
            endpoint_release(&held->frames);
            session_lose(sessions, session);
        }
        held_give_back(sessions, held);
    }
}

/* A farewell that cannot leave yet is put behind the others, so that one full queue does not delay them. */
static void farewells_flush(struct sessions *sessions)
{
    for (uint32_t left = sessions->farewells.count; left > 0; left--) {
        struct held *first = queue_pop(&sessions->farewells);
        enum status status = endpoint_send(first->way, &first->frames);
        if (status == STATUS_AGAIN) {
            queue_push(&sessions->farewells, first);
            continue;
        }
        sessions->counters->sent += status == STATUS_OK;
        sessions->held_total--;
        if (status != STATUS_OK)
            endpoint_release(&first->frames);
        held_give_back(sessions, first);
    }
}

void sessions_flush(struct sessions *sessions)
{
    if (sessions->held_total == 0)
        return;
    for (uint32_t i = 0; i < sessions->config->workers; i++)
        session_flush(sessions, &sessions->table[i]);
    farewells_flush(sessions);
}

enum status sessions_wait(struct sessions *sessions, struct endpoint_watch *watches, size_t count,
                          struct monotime until)
{
    bool readable;
    return endpoint_wait(sessions->endpoints, sessions->socket_count, watches, count,
                         sessions->held_total > 0, until, &readable);
}

/* Moves held messages into ZeroMQ's queues until the deadline. ZeroMQ sends them while its sockets linger. */
void sessions_flush_until(struct sessions *sessions, struct monotime deadline)
{
    sessions_flush(sessions);
    while (sessions->held_total > 0 && monotime_before(monotime_now(), deadline)) {
        struct monotime soon = monotime_earliest(deadline, monotime_add_us(monotime_now(), FLUSH_EVERY_US));
        struct endpoint_message message;
        for (size_t i = 0; i < sessions->socket_count; i++)
            while (endpoint_receive(sessions->endpoints[i], &message) == STATUS_OK)
                endpoint_release(&message);
        if (sessions_wait(sessions, NULL, 0, soon) != STATUS_OK)
            return;
        sessions_flush(sessions);
    }
}

bool sessions_take_own(struct sessions *sessions, struct endpoint_message *out)
{
    if (sessions->own.first == NULL)
        return false;
    struct held *first = queue_pop(&sessions->own);
    endpoint_move(out, &first->frames);
    held_give_back(sessions, first);
    return true;
}

/* ---- the end of a session ---- */

/* Sends a BYE, which may wait for room. */
static void session_say_bye(struct sessions *sessions, size_t socket, uint32_t peer, uint16_t destination,
                            const char *text)
{
    struct wire_header header = {.kind = WIRE_BYE, .destination = destination};
    const size_t bytes = strlen(text);
    send_bytes(sessions, socket, &header, peer, text,
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
    while (session->held.first != NULL) {
        struct held *held = session_pop(sessions, session);
        endpoint_release(&held->frames);
        held_give_back(sessions, held);
    }
    sessions->lost_count -= session->is_lost;
    session->is_lost = session->is_live = false;
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

size_t sessions_socket_count(const struct sessions *sessions)
{
    return sessions->socket_count;
}

static bool sessions_is_ignored(const struct sessions *sessions, size_t socket, uint32_t peer)
{
    for (unsigned i = 0; i < sessions->stranger_count; i++)
        if (sessions->strangers[i].peer == peer && sessions->strangers[i].socket == socket)
            return true;
    return false;
}

/* A routing id names a peer within one socket, so both must match. */
static bool session_is_of(const struct session *session, size_t socket, uint32_t peer)
{
    return session->is_live && session->peer == peer && session->socket == socket;
}

/* The worker whose session a message of this connection belongs to; -1: a stranger's. `source`: the worker
 * that the message names, which is looked at first. */
static int sessions_find(const struct sessions *sessions, size_t socket, uint32_t peer, uint16_t source)
{
    const uint32_t workers = sessions->config->workers;
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

bool sessions_is_live(const struct sessions *sessions, uint16_t worker, uint32_t incarnation_max)
{
    return worker < sessions->config->workers && sessions->table[worker].is_live &&
           sessions->table[worker].incarnation <= incarnation_max;
}

bool sessions_is_far(const struct sessions *sessions, uint16_t worker)
{
    return sessions_is_live(sessions, worker, UINT32_MAX) && worker != sessions->config->worker &&
           sessions->sockets[sessions->table[worker].socket].is_far;
}

bool sessions_is_gone(const struct sessions *sessions, uint16_t worker)
{
    return worker < sessions->config->workers && sessions->table[worker].was_live &&
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
    sessions->counters->strangers++;
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
    const struct rpc_config *config = sessions->config;
    struct wire_header header = {.kind = WIRE_WELCOME, .destination = worker};
    uint8_t encoded[WIRE_HEADER_BYTES];
    const size_t payload_bytes = WIRE_PROOF_BYTES + sessions->job_bytes;
    const struct proof_subject greeting = {.header = encoded,
                                           .nonce = nonce,
                                           .text = sessions->welcome + WIRE_PROOF_BYTES,
                                           .text_bytes = sessions->job_bytes};
    header.role = config->role;
    header.payload_bytes = (uint32_t)payload_bytes;
    message_encode(sessions, &header, encoded);
    proof_make(&greeting, config->secret, sessions->welcome);
    return send_bytes(sessions, socket, &header, peer, sessions->welcome, payload_bytes, false);
}

/* Why a HELLO is refused, or NULL. */
static const char *hello_fault(const struct sessions *sessions, const struct wire_header *header,
                               bool is_proven)
{
    const struct rpc_config *config = sessions->config;
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

/* Handles a message of a connection without a session. A HELLO counts only from the host of the worker that
 * it names. */
static enum received receive_from_stranger(struct sessions *sessions, size_t socket,
                                           const struct arrival *arrival)
{
    const struct rpc_config *config = sessions->config;
    const struct wire_header *header = &arrival->header;
    const struct endpoint_message *frames = &arrival->frames;
    if (header->kind != WIRE_HELLO || sessions->sockets[socket].dialed >= 0 ||
        sessions_is_ignored(sessions, socket, frames->peer)) {
        sessions_refuse(sessions, socket, frames->peer, header->source,
                        header->kind == WIRE_BYE ? NULL : "expected HELLO first");
        return RECEIVED_DROPPED;
    }
    const struct proof_subject greeting = {.header = frames->header, .nonce = frames->payload};
    const bool is_proven = proof_is_good(&greeting, config->secret, frames->payload + WIRE_NONCE_BYTES);
    const char *fault = hello_fault(sessions, header, is_proven);
    if (fault != NULL) {
        sessions->counters->stale += is_proven && header->generation != config->generation;
        sessions_refuse(sessions, socket, frames->peer, header->source, fault);
        return RECEIVED_DROPPED;
    }
    const int host = endpoint_message_host(frames);
    if (host < 0 || config->host_of_worker[header->source] == host)
        return RECEIVED_HELLO;
    sessions->counters->strangers++;
    return RECEIVED_DROPPED;
}

/* HELLO and WELCOME may be repeated; from the wrong end of the session they are bad messages. */
static bool session_receive_again(struct sessions *sessions, uint16_t worker, const struct arrival *arrival)
{
    const struct session *session = &sessions->table[worker];
    const bool is_ours_to_welcome = sessions->sockets[session->socket].dialed < 0;
    const bool is_expected = arrival->header.kind == (is_ours_to_welcome ? WIRE_HELLO : WIRE_WELCOME) &&
                             arrival->header.role == sessions->config->roster[worker];
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
    if (header->generation != sessions->config->generation) {
        sessions->counters->stale++;
        return RECEIVED_DROPPED;
    }
    if (header->source != worker)
        text = "the source is not the connection's worker";
    else if (header->incarnation != sessions->table[worker].incarnation)
        text = "the incarnation is not the connection's";
    else if (header->destination != sessions->config->worker)
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

/* Takes a message and decodes it. STATUS_INVALID, with the text in *fault: a bad message; only its
 * `peer` is set. STATUS_AGAIN: there is none. STATUS_IO. */
static enum status sessions_take(struct sessions *sessions, size_t socket, struct arrival *arrival,
                                 struct error *fault)
{
    struct endpoint_message *frames = &arrival->frames;
    enum status status = endpoint_receive(sessions->endpoints[socket], frames);
    if (status == STATUS_AGAIN)
        return status;
    if (status != STATUS_OK && status != STATUS_INVALID)
        return error_set(fault, STATUS_IO, "the socket failed");
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
    struct wire_header header = {.kind = WIRE_HELLO, .destination = worker};
    uint8_t encoded[WIRE_HEADER_BYTES], payload[WIRE_HELLO_BYTES];
    const struct proof_subject greeting = {.header = encoded, .nonce = payload};
    header.role = sessions->config->role;
    header.payload_bytes = sizeof payload;
    message_encode(sessions, &header, encoded);
    memcpy(payload, sessions->table[worker].nonce, WIRE_NONCE_BYTES);
    proof_make(&greeting, sessions->config->secret, payload + WIRE_NONCE_BYTES);
    send_bytes(sessions, socket, &header, 0, payload, sizeof payload, false);
}

/* Connects to a worker and says HELLO. */
static enum status dial_connect(struct sessions *sessions, const struct rpc_address *address,
                                struct error *error)
{
    const struct rpc_config *config = sessions->config;
    struct endpoint *endpoint;
    struct wire_pass pass;
    struct error reason;
    assert(address->worker < config->worker);
    proof_make_pass(&pass, config->secret, address->worker);
    const struct endpoint_credentials shown = {
        .pass = address->is_far ? NULL : &pass, .keys = config->keys, .host = address->host};
    const enum status status =
        endpoint_connect(&endpoint, sessions->endpoints[0], address->address, &shown, &reason);
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
    const struct rpc_config *config = sessions->config;
    const uint16_t worker = (uint16_t)sessions->sockets[socket].dialed;
    const struct wire_header *header = &arrival->header;
    const struct endpoint_message *frames = &arrival->frames;
    const struct proof_subject greeting = {.header = frames->header,
                                           .nonce = sessions->table[worker].nonce,
                                           .text = frames->payload + WIRE_PROOF_BYTES,
                                           .text_bytes = frames->payload_bytes - WIRE_PROOF_BYTES};
    if (!proof_is_good(&greeting, config->secret, frames->payload)) {
        sessions->counters->strangers++;
        return error_set(error, STATUS_PERMISSION, "its WELCOME does not prove the job's secret");
    }
    if (header->generation != config->generation || header->source != worker ||
        header->destination != config->worker || header->role != config->roster[worker]) {
        sessions->counters->stale++;
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
    sessions->counters->bad += status == STATUS_INVALID;
    if (status != STATUS_OK)
        return status;
    if (arrival.header.kind == WIRE_BYE) {
        char text[WIRE_ERROR_TEXT_MAX + 1];
        message_copy_text(text, sizeof text, frames->payload, frames->payload_bytes);
        status = error_set(error, STATUS_PERMISSION, "answered HELLO with BYE: %s", text);
    } else if (arrival.header.kind == WIRE_WELCOME) {
        status = dial_receive_welcome(sessions, socket, &arrival, error);
    } else {
        sessions->counters->stale++;
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
