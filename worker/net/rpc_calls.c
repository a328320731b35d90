/* Pending calls, their completion, and the pool of futures. Thread: the owner of the rpc. */
#include "worker/net/rpc_calls.h"

#include "kernels/base/profile.h"
#include "worker/net/rpc_rules.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- futures ---- */

/* As many futures again as may be pending: calls that are done and not released. */
enum status calls_init(struct calls *calls, struct rpc_common *common, struct outgoing *outgoing)
{
    calls->common = common;
    calls->outgoing = outgoing;
    calls->future_count = 2 * (size_t)common->config.pending_max + 64;
    calls->futures = calloc(calls->future_count, sizeof *calls->futures);
    calls->sessions = calloc(common->config.workers, sizeof *calls->sessions);
    if (calls->futures == NULL || calls->sessions == NULL)
        return STATUS_NO_MEMORY;
    for (size_t i = calls->future_count; i-- > 0;) {
        calls->futures[i].next = calls->free;
        calls->free = &calls->futures[i];
    }
    calls->done_end = &calls->done_first;
    calls->next_deadline = MONOTIME_NEVER;
    return STATUS_OK;
}

static void future_drop_value(struct future *future)
{
    if (future->has_value)
        kept_drop(&future->value);
    future->has_value = false;
}

void calls_fini(struct calls *calls)
{
    for (size_t i = 0; calls->futures != NULL && i < calls->future_count; i++)
        future_drop_value(&calls->futures[i]);
    free(calls->futures);
    free(calls->sessions);
}

void future_release(struct future *future)
{
    assert(future == NULL || future->references > 0);
    if (future == NULL || --future->references > 0)
        return;
    future_drop_value(future);
    future->next = future->calls->free;
    future->calls->free = future;
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
    return future->is_done && future->status == STATUS_OK ? &future->value.message : NULL;
}

/* ---- pending calls ---- */

static struct future *call_find(const struct calls *calls, uint16_t worker, uint64_t request)
{
    struct future *call = calls->sessions[worker].first;
    while (call != NULL && call->request != request)
        call = call->next;
    return call;
}

static void call_add(struct future *call)
{
    struct calls *calls = call->calls;
    struct pending_calls *session = &calls->sessions[call->worker];
    call->next = NULL;
    *(session->first == NULL ? &session->first : &session->last->next) = call;
    session->last = call;
    calls->pending++;
    calls->next_deadline = monotime_earliest(calls->next_deadline, call->deadline);
}

static void call_remove(struct future *call)
{
    struct pending_calls *session = &call->calls->sessions[call->worker];
    struct future **at = &session->first, *before = NULL;
    while (*at != call) {
        before = *at;
        at = &before->next;
    }
    *at = call->next;
    if (session->last == call)
        session->last = before;
    call->calls->pending--;
}

static void call_complete(struct future *call, enum status status, const char *text, size_t text_bytes)
{
    struct calls *calls = call->calls;
    assert(!call->is_done && status != STATUS_AGAIN);
    call_remove(call);
    call->is_done = true;
    call->status = status;
    rules_copy_text(call->text, sizeof call->text, text, text_bytes);
    if (call->then == NULL) {
        future_release(call);
        return;
    }
    call->next = NULL;
    *calls->done_end = call;
    calls->done_end = &call->next;
}

static void call_fail(struct future *call, enum status status, const char *text)
{
    call_complete(call, status, text, strlen(text));
}

void calls_tell(struct calls *calls)
{
    if (calls->is_telling)
        return;
    calls->is_telling = true;
    while (calls->done_first != NULL) {
        struct future *future = calls->done_first;
        calls->done_first = future->next;
        if (calls->done_first == NULL)
            calls->done_end = &calls->done_first;
        calls->common->callbacks++;
        future->then(future, future->arg);
        calls->common->callbacks--;
        future_release(future);
    }
    calls->is_telling = false;
}

void calls_fail(struct calls *calls, uint16_t worker, uint64_t request, enum status why, const char *text)
{
    struct future *call = call_find(calls, worker, request);
    if (call != NULL)
        call_fail(call, why, text);
}

static bool future_is_pending(const struct future *future)
{
    return future->references > 0 && !future->is_done;
}

