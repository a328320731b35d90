/* Sending messages: each is built once, and sent at once or held until there is room.
 *
 * A message that finds its peer's queue full waits in the session's own queue, behind earlier messages, and
 * is tried again every turn: messages arrive in the order of sending. A body of more than one payload leaves
 * in pieces, right before its message. Pieces that find room are copied from the caller's memory; the rest is
 * copied into buffers, at most RPC_BODY_BYTES_MAX bytes a session. */
#include "worker/net/rpc_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- building ---- */

void rpc_header(const struct rpc *rpc, struct wire_header *header, enum wire_kind kind, uint16_t destination)
{
    memset(header, 0, sizeof *header);
    header->kind = (uint8_t)kind;
    header->source = rpc->config.worker;
    header->destination = destination;
    header->incarnation = rpc->config.incarnation;
    header->generation = rpc->config.generation;
}

/* A tensor's place in this worker's segment, in the wire's form. 0: the tensor travels. */
static uint64_t send_place_of(const struct rpc *rpc, const struct rpc_session *session, const void *data,
                              uint64_t bytes)
{
    const struct segment *outbox = rpc->config.outbox;
    if (bytes < RPC_LEND_BYTES || !session_lends(rpc, session))
        return 0;
    if (session->is_self)
        return 1;
    uint64_t offset = (uintptr_t)data - (uintptr_t)outbox->data;
    return segment_at(outbox, offset, bytes) == NULL ? 0 : offset + 1;
}

/* Puts args, context and tensors into `header`, with the places of lent tensors. STATUS_INVALID: they exceed
 * a message's limits. */
static enum status send_fill_header(const struct rpc *rpc, const struct rpc_session *session,
                                    struct wire_header *header, const struct rpc_message *value,
                                    struct error *error)
{
    if (value->tensor_count > WIRE_TENSORS_MAX)
        return error_set(error, STATUS_INVALID, "%u tensors, at most %d", value->tensor_count,
                         WIRE_TENSORS_MAX);
    memcpy(header->args, value->args, sizeof header->args);
    header->context = value->context;
    header->tensor_count = value->tensor_count;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        if (value->tensors[i].rank > WIRE_RANK_MAX)
            return error_set(error, STATUS_INVALID, "tensor %u: rank %u, at most %d", i,
                             value->tensors[i].rank, WIRE_RANK_MAX);
        header->tensors[i] = value->tensors[i];
        header->tensors[i].reserved = 0;
        for (unsigned d = header->tensors[i].rank; d < WIRE_RANK_MAX; d++)
            header->tensors[i].dims[d] = 0;
    }
    uint64_t travelling;
    if (wire_check_tensors(header, &travelling, error) != STATUS_OK)
        return STATUS_INVALID;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        uint64_t bytes = wire_tensor_bytes(&header->tensors[i]);
        header->places[i] = send_place_of(rpc, session, value->data[i], bytes);
        travelling -= header->places[i] == 0 ? 0 : bytes;
    }
    if (travelling > RPC_BODY_BYTES_MAX)
        return error_set(error, STATUS_INVALID, "%llu bytes travel, at most %d",
                         (unsigned long long)travelling, RPC_BODY_BYTES_MAX);
    bool is_whole = travelling <= WIRE_PAYLOAD_BYTES_MAX;
    header->payload_bytes = is_whole ? (uint32_t)travelling : 0;
    header->body_bytes = is_whole ? 0 : (uint32_t)travelling;
    return STATUS_OK;
}

/* `count` bytes, from `from` on, of the tensors that travel, one after the other. */
static void send_gather(const struct wire_header *header, const struct rpc_message *value, size_t from,
                        size_t count, uint8_t *out)
{
    for (unsigned i = 0; i < header->tensor_count && count > 0; i++) {
        size_t bytes = header->places[i] == 0 ? wire_tensor_bytes(&header->tensors[i]) : 0;
        if (from >= bytes) {
            from -= bytes;
            continue;
        }
        size_t part = bytes - from < count ? bytes - from : count;
        memcpy(out, (const uint8_t *)value->data[i] + from, part);
        out += part;
        count -= part;
        from = 0;
    }
}

