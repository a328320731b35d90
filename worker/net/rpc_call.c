/* Calls that this worker makes, from rpc_call_then to the reply, the deadline, or the peer's death; and their
 * results, the futures.
 *
 * A future is referenced by its caller until future_release, and by the rpc while the call is pending and
 * until its function has run. Completing a call queues its function; futures_tell runs the queue at a place
 * where no object of the rpc is half done. So a function may call, cancel or release whatever it likes. */
#include "worker/net/rpc_internal.h"

#include "kernels/base/profile.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the pool ---- */

/* As many futures again as may be pending: calls that are done and not released. */
enum status futures_new(struct rpc *rpc)
{
    rpc->future_count = 2 * (size_t)rpc->config.pending_max + 64;
    rpc->futures = calloc(rpc->future_count, sizeof *rpc->futures);
    if (rpc->futures == NULL)
        return STATUS_NO_MEMORY;
    for (size_t i = rpc->future_count; i-- > 0;) {
        rpc->futures[i].next = rpc->free_futures;
        rpc->free_futures = &rpc->futures[i];
    }
    rpc->done_end = &rpc->done_first;
    rpc->next_deadline = MONOTIME_NEVER;
    return STATUS_OK;
}

static void future_drop_contents(struct future *future)
{
    if (future->has_frames)
        endpoint_release(&future->frames);
    future->has_frames = false;
    if (future->body.bytes != NULL)
        body_free(&future->body);
}

void futures_free(struct rpc *rpc)
{
    for (size_t i = 0; rpc->futures != NULL && i < rpc->future_count; i++)
        future_drop_contents(&rpc->futures[i]);
    free(rpc->futures);
}

void future_release(struct future *future)
{
    assert(future == NULL || future->references > 0);
    if (future == NULL || --future->references > 0)
        return;
    future_drop_contents(future);
    future->next = future->rpc->free_futures;
    future->rpc->free_futures = future;
}

bool future_done(const struct future *future)
{
    return future->is_done;
}

enum status future_status(const struct future *future)
{
    return future->status;
}

const char *future_text(const struct future *future)
{
    return future->text;
}

const struct rpc_message *future_value(const struct future *future)
{
    return future->is_done && future->status == STATUS_OK ? &future->value : NULL;
}

/* ---- pending calls ---- */

/* A session's pending calls stand in a list in the order of their ids, which is mostly that of the replies.
 */
static struct future **call_find(struct rpc_session *session, uint64_t request)
{
    struct future **at = &session->calls;
    while (*at != NULL && (*at)->request != request)
        at = &(*at)->next;
    return at;
}

static void call_add(struct rpc *rpc, struct rpc_session *session, struct future *call)
{
    call->next = NULL;
    *(session->calls == NULL ? &session->calls : &session->calls_last->next) = call;
    session->calls_last = call;
    rpc->pending++;
    rpc->next_deadline = monotime_earliest(rpc->next_deadline, call->deadline);
}

static void call_remove(struct rpc *rpc, struct future *call)
{
    struct rpc_session *session = call->session;
    struct future **at = &session->calls, *before = NULL;
    while (*at != call) {
        before = *at;
        at = &before->next;
    }
    *at = call->next;
    if (session->calls_last == call)
        session->calls_last = before;
    rpc->pending--;
}

static void call_complete(struct future *call, enum status status, const char *text, size_t text_bytes)
{
    struct rpc *rpc = call->rpc;
    assert(!call->is_done && status != STATUS_AGAIN);
    call_remove(rpc, call);
    call->is_done = true;
    call->status = status;
    rules_copy_text(call->text, sizeof call->text, text, text_bytes);
    if (call->then == NULL) {
        future_release(call);
        return;
    }
    call->next = NULL;
    *rpc->done_end = call;
    rpc->done_end = &call->next;
}

static void call_fail(struct future *call, enum status status, const char *text)
{
    call_complete(call, status, text, strlen(text));
}

void futures_tell(struct rpc *rpc)
{
    if (rpc->is_telling)
        return;
    rpc->is_telling = true;
    while (rpc->done_first != NULL) {
        struct future *future = rpc->done_first;
        rpc->done_first = future->next;
        if (rpc->done_first == NULL)
            rpc->done_end = &rpc->done_first;
        rpc->callbacks++;
        future->then(future, future->arg);
        rpc->callbacks--;
        future_release(future);
    }
    rpc->is_telling = false;
}

void calls_fail(struct rpc_session *session, uint64_t request, enum status why, const char *text)
{
    struct future *call = *call_find(session, request);
    if (call != NULL)
        call_fail(call, why, text);
}

static bool future_is_pending(const struct future *future)
{
    return future->references > 0 && !future->is_done;
}

static struct future *calls_find_earliest(struct rpc *rpc)
{
    struct future *earliest = NULL;
    for (size_t i = 0; i < rpc->future_count; i++) {
        struct future *future = &rpc->futures[i];
        if (future_is_pending(future) &&
            (earliest == NULL || monotime_before(future->deadline, earliest->deadline)))
            earliest = future;
    }
    return earliest;
}

