/* Messages of ours on their way out: built once, sent at once, or held until there is room.
 *
 * Whatever finds its peer's queue full waits in the session's own queue, behind what waits there already, and
 * is tried again every turn. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <string.h>

/* ---- building ---- */

/* Where a tensor lies in what this worker lends, as the wire says it. 0: it travels. */
static uint64_t place_of(const struct rpc *rpc, const struct rpc_session *session, const void *data,
                         uint64_t bytes)
{
    const struct segment *outbox = rpc->config.outbox;
    if (bytes < RPC_LEND_BYTES)
        return 0;
    if (session->is_self)
        return 1;
    if (outbox == NULL)
        return 0;
    uint64_t offset = (uintptr_t)data - (uintptr_t)outbox->data;
    return segment_at(outbox, offset, bytes) == NULL ? 0 : offset + 1;
}

/* Puts args, context and tensors into `header`, and says which of them are lent. */
static enum status fill_header(const struct rpc *rpc, const struct rpc_session *session,
                               struct wire_header *header, const struct rpc_message *value)
{
    if (value->tensor_count > WIRE_TENSORS_MAX)
        return STATUS_INVALID;
    memcpy(header->args, value->args, sizeof header->args);
    header->context = value->context;
    header->tensor_count = value->tensor_count;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        if (value->tensors[i].rank > WIRE_RANK_MAX)
            return STATUS_INVALID;
        header->tensors[i] = value->tensors[i];
        for (unsigned d = header->tensors[i].rank; d < WIRE_RANK_MAX; d++)
            header->tensors[i].dims[d] = 0;
    }
    uint64_t travelling;
    if (wire_check_tensors(header, &travelling, NULL) != STATUS_OK)
        return STATUS_INVALID;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        uint64_t bytes = wire_tensor_bytes(&header->tensors[i]);
        header->places[i] = place_of(rpc, session, value->data[i], bytes);
        travelling -= header->places[i] == 0 ? 0 : bytes;
    }
    if (travelling > WIRE_PAYLOAD_BYTES_MAX)
        return STATUS_INVALID;
    header->payload_bytes = (uint32_t)travelling;
    return STATUS_OK;
}

/* The tensors that travel, one after the other; to oneself, the addresses of the others behind them. */
static void fill_payload(const struct rpc_session *session, const struct wire_header *header,
                         const struct rpc_message *value, uint8_t *payload)
{
    const void *lent[WIRE_TENSORS_MAX] = {NULL};
    for (unsigned i = 0; i < header->tensor_count; i++) {
        size_t bytes = wire_tensor_bytes(&header->tensors[i]);
        if (header->places[i] != 0) {
            lent[i] = value->data[i];
            continue;
        }
        memcpy(payload, value->data[i], bytes);
        payload += bytes;
    }
    if (session->is_self)
        memcpy(payload, lent, sizeof lent);
}

/* The message of `header` with `value`, or with `text` when that is not NULL. STATUS_INVALID: over the
 * limits; STATUS_NO_MEMORY. */
static enum status build(const struct rpc *rpc, const struct rpc_session *session, struct wire_header *header,
                         const struct rpc_message *value, const char *text, struct endpoint_message *out)
{
    static const struct rpc_message nothing;
    uint8_t encoded[WIRE_HEADER_BYTES];
    if (value == NULL)
        value = &nothing;
    if (text != NULL)
        header->payload_bytes = (uint32_t)strlen(text);
    else if (fill_header(rpc, session, header, value) != STATUS_OK)
        return STATUS_INVALID;
    if (wire_check(header, NULL) != STATUS_OK)
        return STATUS_INVALID;
    wire_encode(header, encoded);
    size_t tail_bytes = session->is_self ? SELF_TAIL_BYTES : 0;
    enum status status =
        endpoint_prepare(out, session->peer, encoded, sizeof encoded, header->payload_bytes + tail_bytes);
    if (status != STATUS_OK)
        return status;
    if (text != NULL)
        memcpy(out->payload, text, header->payload_bytes);
    uint8_t *payload = out->payload + (text != NULL ? header->payload_bytes : 0);
    if (text == NULL || session->is_self)
        fill_payload(session, header, value, payload);
    return STATUS_OK;
}

/* ---- sending ---- */

/* Keeps a message until there is room; to oneself, until the next turn. */
static void hold(struct rpc *rpc, struct rpc_session *session, struct rpc_request *holder, bool is_answer)
{
    holder->is_answer = is_answer;
    if (session->is_self) {
        self_post(rpc, holder);
        return;
    }
    holder->way = session->socket->endpoint;
    holder->session = session;
    queue_push(&session->held, holder);
    session->answer_bytes += is_answer ? holder->frames.payload_bytes : 0;
    rpc->held_total++;
}

