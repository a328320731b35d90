/* Others' calls of us: dispatch, and answers that always leave.
 *
 * A request object lives from its arrival to the moment its answer has left. While it is open it holds the
 * peer's frames; once answered, the answer's. An answer that finds its peer's queue full waits in the
 * session's own queue, behind those before it, and is tried again every turn. The pool is incoming_max
 * and a good thousand more; when even that is used up, the peer who leaves the most answers untaken loses
 * its session, and so does one who asks for more while 60 MiB of answers wait for it. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pool and queues ---- */

enum status answers_new(struct rpc *rpc)
{
    size_t count = (size_t)rpc->config.incoming_max + REPLIES_HELD_MIN + FAREWELLS_MAX;
    rpc->requests = calloc(count, sizeof *rpc->requests);
    if (rpc->requests == NULL)
        return STATUS_NO_MEMORY;
    for (size_t i = count; i-- > 0;) {
        rpc->requests[i].next = rpc->free_requests;
        rpc->free_requests = &rpc->requests[i];
    }
    return STATUS_OK;
}

static void queue_push(struct request_queue *queue, struct rpc_request *request)
{
    request->next = NULL;
    request->previous = queue->last;
    if (queue->last == NULL)
        queue->first = request;
    else
        queue->last->next = request;
    queue->last = request;
    queue->count++;
    queue->bytes += request->frames.payload_bytes;
}

static void queue_remove(struct request_queue *queue, struct rpc_request *request)
{
    if (request->previous == NULL)
        queue->first = request->next;
    else
        request->previous->next = request->next;
    if (request->next == NULL)
        queue->last = request->previous;
    else
        request->next->previous = request->previous;
    queue->count--;
    queue->bytes -= request->frames.payload_bytes;
}

static void give_back(struct rpc *rpc, struct rpc_request *request)
{
    request->is_used = false;
    request->next = rpc->free_requests;
    rpc->free_requests = request;
}

static void drop_queue(struct rpc *rpc, struct request_queue *queue)
{
    while (queue->first != NULL) {
        struct rpc_request *request = queue->first;
        queue_remove(queue, request);
        endpoint_release(&request->frames);
        give_back(rpc, request);
    }
}

void answers_detach(struct rpc *rpc, struct rpc_session *session)
{
    while (session->open.first != NULL) {
        struct rpc_request *request = session->open.first;
        queue_remove(&session->open, request);
        request->session = NULL;
        request->previous = NULL;
    }
    rpc->held_total -= session->held.count;
    drop_queue(rpc, &session->held);
}

/* Takes an object out of the pool and the frames into it. NULL: none is left. */
static struct rpc_request *take(struct rpc *rpc, struct endpoint_message *frames)
{
    struct rpc_request *request = rpc->free_requests;
    if (request == NULL)
        return NULL;
    rpc->free_requests = request->next;
    request->is_used = true;
    request->answered = NULL;
    request->rpc = rpc;
    endpoint_move(&request->frames, frames);
    return request;
}

static void tell_answered(struct rpc_request *request)
{
    rpc_answered *answered = request->answered;
    request->answered = NULL;
    if (answered != NULL)
        answered(request->answered_context, request->answered_number);
}

/* Also of requests that their handlers have not answered. */
void answers_free(struct rpc *rpc)
{
    size_t count = (size_t)rpc->config.incoming_max + REPLIES_HELD_MIN + FAREWELLS_MAX;
    for (size_t i = 0; rpc->requests != NULL && i < count; i++)
        if (rpc->requests[i].is_used) {
            tell_answered(&rpc->requests[i]);
            endpoint_release(&rpc->requests[i].frames);
        }
    free(rpc->requests);
}

bool answers_hold_farewell(struct rpc *rpc, struct endpoint *way, struct endpoint_message *message)
{
    struct rpc_request *request = rpc->farewells.count < FAREWELLS_MAX ? take(rpc, message) : NULL;
    if (request == NULL)
        return false;
    request->way = way;
    queue_push(&rpc->farewells, request);
    rpc->held_total++;
    return true;
}

/* The one whose answers fill the pool. */
static struct rpc_session *slowest(struct rpc *rpc)
{
    struct rpc_session *most = &rpc->sessions[0];
    for (size_t i = 1; i < rpc->config.workers; i++)
        if (rpc->sessions[i].held.count > most->held.count)
            most = &rpc->sessions[i];
    return most;
}

/* ---- sending answers ---- */