static struct future *calls_find_earliest(const struct calls *calls)
{
    struct future *earliest = NULL;
    for (size_t i = 0; i < calls->future_count; i++) {
        struct future *future = &calls->futures[i];
        if (future_is_pending(future) &&
            (earliest == NULL || monotime_before(future->deadline, earliest->deadline)))
            earliest = future;
    }
    return earliest;
}

struct monotime calls_next_deadline(const struct calls *calls)
{
    return calls->next_deadline;
}

void calls_expire(struct calls *calls)
{
    if (monotime_is_never(calls->next_deadline))
        return;
    const struct monotime now = monotime_now();
    while (!monotime_before(now, calls->next_deadline)) {
        struct future *call = calls_find_earliest(calls);
        calls->next_deadline = call == NULL ? MONOTIME_NEVER : call->deadline;
        if (call == NULL || monotime_before(now, calls->next_deadline))
            break;
        calls->common->counters.timeouts++;
        call_fail(call, STATUS_TIMEOUT, "no answer before the deadline");
    }
    calls_tell(calls);
}

void calls_close(struct calls *calls, uint16_t worker, enum status why, const char *text)
{
    while (calls->sessions[worker].first != NULL)
        call_fail(calls->sessions[worker].first, why, text);
    calls->sessions[worker].last_request = 0;
}

void calls_cancel(struct calls *calls, enum status why, const char *text)
{
    for (size_t i = 0; i < calls->future_count && calls->pending > 0; i++)
        if (future_is_pending(&calls->futures[i]))
            call_fail(&calls->futures[i], why, text);
}

/* ---- calling ---- */

enum status calls_begin(struct calls *calls, uint16_t worker, enum wire_method method,
                        const struct rpc_message *message, struct monotime deadline,
                        future_then_function *then, void *arg, struct future **out, struct error *error)
{
    const uint32_t pending_max = calls->common->config.pending_max;
    struct future *call = calls->pending < pending_max ? calls->free : NULL;
    if (call == NULL)
        return error_set(error, STATUS_BUSY, "%u calls are pending, at most %u", calls->pending, pending_max);
    struct wire_header header = outgoing_header(calls->outgoing, WIRE_REQUEST, worker);
    header.method = (uint16_t)method;
    header.request = calls->sessions[worker].last_request + 1;
    header.left_us = monotime_is_never(deadline) ? UINT64_MAX : monotime_us_between(monotime_now(), deadline);
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    enum status status = outgoing_send_request(calls->outgoing, &header, message, error);
    profile_leave(before);
    if (status != STATUS_OK)
        return status;
    calls->free = call->next;
    calls->sessions[worker].last_request = header.request;
    call->calls = calls;
    call->references = out != NULL ? 2 : 1;
    call->is_done = false;
    call->status = STATUS_AGAIN;
    call->text[0] = '\0';
    call->worker = worker;
    call->request = header.request;
    call->method = header.method;
    call->deadline = deadline;
    call->then = then;
    call->arg = arg;
    call_add(call);
    if (out != NULL)
        *out = call;
    return STATUS_OK;
}

const char *calls_receive_reply(struct calls *calls, uint16_t worker, struct arrival *arrival)
{
    const struct wire_header *header = &arrival->header;
    struct future *call = call_find(calls, worker, header->request);
    const char *fault = NULL;
    if (call == NULL)
        calls->common->counters.stale++;
    else if (call->method != header->method)
        fault = "a reply's method is not its request's";
    else if (arrival->body_state == STATUS_INVALID)
        fault = "a reply whose body has not come";
    else if (header->status != STATUS_OK)
        call_complete(call, header->status, (const char *)arrival->frames.payload, header->payload_bytes);
    else if (arrival->body_state == STATUS_BUSY)
        call_fail(call, STATUS_BUSY, "no room for the reply's body");
    else if (call->references == 1 && call->then == NULL)
        call_complete(call, STATUS_OK, NULL, 0);
    else {
        arrival_keep(arrival, &call->value);
        call->has_value = true;
        call_complete(call, STATUS_OK, NULL, 0);
        calls_tell(calls);
        return NULL;
    }
    arrival_drop(arrival);
    if (fault == NULL)
        calls_tell(calls);
    return fault;
}