/* STATUS_AGAIN: it is to be held. */
static enum status try_send(struct rpc *rpc, struct rpc_session *session, struct endpoint_message *out)
{
    if (session->is_self || session->held.count > 0)
        return STATUS_AGAIN;
    enum status status = endpoint_send(session->socket->endpoint, out);
    rpc->counters.sent += status == STATUS_OK;
    return status;
}

enum status send_request(struct rpc *rpc, struct rpc_session *session, struct wire_header *header,
                         const struct rpc_message *message, struct error *error)
{
    struct endpoint_message out;
    enum status status = build(rpc, session, header, message, NULL, &out);
    if (status == STATUS_INVALID)
        return error_set(error, status, "a request to worker %u is larger than the limits", session->worker);
    if (status != STATUS_OK)
        return error_set(error, status, "no memory for a request to worker %u", session->worker);
    status = try_send(rpc, session, &out);
    if (status == STATUS_OK)
        return STATUS_OK;
    struct rpc_request *holder = NULL;
    if (status == STATUS_AGAIN && session->held.count < rpc->config.pending_max &&
        session->held.bytes < HELD_BYTES_MAX)
        holder = request_take(rpc, &out);
    if (holder != NULL) {
        hold(rpc, session, holder, false);
        return STATUS_OK;
    }
    endpoint_release(&out);
    if (status == STATUS_AGAIN)
        return error_set(error, STATUS_BUSY, "worker %u's queue is full", session->worker);
    session_lose(rpc, session);
    return error_set(error, STATUS_NOT_FOUND, "worker %u is gone", session->worker);
}

/* A value the wire cannot carry is our own mistake; without memory for the answer the session is over, for
 * an answer that never comes would strand the caller. */
void send_answer(struct rpc_request *request, struct wire_header *header, const struct rpc_message *value,
                 const char *text)
{
    struct rpc *rpc = request->rpc;
    struct rpc_session *session = request->session;
    struct endpoint_message out;
    enum status status = build(rpc, session, header, value, text, &out);
    assert(status != STATUS_INVALID);
    endpoint_release(&request->frames);
    if (status == STATUS_OK) {
        status = try_send(rpc, session, &out);
        if (status == STATUS_AGAIN) {
            endpoint_move(&request->frames, &out);
            hold(rpc, session, request, true);
            return;
        }
        if (status != STATUS_OK)
            endpoint_release(&out);
    }
    if (status != STATUS_OK)
        session_lose(rpc, session);
    request_give_back(rpc, request);
}

/* ---- what waits ---- */

static void unhold(struct rpc *rpc, struct request_queue *queue, struct rpc_request *request)
{
    queue_remove(queue, request);
    rpc->held_total--;
    if (request->is_answer)
        request->session->answer_bytes -= request->frames.payload_bytes;
}

void send_drop_held(struct rpc *rpc, struct rpc_session *session)
{
    rpc->held_total -= session->held.count;
    session->answer_bytes = 0;
    queue_drop(rpc, &session->held);
}

bool send_hold_farewell(struct rpc *rpc, struct endpoint *way, struct endpoint_message *message)
{
    struct rpc_request *request = rpc->farewells.count < FAREWELLS_MAX ? request_take(rpc, message) : NULL;
    if (request == NULL)
        return false;
    request->way = way;
    request->is_answer = false;
    queue_push(&rpc->farewells, request);
    rpc->held_total++;
    return true;
}

/* Sends what waits in one queue, until it is empty or the peer takes no more. */
static enum status flush_queue(struct rpc *rpc, struct request_queue *queue)
{
    enum status status = STATUS_OK;
    while (queue->first != NULL) {
        struct rpc_request *request = queue->first;
        status = endpoint_send(request->way, &request->frames);
        if (status == STATUS_AGAIN)
            return status;
        rpc->counters.sent += status == STATUS_OK;
        unhold(rpc, queue, request);
        if (status != STATUS_OK)
            endpoint_release(&request->frames);
        request_give_back(rpc, request);
        if (status != STATUS_OK)
            return status;
    }
    return status;
}

void send_flush(struct rpc *rpc)
{
    if (rpc->held_total == 0)
        return;
    for (size_t i = 0; i < rpc->config.workers; i++) {
        struct rpc_session *session = &rpc->sessions[i];
        enum status status = flush_queue(rpc, &session->held);
        if (status != STATUS_OK && status != STATUS_AGAIN)
            session_lose(rpc, session);
    }
    /* A farewell that cannot go yet is put behind the others, so that one full queue holds up no one. */
    for (uint32_t left = rpc->farewells.count; left > 0 && rpc->farewells.count > 0; left--) {
        struct rpc_request *first = rpc->farewells.first;
        if (flush_queue(rpc, &rpc->farewells) == STATUS_AGAIN && rpc->farewells.first == first) {
            queue_remove(&rpc->farewells, first);
            queue_push(&rpc->farewells, first);
        }
    }
}
