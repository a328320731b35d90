/* Calls that this worker makes: from rpc_call_async to the reply, the deadline, or the peer's death.
 *
 * A pending call stands in a hash table by (worker, request id), and when it has a deadline in a binary
 * heap as well; each future knows its place in the heap. Deadlines mostly come in ascending order, where
 * the heap costs one comparison, and any one of ten thousand may leave it in a dozen. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void calls_fail_call(struct future *call, enum status status, const char *text)
{
    struct rpc_text *copy = text_new((const uint8_t *)text, strlen(text));
    future_complete(call, status, copy);
    text_release(copy);
}

void calls_fail(struct rpc *rpc, const struct rpc_session *session, uint64_t request, enum status why,
                const char *text)
{
    struct future *call = pending_find(rpc, session, request);
    if (call == NULL)
        return;
    calls_fail_call(call, why, text);
    futures_tell(rpc);
}

void calls_expire(struct rpc *rpc)
{
    if (rpc->heap_count == 0)
        return;
    struct monotime now = monotime_now();
    while (rpc->heap_count > 0 && !monotime_before(now, rpc->heap[0]->call.deadline)) {
        rpc->counters.timeouts++;
        calls_fail_call(rpc->heap[0], STATUS_TIMEOUT, "no answer before the deadline");
    }
    futures_tell(rpc);
}

void calls_complete(struct rpc *rpc, const struct rpc_session *session, enum status why, const char *text)
{
    if (rpc->pending == 0)
        return;
    struct rpc_text *copy = text_new((const uint8_t *)text, strlen(text));
    for (size_t i = 0; i < rpc->future_count; i++) {
        struct future *future = &rpc->futures[i];
        bool is_pending = future->references > 0 && future->kind == FUTURE_CALL && !future->is_done;
        if (is_pending && (session == NULL || future->call.session == session))
            future_complete(future, why, copy);
    }
    text_release(copy);
}

void rpc_cancel_all(struct rpc *rpc, enum status why, const char *text)
{
    calls_complete(rpc, NULL, why, text);
    futures_tell(rpc);
}

/* ---- calling ---- */

enum status rpc_call_async(struct rpc *rpc, uint16_t worker, enum wire_method method,
                           const struct rpc_message *message, struct monotime deadline, struct future **out,
                           struct error *error)
{
    struct rpc_session *session = session_of(rpc, worker);
    if (session == NULL || rpc->is_closing)
        return error_set(error, STATUS_NOT_FOUND, "worker %u has no session", worker);
    struct future *call = rpc->pending < rpc->config.pending_max ? future_new(rpc, FUTURE_CALL) : NULL;
    if (call == NULL)
        return error_set(error, STATUS_BUSY, "%u calls are pending, at most %u", rpc->pending,
                         rpc->config.pending_max);
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_REQUEST, session->worker);
    header.method = (uint16_t)method;
    header.request = session->next_request;
    header.left_us = monotime_is_never(deadline) ? UINT64_MAX : monotime_us_between(monotime_now(), deadline);
    enum status status = send_request(rpc, session, &header, message, error);
    if (status != STATUS_OK) {
        future_release(call);
        return status;
    }
    call->references++; /* until it is done */
    call->call.session = session;
    call->call.request = session->next_request++;
    call->call.method = (uint16_t)method;
    call->call.deadline = deadline;
    pending_add(rpc, call);
    *out = call;
    return STATUS_OK;
}

enum status rpc_call_then(struct rpc *rpc, uint16_t worker, enum wire_method method,
                          const struct rpc_message *message, struct monotime deadline,
                          future_then_function *then, void *arg, struct future **out, struct error *error)
{
    struct future *call, *after;
    if (!futures_suffice(rpc, 2))
        return error_set(error, STATUS_BUSY, "no future is left for a call of worker %u", worker);
    enum status status = rpc_call_async(rpc, worker, method, message, deadline, &call, error);
    if (status != STATUS_OK)
        return status;
    status = future_then(call, then, arg, &after);
    assert(status == STATUS_OK);
    future_release(call);
    if (out == NULL)
        future_release(after);
    else
        *out = after;
    return status;
}

/* Moves the reply into a future that is still referenced. */
static void calls_keep_value(struct future *call, struct rpc_arrival *arrival)
{
    endpoint_move(&call->frames, arrival->frames);
    call->has_frames = true;
    call->body = arrival->body;
    rules_open_message(&call->value, &arrival->header,
                       call->body.bytes != NULL ? call->body.bytes : call->frames.payload, arrival->lent);
    future_complete(call, STATUS_OK, NULL);
}

const char *calls_receive_reply(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival)
{
    const struct wire_header *header = &arrival->header;
    struct future *call = pending_find(rpc, session, header->request);
    if (call == NULL) {
        rpc->counters.stale++;
        arrival_drop(arrival);
        return NULL;
    }
    if (call->call.method != header->method || arrival->body_state == STATUS_INVALID) {
        arrival_drop(arrival);
        return call->call.method != header->method ? "a reply's method is not its request's"
                                                   : "a reply whose body has not come";
    }
    if (header->status != STATUS_OK) {
        struct rpc_text *text = text_new(arrival->frames->payload, header->payload_bytes);
        arrival_drop(arrival);
        future_complete(call, header->status, text);
        text_release(text);
    } else if (arrival->body_state == STATUS_BUSY) {
        arrival_drop(arrival);
        calls_fail_call(call, STATUS_BUSY, "no room for the reply's body");
    } else if (call->references == 1) {
        arrival_drop(arrival);
        future_complete(call, STATUS_OK, NULL);
    } else {
        calls_keep_value(call, arrival);
    }
    futures_tell(rpc);
    return NULL;
}