/* In a message to oneself: the addresses of the tensors that do not travel. */
static void send_append_addresses(const struct wire_header *header, const struct rpc_message *value,
                                  uint8_t *out)
{
    const void *lent[WIRE_TENSORS_MAX] = {NULL};
    for (unsigned i = 0; i < header->tensor_count; i++)
        if (header->places[i] != 0)
            lent[i] = value->data[i];
    memcpy(out, lent, sizeof lent);
}

/* The message of `header` with `value`, or with `text` when that is not NULL. STATUS_INVALID: `value` is over
 * the limits, *error says which; STATUS_NO_MEMORY. */
static enum status send_build(const struct rpc *rpc, const struct rpc_session *session,
                              struct wire_header *header, const struct rpc_message *value, const char *text,
                              struct endpoint_message *out, struct error *error)
{
    uint8_t encoded[WIRE_HEADER_BYTES];
    if (text != NULL)
        header->payload_bytes = (uint32_t)strlen(text);
    else if (send_fill_header(rpc, session, header, value, error) != STATUS_OK)
        return STATUS_INVALID;
    wire_encode(header, encoded);
    size_t tail_bytes = session->is_self ? SELF_TAIL_BYTES : 0;
    enum status status =
        endpoint_prepare(out, session->peer, encoded, sizeof encoded, header->payload_bytes + tail_bytes);
    if (status != STATUS_OK)
        return status;
    if (text != NULL)
        memcpy(out->payload, text, header->payload_bytes);
    else
        send_gather(header, value, 0, header->payload_bytes, out->payload);
    if (session->is_self)
        send_append_addresses(header, value, out->payload + header->payload_bytes);
    return STATUS_OK;
}

/* Whether a message may leave at once. STATUS_AGAIN: it has to wait behind another; STATUS_NOT_FOUND: the
 * session is lost, and earlier messages may be. */
static enum status send_way_out(const struct rpc_session *session)
{
    if (session->is_lost)
        return STATUS_NOT_FOUND;
    return session->is_self || session->held.count > 0 ? STATUS_AGAIN : STATUS_OK;
}

/* ---- pieces ---- */

static enum status send_build_piece(uint32_t peer, struct wire_header *header, struct endpoint_message *out)
{
    uint8_t encoded[WIRE_HEADER_BYTES];
    uint64_t left_bytes = header->body_bytes - header->args[PIECE_OFFSET];
    header->payload_bytes =
        left_bytes < WIRE_PAYLOAD_BYTES_MAX ? (uint32_t)left_bytes : WIRE_PAYLOAD_BYTES_MAX;
    wire_encode(header, encoded);
    return endpoint_prepare(out, peer, encoded, sizeof encoded, header->payload_bytes);
}

static struct wire_header send_piece_header(const struct rpc *rpc, const struct wire_header *header)
{
    struct wire_header piece;
    rpc_header(rpc, &piece, WIRE_PIECE, header->destination);
    piece.request = header->request;
    piece.body_bytes = header->body_bytes;
    piece.args[PIECE_KIND] = header->kind;
    return piece;
}

/* Sends pieces as long as there is room. *out: the rest, NULL when there is none. STATUS_NO_MEMORY: some may
 * have left. */
static enum status send_pieces(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header,
                               const struct rpc_message *value, struct leaving_body **out)
{
    struct wire_header piece = send_piece_header(rpc, header);
    uint64_t *offset = &piece.args[PIECE_OFFSET];
    enum status status = send_way_out(session);
    *out = NULL;
    while (status == STATUS_OK && *offset < header->body_bytes) {
        struct endpoint_message message;
        status = send_build_piece(session->peer, &piece, &message);
        if (status != STATUS_OK)
            return status;
        send_gather(header, value, *offset, piece.payload_bytes, message.payload);
        status = endpoint_send(session->socket->endpoint, &message);
        if (status != STATUS_OK)
            endpoint_release(&message);
        else
            *offset += piece.payload_bytes;
        rpc->counters.sent += status == STATUS_OK;
    }
    if (status != STATUS_AGAIN)
        return status;
    size_t left_bytes = header->body_bytes - *offset;
    struct leaving_body *leaving = malloc(sizeof *leaving + left_bytes);
    if (leaving == NULL)
        return STATUS_NO_MEMORY;
    leaving->header = piece;
    leaving->first = (uint32_t)*offset;
    leaving->has_piece = false;
    send_gather(header, value, *offset, left_bytes, leaving->bytes);
    *out = leaving;
    return STATUS_OK;
}