enum status answers_build(struct endpoint_message *out, uint32_t peer, struct wire_header *header,
                          const struct rpc_message *value)
{
    static const struct rpc_message nothing;
    if (value == NULL)
        value = &nothing;
    if (value->tensor_count > WIRE_TENSORS_MAX)
        return STATUS_INVALID;
    memcpy(header->args, value->args, sizeof header->args);
    header->tensor_count = value->tensor_count;
    size_t payload_bytes = 0, bytes[WIRE_TENSORS_MAX];
    for (unsigned i = 0; i < value->tensor_count; i++) {
        if (value->tensors[i].rank > WIRE_RANK_MAX)
            return STATUS_INVALID;
        header->tensors[i] = value->tensors[i];
        for (unsigned d = header->tensors[i].rank; d < WIRE_RANK_MAX; d++)
            header->tensors[i].dims[d] = 0;
        bytes[i] = wire_tensor_bytes(&header->tensors[i]);
        payload_bytes += bytes[i];
    }
    header->payload_bytes = (uint32_t)payload_bytes;
    if (wire_check(header, NULL) != STATUS_OK)
        return STATUS_INVALID;
    uint8_t encoded[WIRE_HEADER_BYTES];
    wire_encode(header, encoded);
    enum status status = endpoint_prepare(out, peer, encoded, sizeof encoded, payload_bytes);
    if (status != STATUS_OK)
        return status;
    uint8_t *payload = out->payload;
    for (unsigned i = 0; i < value->tensor_count; i++) {
        memcpy(payload, value->data[i], bytes[i]);
        payload += bytes[i];
    }
    return STATUS_OK;
}

/* Sends the answer and gives the request back, or lets it wait in the session's queue. */
static void leave(struct rpc_request *request, struct endpoint_message *out)
{
    struct rpc *rpc = request->rpc;
    struct rpc_session *session = request->session;
    endpoint_release(&request->frames);
    struct endpoint *way = session->socket->endpoint;
    enum status status = session->held.count > 0 ? STATUS_AGAIN : endpoint_send(way, out);
    if (status == STATUS_AGAIN) {
        request->way = way;
        endpoint_move(&request->frames, out);
        queue_push(&session->held, request);
        rpc->held_total++;
        return;
    }
    if (status == STATUS_OK) {
        rpc->counters.sent++;
    } else {
        endpoint_release(out);
        session_lose(rpc, session);
    }
    give_back(rpc, request);
}

/* Takes a request out of what is open. False: its peer is gone, and so is the request now. */
static bool close_request(struct rpc_request *request)
{
    struct rpc *rpc = request->rpc;
    tell_answered(request);
    rpc->incoming--;
    if (request->session != NULL) {
        queue_remove(&request->session->open, request);
        return true;
    }
    endpoint_release(&request->frames);
    give_back(rpc, request);
    return false;
}

static void reply_header(const struct rpc_request *request, struct wire_header *header)
{
    rpc_header(request->rpc, header, WIRE_REPLY, request->source);
    header->method = request->method;
    header->request = request->id;
}

/* A value the wire cannot carry is our own mistake; without memory for the answer the session is over, for
 * an answer that never comes would strand the caller. */
void rpc_reply(struct rpc_request *request, const struct rpc_message *value)
{
    if (!close_request(request))
        return;
    struct wire_header header;
    struct endpoint_message out;
    reply_header(request, &header);
    enum status status = answers_build(&out, request->session->peer, &header, value);
    assert(status != STATUS_INVALID);
    if (status == STATUS_OK) {
        leave(request, &out);
        return;
    }
    session_lose(request->rpc, request->session);
    endpoint_release(&request->frames);
    give_back(request->rpc, request);
}

static void fail_with(struct rpc_request *request, enum status status, const char *text)
{
    assert(status != STATUS_OK && status != STATUS_AGAIN);
    if (!close_request(request))
        return;
    struct wire_header header;
    struct endpoint_message out;
    uint8_t encoded[WIRE_HEADER_BYTES];
    reply_header(request, &header);
    header.status = (uint8_t)status;
    header.payload_bytes = (uint32_t)strlen(text);
    wire_encode(&header, encoded);
    if (endpoint_prepare(&out, request->session->peer, encoded, sizeof encoded, header.payload_bytes) ==
        STATUS_OK) {
        memcpy(out.payload, text, header.payload_bytes);
        leave(request, &out);
        return;
    }
    session_lose(request->rpc, request->session);
    endpoint_release(&request->frames);
    give_back(request->rpc, request);
}

