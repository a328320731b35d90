/* Calls that this worker answers: dispatch, and replies.
 *
 * A request object lives from its arrival to the moment its answer has left. While it is open it holds the
 * peer's frames; once answered, the answer's. An answer that finds its peer's queue full waits (rpc_send.c).
 * A peer that sends a request while more than REPLIES_HELD_MAX answers, or 60 MiB of answers, wait for it
 * loses its session. */
#include "worker/net/rpc_internal.h"

#include "kernels/base/profile.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void answers_detach(struct rpc *rpc, struct rpc_session *session)
{
    while (session->open.first != NULL) {
        struct rpc_request *request = session->open.first;
        queue_remove(&session->open, request);
        request->session = NULL;
        request->previous = NULL;
    }
    send_drop_held(rpc, session);
}

/* ---- answering ---- */

/* Takes a request out of its session's open ones. False: its peer is gone, and the request is freed. */
static bool answers_close_request(struct rpc_request *request)
{
    struct rpc *rpc = request->rpc;
    request_tell_answered(request);
    rpc->incoming--;
    if (request->session != NULL) {
        queue_remove(&request->session->open, request);
        return true;
    }
    request_release(request);
    request_give_back(rpc, request);
    return false;
}

/* Answers with `value`, or when `status` is not STATUS_OK with `text`. */
static void answers_complete(struct rpc_request *request, enum status status, const struct rpc_message *value,
                             const char *text)
{
    struct rpc_session *session = request->session;
    const uint64_t id = request->id;
    struct wire_header header;
    assert(status != STATUS_AGAIN);
    if (!answers_close_request(request))
        return;
    rpc_header(request->rpc, &header, WIRE_REPLY, request->source);
    header.method = request->method;
    header.request = id;
    header.status = (uint8_t)status;
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    if (send_answer(request, &header, value, text) != STATUS_OK)
        calls_fail(session, id, STATUS_NO_MEMORY, "no memory for the answer");
    profile_leave(before);
}

void rpc_reply(struct rpc_request *request, const struct rpc_message *value)
{
    answers_complete(request, STATUS_OK, value, NULL);
}

void rpc_fail(struct rpc_request *request, enum status status, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    answers_complete(request, status, NULL, text);
}

/* ---- dispatch ---- */

static void answers_echo(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    (void)context;
    rpc_reply(request, message);
}

static const struct rpc_method echo_method = {
    .method = METHOD_ECHO, .callers = UINT8_MAX, .any_tensors = true, .handler = answers_echo};

void answers_serve_echo(struct rpc *rpc)
{
    rpc->services[METHOD_ECHO] = (struct rpc_service){&echo_method, NULL};
}

/* Checks that this peer may make this request. */
static enum status answers_check_request(const struct rpc *rpc, const struct rpc_session *session,
                                         const struct wire_header *header, struct error *error)
{
    const struct rpc_method *method = rpc->services[header->method].method;
    if (method == NULL || (method->callers & session->role) == 0)
        return error_set(error, STATUS_PERMISSION, "method %u is not permitted here", header->method);
    if (!method->any_tensors && rules_check_tensors(method, rpc->config.rows_max, header, error) != STATUS_OK)
        return STATUS_INVALID;
    if (session->answers_held.messages > REPLIES_HELD_MAX || session->answers_held.bytes > HELD_BYTES_MAX)
        return error_set(error, STATUS_INVALID, "too many answers wait unread");
    return STATUS_OK;
}

/* NULL: no memory. A message to oneself has just given its object back, and finds that one. */
static struct rpc_request *answers_open_request(struct rpc *rpc, struct rpc_session *session,
                                                struct rpc_arrival *arrival)
{
    struct rpc_request *request = request_take(rpc, arrival->frames);
    if (request == NULL)
        return NULL;
    request->session = session;
    request->id = arrival->header.request;
    request->method = arrival->header.method;
    request->source = session->worker;
    request->body = arrival->body;
    rules_open_message(&request->message, &arrival->header,
                       request->body.bytes != NULL ? request->body.bytes : request->frames.payload,
                       arrival->lent);
    queue_push(&session->open, request);
    rpc->incoming++;
    return request;
}

static void answers_serve_request(struct rpc *rpc, struct rpc_request *request,
                                  const struct rpc_arrival *arrival)
{
    const struct rpc_service *service = &rpc->services[request->method];
    if (rpc->incoming > rpc->config.incoming_max && !service->method->at_once) {
        rpc_fail(request, STATUS_BUSY, "%u calls are open, at most %u", rpc->incoming - 1,
                 rpc->config.incoming_max);
    } else if (arrival->body_state == STATUS_BUSY) {
        rpc_fail(request, STATUS_BUSY, "no room for a body of %u bytes", arrival->header.body_bytes);
    } else if (arrival->header.left_us == 0) {
        rpc_fail(request, STATUS_TIMEOUT, "the deadline passed before the request came");
    } else {
        rpc->callbacks++;
        service->method->handler(service->context, request, &request->message);
        rpc->callbacks--;
    }
}

/* A bad request of this worker to itself fails alone: there is no session to lose. */
static enum status answers_fail_bad_request(struct rpc *rpc, struct rpc_session *session,
                                            struct rpc_arrival *arrival, const struct error *error)
{
    if (session->is_self) {
        answers_complete(answers_open_request(rpc, session, arrival), error->status, NULL, error->text);
        return STATUS_OK;
    }
    arrival_drop(arrival);
    return STATUS_INVALID;
}

enum status answers_receive_request(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival,
                                    struct error *error)
{
    if (answers_check_request(rpc, session, &arrival->header, error) != STATUS_OK)
        return answers_fail_bad_request(rpc, session, arrival, error);
    if (!duplicates_note(session, arrival->header.request)) {
        rpc->counters.duplicates++;
        arrival_drop(arrival);
        return STATUS_OK;
    }
    if (arrival->body_state == STATUS_INVALID) {
        error_set(error, STATUS_INVALID, "a request whose body has not come");
        return answers_fail_bad_request(rpc, session, arrival, error);
    }
    struct rpc_request *request = answers_open_request(rpc, session, arrival);
    if (request == NULL) {
        arrival_drop(arrival);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a request");
    }
    answers_serve_request(rpc, request, arrival);
    return STATUS_OK;
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