/* Sends pieces of a body that was kept. STATUS_AGAIN: some are left. */
static enum status send_leaving(struct rpc *rpc, struct rpc_session *session, struct leaving_body *leaving)
{
    uint64_t *offset = &leaving->header.args[PIECE_OFFSET];
    while (*offset < leaving->header.body_bytes) {
        enum status status = STATUS_OK;
        if (!leaving->has_piece) {
            status = send_build_piece(session->peer, &leaving->header, &leaving->piece);
            if (status != STATUS_OK)
                return status;
            memcpy(leaving->piece.payload, leaving->bytes + (*offset - leaving->first),
                   leaving->header.payload_bytes);
            leaving->has_piece = true;
        }
        status = endpoint_send(session->socket->endpoint, &leaving->piece);
        if (status != STATUS_OK)
            return status;
        rpc->counters.sent++;
        leaving->has_piece = false;
        *offset += leaving->header.payload_bytes;
    }
    return STATUS_OK;
}

/* ---- sending ---- */

/* Requests and answers have bounds of their own. */
static void send_count_held(struct rpc *rpc, const struct rpc_request *held, bool is_added)
{
    struct rpc_session *session = held->session;
    struct held_count *count = held->is_answer ? &session->answers_held : &session->requests_held;
    const size_t bytes = held->frames.payload_bytes;
    const size_t body_bytes = held->leaving != NULL ? held->leaving->header.body_bytes : 0;
    const uint32_t requests = !held->is_answer;
    if (is_added) {
        count->messages++;
        count->bytes += bytes;
        session->leaving_bytes += body_bytes;
        rpc->requests_held += requests;
        rpc->held_total++;
    } else {
        count->messages--;
        count->bytes -= bytes;
        session->leaving_bytes -= body_bytes;
        rpc->requests_held -= requests;
        rpc->held_total--;
    }
}

static void self_post(struct rpc *rpc, struct rpc_request *holder)
{
    queue_push(&rpc->local, holder);
    rpc->counters.sent++;
}

/* Keeps a message until there is room; to oneself, until the next turn. */
static void send_hold(struct rpc *rpc, struct rpc_session *session, struct rpc_request *holder,
                      bool is_answer)
{
    if (session->is_self) {
        self_post(rpc, holder);
        return;
    }
    holder->is_answer = is_answer;
    holder->session = session;
    queue_push(&session->held, holder);
    send_count_held(rpc, holder, true);
}

static void send_unhold(struct rpc *rpc, struct request_queue *queue, struct rpc_request *request)
{
    send_count_held(rpc, request, false);
    queue_remove(queue, request);
    if (request->leaving != NULL)
        leaving_free(request);
}

static void held_drop(struct rpc *rpc, struct request_queue *queue, struct rpc_request *request)
{
    send_unhold(rpc, queue, request);
    request_release(request);
    request_give_back(rpc, request);
}

void send_drop_held(struct rpc *rpc, struct rpc_session *session)
{
    while (session->held.first != NULL)
        held_drop(rpc, &session->held, session->held.first);
}

/* STATUS_AGAIN: the message must be held. */
static enum status send_try(struct rpc *rpc, struct rpc_session *session, struct endpoint_message *out)
{
    enum status status = send_way_out(session);
    if (status != STATUS_OK)
        return status;
    status = endpoint_send(session->socket->endpoint, out);
    rpc->counters.sent += status == STATUS_OK;
    return status;
}

/* Counts all requests that wait: also those whose calls are complete by now, and those to oneself. */
static bool send_has_room(const struct rpc *rpc, const struct rpc_session *session, uint32_t body_bytes)
{
    return rpc->requests_held + rpc->local.count < rpc->config.pending_max &&
           session->requests_held.bytes < HELD_BYTES_MAX &&
           body_bytes <= RPC_BODY_BYTES_MAX - session->leaving_bytes;
}