void rpc_fail(struct rpc_request *request, enum status status, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fail_with(request, status, text);
}

void rpc_reject(struct rpc_request *request, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    struct rpc *rpc = request->rpc;
    struct rpc_session *session = request->session;
    fail_with(request, STATUS_INVALID, text);
    if (session == NULL)
        return;
    rpc->counters.bad++;
    session_end(rpc, session, STATUS_INVALID, STATUS_PEER_DIED, text);
    futures_tell(rpc);
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
        queue_remove(queue, request);
        rpc->held_total--;
        if (status != STATUS_OK)
            endpoint_release(&request->frames);
        give_back(rpc, request);
        if (status != STATUS_OK)
            return status;
    }
    return status;
}

void answers_flush(struct rpc *rpc)
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

/* ---- dispatch ---- */

static void echo(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    (void)context;
    rpc_reply(request, message);
}

static const struct rpc_method echo_method = {.method = METHOD_ECHO, .callers = UINT8_MAX, .handler = echo};

/* Whether this peer may ask this of us. */
static const struct rpc_method *permitted(const struct rpc *rpc, const struct rpc_session *session,
                                          const struct wire_header *header, struct error *error)
{
    if (header->method == METHOD_ECHO)
        return &echo_method;
    const struct rpc_method *method = rpc->methods[header->method];
    if (method == NULL || (method->callers & session->role) == 0) {
        error_set(error, STATUS_PERMISSION, "method %u is not permitted here", header->method);
        return NULL;
    }
    if (rules_check_tensors(method, rpc->config.rows_max, header, error) != STATUS_OK)
        return NULL;
    return method;
}

static struct rpc_request *open_request(struct rpc *rpc, struct rpc_session *session,
                                        const struct wire_header *header, struct endpoint_message *message)
{
    struct rpc_request *request = take(rpc, message);
    if (request == NULL) {
        struct rpc_session *slow = slowest(rpc);
        session_end(rpc, slow, STATUS_INVALID, STATUS_PEER_DIED, "its answers are not taken");
        rpc->counters.bad++;
        request = slow == session ? NULL : take(rpc, message);
    }
    if (request == NULL)
        return NULL;
    request->session = session;
    request->id = header->request;
    request->method = header->method;
    request->source = session->worker;
    rules_open_message(&request->message, header, request->frames.payload);
    queue_push(&session->open, request);
    rpc->incoming++;
    return request;
}

/* A bad request ends the session; a repeated one has no effect; one too many or too late is answered. */
void answers_receive_request(struct rpc *rpc, struct rpc_session *session, const struct wire_header *header,
                             struct endpoint_message *message)
{
    struct error error;
    const struct rpc_method *method = permitted(rpc, session, header, &error);
    if (method != NULL && session->held.bytes > HELD_BYTES_MAX) {
        error_set(&error, STATUS_INVALID, "its answers are not taken");
        method = NULL;
    }
    if (method == NULL) {
        endpoint_release(message);
        rpc->counters.bad++;
        session_end(rpc, session, STATUS_INVALID, STATUS_PEER_DIED, error.text);
        return;
    }
    if (!rules_note_request(session, header->request)) {
        rpc->counters.duplicates++;
        endpoint_release(message);
        return;
    }
    struct rpc_request *request = open_request(rpc, session, header, message);
    if (request == NULL) {
        endpoint_release(message);
    } else if (rpc->incoming > rpc->config.incoming_max) {
        rpc_fail(request, STATUS_BUSY, "%u calls are open, at most %u", rpc->incoming - 1,
                 rpc->config.incoming_max);
    } else if (header->left_us == 0) {
        rpc_fail(request, STATUS_TIMEOUT, "the deadline passed before the request came");
    } else {
        rpc->callbacks++;
        method->handler(rpc->config.context, request, &request->message);
        rpc->callbacks--;
    }
}

uint16_t rpc_request_source(const struct rpc_request *request)
{
    return request->source;
}

const struct rpc_message *rpc_request_message(const struct rpc_request *request)
{
    return &request->message;
}

bool rpc_request_is_live(const struct rpc_request *request)
{
    return request->session != NULL;
}

void rpc_on_answer(struct rpc_request *request, rpc_answered *answered, void *context, uint64_t number)
{
    assert(request->answered == NULL);
    request->answered = answered;
    request->answered_context = context;
    request->answered_number = number;
}