/* No pending call's deadline comes before next_deadline, so that most turns look at no call. */
void calls_expire(struct rpc *rpc)
{
    if (monotime_is_never(rpc->next_deadline))
        return;
    const struct monotime now = monotime_now();
    while (!monotime_before(now, rpc->next_deadline)) {
        struct future *call = calls_find_earliest(rpc);
        rpc->next_deadline = call == NULL ? MONOTIME_NEVER : call->deadline;
        if (call == NULL || monotime_before(now, rpc->next_deadline))
            break;
        rpc->counters.timeouts++;
        call_fail(call, STATUS_TIMEOUT, "no answer before the deadline");
    }
    futures_tell(rpc);
}

void calls_complete(struct rpc *rpc, const struct rpc_session *session, enum status why, const char *text)
{
    for (size_t i = 0; i < rpc->future_count && rpc->pending > 0; i++) {
        struct future *future = &rpc->futures[i];
        if (future_is_pending(future) && (session == NULL || future->session == session))
            call_fail(future, why, text);
    }
}

void rpc_cancel_all(struct rpc *rpc, enum status why, const char *text)
{
    calls_complete(rpc, NULL, why, text);
    futures_tell(rpc);
}

/* ---- calling ---- */

enum status rpc_call_then(struct rpc *rpc, uint16_t worker, enum wire_method method,
                          const struct rpc_message *message, struct monotime deadline,
                          future_then_function *then, void *arg, struct future **out, struct error *error)
{
    struct rpc_session *session = session_of(rpc, worker);
    if (session == NULL || rpc->is_closing)
        return error_set(error, STATUS_NOT_FOUND, "worker %u has no session", worker);
    struct future *call = rpc->pending < rpc->config.pending_max ? rpc->free_futures : NULL;
    if (call == NULL)
        return error_set(error, STATUS_BUSY, "%u calls are pending, at most %u", rpc->pending,
                         rpc->config.pending_max);
    struct wire_header header;
    rpc_header(rpc, &header, WIRE_REQUEST, session->worker);
    header.method = (uint16_t)method;
    header.request = session->next_request;
    header.left_us = monotime_is_never(deadline) ? UINT64_MAX : monotime_us_between(monotime_now(), deadline);
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    enum status status = send_request(rpc, session, &header, message, error);
    profile_leave(before);
    if (status != STATUS_OK)
        return status;
    rpc->free_futures = call->next;
    call->rpc = rpc;
    call->references = out != NULL ? 2 : 1;
    call->is_done = false;
    call->status = STATUS_AGAIN;
    call->text[0] = '\0';
    call->session = session;
    call->request = session->next_request++;
    call->method = (uint16_t)method;
    call->deadline = deadline;
    call->then = then;
    call->arg = arg;
    call_add(rpc, session, call);
    if (out != NULL)
        *out = call;
    return STATUS_OK;
}

enum status rpc_call_async(struct rpc *rpc, uint16_t worker, enum wire_method method,
                           const struct rpc_message *message, struct monotime deadline, struct future **out,
                           struct error *error)
{
    return rpc_call_then(rpc, worker, method, message, deadline, NULL, NULL, out, error);
}

/* Moves the reply into a future that is still referenced. */
static void call_keep_value(struct future *call, struct rpc_arrival *arrival)
{
    endpoint_move(&call->frames, arrival->frames);
    call->has_frames = true;
    call->body = arrival->body;
    rules_open_message(&call->value, &arrival->header,
                       call->body.bytes != NULL ? call->body.bytes : call->frames.payload, arrival->lent);
    call_complete(call, STATUS_OK, NULL, 0);
}

const char *calls_receive_reply(struct rpc *rpc, struct rpc_session *session, struct rpc_arrival *arrival)
{
    const struct wire_header *header = &arrival->header;
    struct future *call = *call_find(session, header->request);
    if (call == NULL) {
        rpc->counters.stale++;
        arrival_drop(arrival);
        return NULL;
    }
    if (call->method != header->method || arrival->body_state == STATUS_INVALID) {
        arrival_drop(arrival);
        return call->method != header->method ? "a reply's method is not its request's"
                                              : "a reply whose body has not come";
    }
    if (header->status == STATUS_OK && arrival->body_state == STATUS_OK &&
        (call->references > 1 || call->then != NULL)) {
        call_keep_value(call, arrival);
    } else {
        if (header->status == STATUS_OK && arrival->body_state == STATUS_BUSY)
            call_fail(call, STATUS_BUSY, "no room for the reply's body");
        else
            call_complete(call, header->status, (const char *)arrival->frames->payload,
                          header->status == STATUS_OK ? 0 : header->payload_bytes);
        arrival_drop(arrival);
    }
    futures_tell(rpc);
    return NULL;
}