static const struct rpc_message no_value;

/* Sends or holds a built message; takes it over on STATUS_OK. A message with a body may have to be held after
 * its first piece has left, so the object for holding it is taken first. */
static enum status send_built(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header,
                              const struct rpc_message *message, struct endpoint_message *out)
{
    struct rpc_request *holder = NULL;
    struct leaving_body *leaving = NULL;
    enum status status = header->body_bytes != 0 ? STATUS_AGAIN : send_try(rpc, session, out);
    if (status != STATUS_AGAIN)
        return status;
    if (send_has_room(rpc, session, header->body_bytes))
        holder = request_take(rpc, out);
    if (holder == NULL)
        return STATUS_BUSY;
    if (header->body_bytes != 0)
        status = send_pieces(rpc, session, header, message, &leaving);
    if (header->body_bytes != 0 && status == STATUS_OK && leaving == NULL)
        status = send_try(rpc, session, &holder->frames);
    else if (status == STATUS_OK)
        status = STATUS_AGAIN;
    if (status == STATUS_AGAIN) {
        holder->leaving = leaving;
        send_hold(rpc, session, holder, false);
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        endpoint_move(out, &holder->frames);
    request_give_back(rpc, holder);
    return status;
}

enum status send_request(struct rpc *rpc, struct rpc_session *session, struct wire_header *header,
                         const struct rpc_message *message, struct error *error)
{
    struct endpoint_message out;
    if (message == NULL)
        message = &no_value;
    struct error limit;
    enum status status = send_build(rpc, session, header, message, NULL, &out, &limit);
    if (status == STATUS_INVALID)
        return error_set(error, status, "a request to worker %u cannot be sent: %s", session->worker,
                         limit.text);
    if (status != STATUS_OK)
        return error_set(error, status, "no memory for a request to worker %u", session->worker);
    status = send_built(rpc, session, header, message, &out);
    if (status == STATUS_OK)
        return STATUS_OK;
    endpoint_release(&out);
    if (status == STATUS_BUSY)
        return error_set(error, status, "too many messages or bytes wait for worker %u already",
                         session->worker);
    session_lose(rpc, session);
    return error_set(error, STATUS_NOT_FOUND, "worker %u is gone", session->worker);
}

/* Builds the answer's frames and sends the beginning of its body. An answer over the limits becomes a failure
 * and not an assertion, since the caller may have chosen its size. */
static enum status send_begin_answer(struct rpc_request *request, struct wire_header *header,
                                     const struct rpc_message *value, const char *text,
                                     struct endpoint_message *out, struct leaving_body **leaving)
{
    struct rpc *rpc = request->rpc;
    struct rpc_session *session = request->session;
    struct wire_header failure = *header;
    struct error limit;
    char why[WIRE_ERROR_TEXT_MAX + 1];
    *leaving = NULL;
    enum status status = send_build(rpc, session, header, value, text, out, &limit);
    if (status == STATUS_INVALID) {
        snprintf(why, sizeof why, "an answer of worker %u cannot be sent: %.350s", rpc->config.worker,
                 limit.text);
    } else if (status == STATUS_OK && header->body_bytes > RPC_BODY_BYTES_MAX - session->leaving_bytes) {
        endpoint_release(out);
        status = STATUS_BUSY;
        snprintf(why, sizeof why, "too many bytes of answers wait already");
    } else {
        if (status == STATUS_OK && header->body_bytes != 0) {
            status = send_pieces(rpc, session, header, value, leaving);
            if (status != STATUS_OK)
                endpoint_release(out);
        }
        return status;
    }
    failure.status = (uint8_t)status;
    return send_build(rpc, session, &failure, &no_value, why, out, NULL);
}

/* Without memory for the answer the session ends: otherwise the caller would wait for ever. The session with
 * oneself cannot end. */
enum status send_answer(struct rpc_request *request, struct wire_header *header,
                        const struct rpc_message *value, const char *text)
{
    struct rpc *rpc = request->rpc;
    struct rpc_session *session = request->session;
    struct endpoint_message out;
    struct leaving_body *leaving;
    enum status status =
        send_begin_answer(request, header, value == NULL ? &no_value : value, text, &out, &leaving);
    request_release(request);
    if (status != STATUS_OK && session->is_self) {
        request_give_back(rpc, request);
        return status;
    }
    if (status == STATUS_OK) {
        status = leaving != NULL ? STATUS_AGAIN : send_try(rpc, session, &out);
        if (status == STATUS_AGAIN) {
            endpoint_move(&request->frames, &out);
            request->leaving = leaving;
            send_hold(rpc, session, request, true);
            return STATUS_OK;
        }
        if (status != STATUS_OK)
            endpoint_release(&out);
    }
    if (status != STATUS_OK)
        session_lose(rpc, session);
    request_give_back(rpc, request);
    return STATUS_OK;
}

/* ---- what waits ---- */

static bool send_hold_farewell(struct rpc *rpc, struct endpoint *way, struct endpoint_message *message)
{
    struct rpc_request *request = rpc->farewells.count < FAREWELLS_MAX ? request_take(rpc, message) : NULL;
    if (request == NULL)
        return false;
    request->way = way;
    queue_push(&rpc->farewells, request);
    rpc->held_total++;
    return true;
}

bool send_text(struct rpc *rpc, struct endpoint *way, struct wire_header *header, uint32_t peer,
               const void *text, size_t bytes, bool hold)
{
    struct endpoint_message message;
    uint8_t encoded[WIRE_HEADER_BYTES];
    header->payload_bytes = (uint32_t)bytes;
    wire_encode(header, encoded);
    if (endpoint_prepare(&message, peer, encoded, sizeof encoded, bytes) != STATUS_OK)
        return false;
    if (bytes > 0)
        memcpy(message.payload, text, bytes);
    enum status status = endpoint_send(way, &message);
    rpc->counters.sent += status == STATUS_OK;
    if (status == STATUS_OK || (status == STATUS_AGAIN && hold && send_hold_farewell(rpc, way, &message)))
        return true;
    endpoint_release(&message);
    return false;
}

static enum status send_held(struct rpc *rpc, struct rpc_session *session, struct rpc_request *request)
{
    enum status status = STATUS_OK;
    if (request->leaving != NULL)
        status = send_leaving(rpc, session, request->leaving);
    if (status == STATUS_OK)
        status = endpoint_send(session->socket->endpoint, &request->frames);
    rpc->counters.sent += status == STATUS_OK;
    return status;
}

/* Sends a session's held messages, until there are none or the peer's queue is full. */
static enum status send_flush_session(struct rpc *rpc, struct rpc_session *session)
{
    enum status status = STATUS_OK;
    while (session->held.first != NULL && status == STATUS_OK) {
        struct rpc_request *request = session->held.first;
        status = send_held(rpc, session, request);
        if (status == STATUS_AGAIN)
            return status;
        send_unhold(rpc, &session->held, request);
        if (status != STATUS_OK)
            endpoint_release(&request->frames);
        request_give_back(rpc, request);
    }
    return status;
}

/* A farewell that cannot leave yet is put behind the others, so that one full queue does not delay them. */
static void send_flush_farewells(struct rpc *rpc)
{
    for (uint32_t left = rpc->farewells.count; left > 0; left--) {
        struct rpc_request *first = rpc->farewells.first;
        enum status status = endpoint_send(first->way, &first->frames);
        queue_remove(&rpc->farewells, first);
        if (status == STATUS_AGAIN) {
            queue_push(&rpc->farewells, first);
            continue;
        }
        rpc->counters.sent += status == STATUS_OK;
        rpc->held_total--;
        if (status != STATUS_OK)
            endpoint_release(&first->frames);
        request_give_back(rpc, first);
    }
}

void send_flush(struct rpc *rpc)
{
    if (rpc->held_total == 0)
        return;
    for (size_t i = 0; i < rpc->config.workers; i++) {
        struct rpc_session *session = &rpc->sessions[i];
        enum status status =
            session->held.count > 0 && !session->is_lost ? send_flush_session(rpc, session) : STATUS_OK;
        if (status != STATUS_OK && status != STATUS_AGAIN)
            session_lose(rpc, session);
    }
    send_flush_farewells(rpc);
}
