/* Calls, requests and the turn: one thread, one loop that reads as a list. rpc_sessions.c knows who the peers
 * are, and carries the messages.
 *
 * A turn first takes the messages that have already arrived, without asking whether there are any: in a busy
 * exchange there is no other system call than libzmq's own. Only a turn that found nothing waits. A busy rpc
 * would therefore never look at its watches, so every GLANCE_TURNS-th turn looks at them without waiting.
 *
 * A call completes exactly once. A future is referenced by its caller until future_release, and by the rpc
 * while the call is pending and until its function has run. Completing a call queues its function; rpc_tell
 * runs the queue, where no object of the rpc is half done. So a function may call, cancel or release whatever
 * it likes. An object that ends is unlinked first and its callbacks run last. */
#include "worker/net/rpc.h"

#include "kernels/base/profile.h"
#include "worker/net/rpc_sessions.h"

#include <assert.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct future {
    struct rpc *rpc;
    struct future *next; /* in the list of free futures, of a peer's pending calls, or of calls that are done
                            and whose functions have not run yet */
    uint32_t references;
    bool is_done, has_value;
    enum status status;
    char text[WIRE_ERROR_TEXT_MAX + 1];
    uint16_t worker, method;
    uint64_t request;
    struct monotime deadline;
    future_then_function *then; /* NULL: none */
    void *arg;
    struct kept value;
};

struct rpc_request {
    struct rpc *rpc;
    struct rpc_request *previous, *next; /* in the list of open requests, or of free ones */
    uint64_t id;
    uint16_t method, source;
    bool is_live;           /* the session that it came in goes on */
    rpc_answered *answered; /* NULL: none */
    void *answered_context;
    uint64_t answered_number;
    struct kept kept;
};

/* The calls to one peer, and what has come from it. Of `window` and `bodies` no memory is touched before the
 * peer sends something: a client of few servers in a job of many workers pays for few. */
struct peer {
    struct future *first, *last; /* the pending calls, in the order of their ids, which is mostly that of the
                                    replies */
    uint64_t last_request;       /* the id of the newest request to it in this session */
    struct bodies bodies;
    struct segment segment; /* the peer's; mapped when it first lends a tensor, and kept */
    struct replay_window window;
};

/* A request without tensors that waits for room, and whose answer nobody needs. */
struct rpc_notice {
    struct rpc_notice *next;
    uint16_t worker;
    enum wire_method method;
    struct rpc_message message;
};

struct rpc_service {
    const struct rpc_method *method;
    void *context;
};

struct rpc_listener {
    rpc_left *left;
    void *context;
};

struct rpc_watched {
    int fd;
    void (*ready)(void *arg);
    void *arg;
};

struct rpc_beat {
    struct monotime (*beat)(void *arg);
    void *arg;
    struct monotime next;
};

struct rpc {
    struct rpc_config config; /* does not change after rpc_open */
    struct rpc_counters counters;
    struct sessions *sessions;
    struct peer *peers; /* (workers) */
    uint8_t *roster;
    unsigned callbacks; /* depth of callbacks running: none of them may start a turn */
    bool is_closing, in_turn, has_failed, is_telling;
    unsigned busy_turns;

    struct future *futures, *free_futures;
    size_t future_count;
    struct future *done_first, **done_end; /* calls that are done and whose functions have not run yet */
    uint32_t pending;
    struct monotime next_deadline; /* no pending call has an earlier one */
    struct rpc_notice *notices;

    struct rpc_service services[METHOD_COUNT];
    struct rpc_request *open, *free_requests; /* the open ones newest first */
    uint32_t open_count;

    struct rpc_listener listeners[RPC_LEFT_MAX];
    size_t listener_count;
    struct rpc_watched watched[ENDPOINT_WATCH_MAX];
    size_t watched_count;
    struct rpc_beat beats[RPC_BEATS_MAX];
    size_t beat_count;
};

/* ---- futures ---- */

static void future_drop_value(struct future *future)
{
    if (future->has_value)
        kept_drop(&future->value);
    future->has_value = false;
}

void future_release(struct future *future)
{
    assert(future == NULL || future->references > 0);
    if (future == NULL || --future->references > 0)
        return;
    future_drop_value(future);
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
    return future->is_done && future->status == STATUS_OK ? &future->value.message : NULL;
}

/* ---- pending calls ---- */

static struct future *call_find(const struct rpc *rpc, uint16_t worker, uint64_t request)
{
    struct future *call = rpc->peers[worker].first;
    while (call != NULL && call->request != request)
        call = call->next;
    return call;
}

static void call_add(struct future *call)
{
    struct rpc *rpc = call->rpc;
    struct peer *peer = &rpc->peers[call->worker];
    call->next = NULL;
    *(peer->first == NULL ? &peer->first : &peer->last->next) = call;
    peer->last = call;
    rpc->pending++;
    rpc->next_deadline = monotime_earliest(rpc->next_deadline, call->deadline);
}

static void call_remove(struct future *call)
{
    struct peer *peer = &call->rpc->peers[call->worker];
    struct future **at = &peer->first, *before = NULL;
    while (*at != call) {
        before = *at;
        at = &before->next;
    }
    *at = call->next;
    if (peer->last == call)
        peer->last = before;
    call->rpc->pending--;
}

static void call_complete(struct future *call, enum status status, const char *text, size_t text_bytes)
{
    struct rpc *rpc = call->rpc;
    assert(!call->is_done && status != STATUS_AGAIN);
    call_remove(call);
    call->is_done = true;
    call->status = status;
    message_copy_text(call->text, sizeof call->text, text, text_bytes);
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

/* Runs the functions of the calls that are done. */
static void rpc_tell(struct rpc *rpc)
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

/* Fails a call of this worker to itself, if it is pending still. */
static void rpc_fail_own(struct rpc *rpc, uint64_t request, enum status why, const char *text)
{
    struct future *call = call_find(rpc, rpc->config.worker, request);
    if (call != NULL)
        call_fail(call, why, text);
}

static bool future_is_pending(const struct future *future)
{
    return future->references > 0 && !future->is_done;
}

static struct future *rpc_find_earliest(const struct rpc *rpc)
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

/* Fails the calls whose deadline has passed. */
static void rpc_expire(struct rpc *rpc)
{
    if (monotime_is_never(rpc->next_deadline))
        return;
    const struct monotime now = monotime_now();
    while (!monotime_before(now, rpc->next_deadline)) {
        struct future *call = rpc_find_earliest(rpc);
        rpc->next_deadline = call == NULL ? MONOTIME_NEVER : call->deadline;
        if (call == NULL || monotime_before(now, rpc->next_deadline))
            break;
        rpc->counters.timeouts++;
        call_fail(call, STATUS_TIMEOUT, "no answer before the deadline");
    }
    rpc_tell(rpc);
}

static void rpc_fail_calls_to(struct rpc *rpc, uint16_t worker, enum status why, const char *text)
{
    while (rpc->peers[worker].first != NULL)
        call_fail(rpc->peers[worker].first, why, text);
    rpc->peers[worker].last_request = 0;
}

static void rpc_fail_calls(struct rpc *rpc, enum status why, const char *text)
{
    for (size_t i = 0; i < rpc->future_count && rpc->pending > 0; i++)
        if (future_is_pending(&rpc->futures[i]))
            call_fail(&rpc->futures[i], why, text);
}

void rpc_cancel_all(struct rpc *rpc, enum status why, const char *text)
{
    rpc_fail_calls(rpc, why, text);
    rpc_tell(rpc);
}

/* ---- notices ---- */

/* False: there is no room now. */
static bool notice_try(struct rpc *rpc, uint16_t worker, enum wire_method method,
                       const struct rpc_message *message)
{
    const enum status status =
        rpc_call_then(rpc, worker, method, message, MONOTIME_NEVER, NULL, NULL, NULL, NULL);
    return status != STATUS_BUSY && status != STATUS_NO_MEMORY;
}

void rpc_notify(struct rpc *rpc, uint16_t worker, enum wire_method method, const struct rpc_message *message)
{
    if (notice_try(rpc, worker, method, message))
        return;
    struct rpc_notice *notice = malloc(sizeof *notice);
    if (notice != NULL) {
        *notice = (struct rpc_notice){rpc->notices, worker, method, *message};
        rpc->notices = notice;
    } else if (worker != rpc->config.worker) {
        sessions_lose(rpc->sessions, worker);
    }
}

/* Sends the notices that find room, and drops those without a session. */
static void rpc_send_notices(struct rpc *rpc)
{
    for (struct rpc_notice **link = &rpc->notices; *link != NULL;) {
        struct rpc_notice *notice = *link;
        if (!notice_try(rpc, notice->worker, notice->method, &notice->message)) {
            link = &notice->next;
            continue;
        }
        *link = notice->next;
        free(notice);
    }
}

/* ---- requests of peers ---- */

static struct rpc_request *request_open(struct rpc *rpc, uint16_t worker, struct arrival *arrival)
{
    struct rpc_request *request = rpc->free_requests;
    if (request != NULL)
        rpc->free_requests = request->next;
    else
        request = malloc(sizeof *request);
    if (request == NULL)
        return NULL;
    request->rpc = rpc;
    request->id = arrival->header.request;
    request->method = arrival->header.method;
    request->source = worker;
    request->is_live = true;
    request->answered = NULL;
    arrival_keep(arrival, &request->kept);
    request->previous = NULL;
    request->next = rpc->open;
    if (rpc->open != NULL)
        rpc->open->previous = request;
    rpc->open = request;
    rpc->open_count++;
    return request;
}

static void request_close(struct rpc_request *request)
{
    struct rpc *rpc = request->rpc;
    *(request->previous == NULL ? &rpc->open : &request->previous->next) = request->next;
    if (request->next != NULL)
        request->next->previous = request->previous;
    rpc->open_count--;
    kept_drop(&request->kept);
    request->next = rpc->free_requests;
    rpc->free_requests = request;
}

static void request_tell_answered(struct rpc_request *request)
{
    rpc_answered *answered = request->answered;
    request->answered = NULL;
    if (answered != NULL)
        answered(request->answered_context, request->answered_number);
}

uint16_t rpc_request_source(const struct rpc_request *request)
{
    return request->source;
}

const struct rpc_message *rpc_request_message(const struct rpc_request *request)
{
    return &request->kept.message;
}

bool rpc_request_is_live(const struct rpc_request *request)
{
    return request->is_live;
}

void rpc_on_answer(struct rpc_request *request, rpc_answered *answered, void *context, uint64_t number)
{
    assert(request->answered == NULL);
    request->answered = answered;
    request->answered_context = context;
    request->answered_number = number;
}

/* ---- answering ---- */

/* Answers with `value`, or when `status` is not STATUS_OK with `text`. */
static void request_complete(struct rpc_request *request, enum status status, const struct rpc_message *value,
                             const char *text)
{
    struct rpc *rpc = request->rpc;
    assert(status != STATUS_AGAIN);
    request_tell_answered(request);
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    if (request->is_live) {
        struct wire_header header = {.kind = WIRE_REPLY,
                                     .destination = request->source,
                                     .method = request->method,
                                     .request = request->id,
                                     .status = (uint8_t)status};
        if (sessions_send_answer(rpc->sessions, &header, value, text) != STATUS_OK)
            rpc_fail_own(rpc, request->id, STATUS_NO_MEMORY, "no memory for the answer");
    }
    request_close(request);
    profile_leave(before);
}

void rpc_reply(struct rpc_request *request, const struct rpc_message *value)
{
    request_complete(request, STATUS_OK, value, NULL);
}

void rpc_fail(struct rpc_request *request, enum status status, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    request_complete(request, status, NULL, text);
}

static void serve_echo(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    (void)context;
    rpc_reply(request, message);
}

static const struct rpc_method echo_method = {
    .method = METHOD_ECHO, .callers = UINT8_MAX, .any_tensors = true, .handler = serve_echo};

/* ---- opening and closing ---- */

static enum status rpc_check_config(const struct rpc_config *config, struct error *error)
{
    assert(config->role != 0 && (config->role & (config->role - 1)) == 0);
    assert(config->worker < config->workers && config->roster[config->worker] == config->role);
    assert(config->pending_max >= 1 && config->incoming_max >= 1);
    if (config->welcome_bytes > WIRE_PAYLOAD_BYTES_MAX - WIRE_PROOF_BYTES)
        return error_set(error, STATUS_INVALID, "the job has %zu bytes, at most %d", config->welcome_bytes,
                         WIRE_PAYLOAD_BYTES_MAX - WIRE_PROOF_BYTES);
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium does not start");
    return STATUS_OK;
}

static void rpc_release(struct rpc *rpc, int linger_ms)
{
    rpc_send_notices(rpc); /* none is sent any more */
    for (size_t i = 0; rpc->futures != NULL && i < rpc->future_count; i++)
        future_drop_value(&rpc->futures[i]);
    while (rpc->open != NULL) { /* their handlers have not answered them */
        request_tell_answered(rpc->open);
        request_close(rpc->open);
    }
    while (rpc->free_requests != NULL) {
        struct rpc_request *next = rpc->free_requests->next;
        free(rpc->free_requests);
        rpc->free_requests = next;
    }
    for (uint32_t i = 0; rpc->peers != NULL && i < rpc->config.workers; i++) {
        segment_detach(&rpc->peers[i].segment);
        bodies_drop_arriving(&rpc->peers[i].bodies);
    }
    sessions_free(rpc->sessions, linger_ms);
    free(rpc->futures);
    free(rpc->peers);
    free(rpc->roster);
    free(rpc);
}

/* As many futures again as may be pending: calls that are done and not released. The pool of requests begins
 * with one for each worker. False: no memory. */
static bool rpc_allocate(struct rpc *rpc)
{
    const uint32_t workers = rpc->config.workers;
    rpc->future_count = 2 * (size_t)rpc->config.pending_max + 64;
    rpc->futures = calloc(rpc->future_count, sizeof *rpc->futures);
    rpc->peers = calloc(workers, sizeof *rpc->peers);
    rpc->roster = malloc(workers);
    if (rpc->futures == NULL || rpc->peers == NULL || rpc->roster == NULL)
        return false;
    for (size_t i = rpc->future_count; i-- > 0;) {
        rpc->futures[i].next = rpc->free_futures;
        rpc->free_futures = &rpc->futures[i];
    }
    for (uint32_t i = 0; i < workers; i++) {
        struct rpc_request *request = calloc(1, sizeof *request);
        if (request == NULL)
            return false;
        request->next = rpc->free_requests;
        rpc->free_requests = request;
    }
    memcpy(rpc->roster, rpc->config.roster, workers);
    rpc->config.roster = rpc->roster;
    return true;
}

enum status rpc_open(struct rpc **out, const struct rpc_config *config, const char *address,
                     struct error *error)
{
    enum status status = rpc_check_config(config, error);
    if (status != STATUS_OK)
        return status;
    struct rpc *rpc = calloc(1, sizeof *rpc);
    if (rpc == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for connections");
    rpc->config = *config;
    rpc->done_end = &rpc->done_first;
    rpc->next_deadline = MONOTIME_NEVER;
    status = rpc_allocate(rpc) ? sessions_open(&rpc->sessions, &rpc->config, &rpc->counters, address, error)
                               : error_set(error, STATUS_NO_MEMORY, "no memory for connections");
    if (status != STATUS_OK) {
        rpc_release(rpc, 0);
        return status;
    }
    rpc_add_methods(rpc, &echo_method, 1, NULL);
    rpc_add_methods(rpc, config->methods, config->method_count, config->context);
    if (config->left != NULL)
        rpc_on_left(rpc, config->left, config->context);
    *out = rpc;
    return STATUS_OK;
}

enum status rpc_dial(struct rpc *rpc, const struct rpc_address *addresses, size_t count,
                     struct monotime deadline, struct error *error)
{
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    return sessions_dial(rpc->sessions, addresses, count, deadline, error);
}

void rpc_add_methods(struct rpc *rpc, const struct rpc_method *methods, size_t count, void *context)
{
    for (size_t i = 0; i < count; i++) {
        const struct rpc_method *method = &methods[i];
        assert(method->method > METHOD_NONE && method->method < METHOD_COUNT);
        assert(rpc->services[method->method].method == NULL);
        rpc->services[method->method] = (struct rpc_service){method, context};
    }
}

void rpc_on_left(struct rpc *rpc, rpc_left *left, void *context)
{
    assert(rpc->listener_count < RPC_LEFT_MAX);
    rpc->listeners[rpc->listener_count++] = (struct rpc_listener){left, context};
}

/* ---- questions ---- */

const char *rpc_welcome(const struct rpc *rpc, size_t *bytes)
{
    return sessions_job(rpc->sessions, bytes);
}

uint16_t rpc_worker(const struct rpc *rpc)
{
    return rpc->config.worker;
}

uint32_t rpc_workers(const struct rpc *rpc)
{
    return rpc->config.workers;
}

bool rpc_reaches(const struct rpc *rpc, uint16_t worker)
{
    return sessions_is_live(rpc->sessions, worker, UINT32_MAX);
}

bool rpc_is_far(const struct rpc *rpc, uint16_t worker)
{
    return sessions_is_far(rpc->sessions, worker);
}

uint16_t rpc_far_port(const struct rpc *rpc)
{
    return sessions_far_port(rpc->sessions);
}

bool rpc_is_gone(const struct rpc *rpc, uint16_t worker)
{
    return sessions_is_gone(rpc->sessions, worker);
}

void rpc_counters(const struct rpc *rpc, struct rpc_counters *counters)
{
    const struct endpoint_counts counts = sessions_strangers(rpc->sessions);
    *counters = rpc->counters;
    counters->unproven = counts.unproven;
    counters->refused = counts.refused;
    counters->crowded = counts.crowded;
}

/* ---- the end of a session: BYE, a death, a bad message ---- */

static void rpc_call_left(struct rpc *rpc, uint16_t worker, enum status why, const char *text)
{
    if (rpc->is_closing)
        return;
    rpc->callbacks++;
    for (size_t i = 0; i < rpc->listener_count; i++)
        rpc->listeners[i].left(rpc->listeners[i].context, worker, why, text);
    rpc->callbacks--;
}

/* Detaches the peer's open requests, fails the calls to it with `call_status`, and calls `left`. Does
 * nothing without a session, or if the worker is this one. The text is copied first: it may lie in a
 * message or an object that ends here. */
static void rpc_end_session(struct rpc *rpc, uint16_t worker, enum status why, enum status call_status,
                            const char *text, bool says_bye)
{
    char copy[WIRE_ERROR_TEXT_MAX + 1];
    if (!rpc_reaches(rpc, worker) || worker == rpc->config.worker)
        return;
    snprintf(copy, sizeof copy, "%s", text);
    struct peer *peer = &rpc->peers[worker];
    for (struct rpc_request *request = rpc->open; request != NULL; request = request->next)
        if (request->source == worker)
            request->is_live = false;
    bodies_drop_arriving(&peer->bodies);
    peer->window = (struct replay_window){0};
    sessions_close(rpc->sessions, worker, says_bye ? copy : NULL);
    rpc_send_notices(rpc);
    rpc_fail_calls_to(rpc, worker, call_status, copy);
    rpc_call_left(rpc, worker, why, copy);
    rpc_tell(rpc);
}

static void rpc_end_dead(struct rpc *rpc, uint16_t worker, const char *text)
{
    rpc_end_session(rpc, worker, STATUS_PEER_DIED, STATUS_PEER_DIED, text, true);
}

static void rpc_end_bad(struct rpc *rpc, uint16_t worker, const char *text)
{
    rpc->counters.bad++;
    rpc_end_session(rpc, worker, STATUS_INVALID, STATUS_PEER_DIED, text, true);
}

void rpc_peer_died(struct rpc *rpc, uint16_t worker, uint32_t incarnation, const char *text)
{
    if (sessions_is_live(rpc->sessions, worker, incarnation))
        rpc_end_dead(rpc, worker, text);
}

void rpc_reject_worker(struct rpc *rpc, uint16_t worker, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (rpc_reaches(rpc, worker))
        rpc_end_bad(rpc, worker, text);
}

void rpc_reject(struct rpc_request *request, const char *format, ...)
{
    char text[WIRE_ERROR_TEXT_MAX + 1];
    struct rpc *rpc = request->rpc;
    const uint16_t source = request->source;
    const bool costs_session = request->is_live && source != rpc->config.worker;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    rpc_fail(request, STATUS_INVALID, "%s", text);
    if (costs_session)
        rpc_end_bad(rpc, source, text);
}

/* Ends the sessions whose peers a send has found gone. */
static void rpc_end_lost(struct rpc *rpc)
{
    for (int worker; (worker = sessions_find_lost(rpc->sessions)) >= 0;)
        rpc_end_dead(rpc, (uint16_t)worker, "the connection is gone");
}

/* ---- closing ---- */

void rpc_free(struct rpc *rpc, const char *why, int linger_ms)
{
    if (rpc == NULL)
        return;
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    struct monotime deadline = monotime_add_us(monotime_now(), (uint64_t)linger_ms * 1000);
    if (why == NULL)
        why = "";
    rpc->is_closing = true;
    sessions_flush_until(rpc->sessions, deadline);
    rpc_fail_calls(rpc, STATUS_SHUTDOWN, why);
    for (uint32_t i = 0; i < rpc->config.workers; i++)
        rpc_end_session(rpc, (uint16_t)i, STATUS_SHUTDOWN, STATUS_SHUTDOWN, why, true);
    rpc_tell(rpc);
    sessions_flush_until(rpc->sessions, deadline);
    uint64_t left_us = monotime_us_between(monotime_now(), deadline);
    rpc_release(rpc, (int)(left_us / 1000));
}

/* ---- messages that arrive ---- */

/* The order of checks, behind those of the header and its sender: what is lent, method and caller, tensors,
 * unread answers, repetition, whether the body has come. A peer that sends a request while more than
 * REPLIES_HELD_MAX answers, or HELD_BYTES_MAX bytes of answers, wait for it loses its session. A request to
 * oneself that is bad, or finds no memory, fails alone: the session with oneself cannot end. */

/* Checks that this worker may make this request. */
static enum status serve_check(const struct rpc *rpc, uint16_t worker, const struct wire_header *header,
                               struct error *error)
{
    const struct rpc_config *config = &rpc->config;
    const struct rpc_method *method = rpc->services[header->method].method;
    if (method == NULL || (method->callers & config->roster[worker]) == 0)
        return error_set(error, STATUS_PERMISSION, "method %u is not permitted here", header->method);
    if (!method->any_tensors && message_check_tensors(method, header, error) != STATUS_OK)
        return STATUS_INVALID;
    if (sessions_is_unread(rpc->sessions, worker))
        return error_set(error, STATUS_INVALID, "too many answers wait unread");
    return STATUS_OK;
}

static void serve_request(struct rpc_request *request, const struct arrival *arrival)
{
    struct rpc *rpc = request->rpc;
    const struct rpc_service *service = &rpc->services[request->method];
    const uint32_t incoming_max = rpc->config.incoming_max;
    if (rpc->open_count > incoming_max && !service->method->at_once) {
        rpc_fail(request, STATUS_BUSY, "%u calls are open, at most %u", rpc->open_count - 1, incoming_max);
    } else if (arrival->body_state == STATUS_BUSY) {
        rpc_fail(request, STATUS_BUSY, "no room for a body of %u bytes", arrival->header.body_bytes);
    } else if (arrival->header.left_us == 0) {
        rpc_fail(request, STATUS_TIMEOUT, "the deadline passed before the request came");
    } else {
        rpc->callbacks++;
        service->method->handler(service->context, request, &request->kept.message);
        rpc->callbacks--;
    }
}

static enum status receive_request(struct rpc *rpc, uint16_t worker, struct arrival *arrival,
                                   struct error *error)
{
    struct rpc_request *request = NULL;
    enum status status = serve_check(rpc, worker, &arrival->header, error);
    if (status == STATUS_OK && !replay_window_note(&rpc->peers[worker].window, arrival->header.request)) {
        rpc->counters.duplicates++;
        arrival_drop(arrival);
        return STATUS_OK;
    }
    if (status == STATUS_OK && arrival->body_state == STATUS_INVALID)
        status = error_set(error, STATUS_INVALID, "a request whose body has not come");
    if (status == STATUS_OK && (request = request_open(rpc, worker, arrival)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a request");
    if (status == STATUS_OK)
        serve_request(request, arrival);
    else
        arrival_drop(arrival);
    return status;
}

/* Completes the call of a reply, and takes the arrival over. Returns the fault that costs the sender the
 * session, or NULL. */
static const char *receive_reply(struct rpc *rpc, uint16_t worker, struct arrival *arrival)
{
    const struct wire_header *header = &arrival->header;
    struct future *call = call_find(rpc, worker, header->request);
    const char *fault = NULL;
    if (call == NULL)
        rpc->counters.stale++;
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
        rpc_tell(rpc);
        return NULL;
    }
    arrival_drop(arrival);
    if (fault == NULL)
        rpc_tell(rpc);
    return fault;
}

/* Finds the tensors that a peer lends. Its segment is mapped once, when the peer first lends a tensor. */
static enum status receive_lent(const struct rpc *rpc, uint16_t worker, struct arrival *arrival,
                                struct error *error)
{
    struct segment *segment = &rpc->peers[worker].segment;
    if (!message_lends(&arrival->header))
        return STATUS_OK;
    if (!sessions_lends(rpc->sessions, worker))
        return error_set(error, STATUS_INVALID, "a tensor is lent, but %s",
                         rpc->config.outbox == NULL ? "this job has no shared memory"
                                                    : "its worker is on another host");
    if (segment->data == NULL && segment_attach(segment, worker, 0, error) != STATUS_OK)
        return STATUS_INVALID;
    return message_find_lent(&arrival->header, segment, arrival->lent, error);
}

/* Takes over a request, a reply or a piece of a session. A failure, in *error, costs its sender the session.
 */
static enum status rpc_receive_call(struct rpc *rpc, uint16_t worker, struct arrival *arrival,
                                    struct error *error)
{
    struct bodies *bodies = &rpc->peers[worker].bodies;
    const char *fault;
    if (arrival->header.kind == WIRE_PIECE) {
        fault = bodies_receive_piece(bodies, &arrival->header, arrival->frames.payload);
        endpoint_release(&arrival->frames);
    } else {
        arrival_take_body(arrival, bodies);
        if (receive_lent(rpc, worker, arrival, error) != STATUS_OK) {
            arrival_drop(arrival);
            return STATUS_INVALID;
        }
        if (arrival->header.kind == WIRE_REQUEST)
            return receive_request(rpc, worker, arrival, error);
        fault = receive_reply(rpc, worker, arrival);
    }
    return fault == NULL ? STATUS_OK : error_set(error, STATUS_INVALID, "%s", fault);
}

static void receive_own(struct rpc *rpc, struct arrival *arrival)
{
    const uint16_t self = rpc->config.worker;
    const struct endpoint_message *frames = &arrival->frames;
    const size_t payload_bytes = frames->payload_bytes - OWN_TAIL_BYTES;
    struct error error;
    const char *fault = NULL;
    enum status status =
        wire_decode(&arrival->header, frames->header, frames->header_bytes, payload_bytes, NULL);
    assert(status == STATUS_OK);
    memcpy(arrival->lent, frames->payload + payload_bytes, sizeof arrival->lent);
    if (arrival->header.kind == WIRE_REQUEST)
        status = receive_request(rpc, self, arrival, &error);
    else
        fault = receive_reply(rpc, self, arrival);
    assert(fault == NULL);
    (void)fault;
    if (status != STATUS_OK) {
        rpc_fail_own(rpc, arrival->header.request, status, error.text);
        rpc_tell(rpc);
    }
}

/* Serves what this worker has sent to itself, as if it had arrived, until there is nothing or `awaited` is
 * done. Returns how many messages. */
static unsigned rpc_receive_own(struct rpc *rpc, const struct future *awaited)
{
    struct arrival arrival = {.body_state = STATUS_OK};
    unsigned count = 0;
    while (count < DRAIN_MAX && (awaited == NULL || !future_done(awaited)) &&
           sessions_take_own(rpc->sessions, &arrival.frames)) {
        receive_own(rpc, &arrival);
        count++;
    }
    return count;
}

static void rpc_receive_hello(struct rpc *rpc, size_t socket, struct arrival *hello)
{
    const struct rpc_config *config = &rpc->config;
    const uint16_t worker = hello->header.source;
    rpc_end_dead(rpc, worker, "replaced by a later incarnation");
    const bool has_joined = sessions_accept(rpc->sessions, socket, hello);
    endpoint_release(&hello->frames);
    if (!has_joined || config->joined == NULL)
        return;
    rpc->callbacks++;
    config->joined(config->context, worker);
    rpc->callbacks--;
}

static void rpc_receive_message(struct rpc *rpc, uint16_t worker, struct arrival *arrival)
{
    struct error error;
    if (arrival->header.kind == WIRE_BYE) {
        char text[WIRE_ERROR_TEXT_MAX + 1];
        message_copy_text(text, sizeof text, arrival->frames.payload, arrival->frames.payload_bytes);
        endpoint_release(&arrival->frames);
        rpc_end_session(rpc, worker, STATUS_PEER_DIED, STATUS_PEER_DIED, text, false);
    } else if (rpc_receive_call(rpc, worker, arrival, &error) != STATUS_OK) {
        rpc_end_bad(rpc, worker, error.text);
    }
}

/* False: there is no message, or the socket has failed. */
static bool rpc_receive_one(struct rpc *rpc, size_t socket)
{
    struct arrival arrival;
    struct error fault;
    uint16_t worker;
    switch (sessions_receive(rpc->sessions, socket, &arrival, &worker, &fault)) {
    case RECEIVED_NOTHING:
        return false;
    case RECEIVED_FAILURE:
        rpc->has_failed = true;
        return false;
    case RECEIVED_DROPPED:
        return true;
    case RECEIVED_FAULT:
        rpc_end_bad(rpc, worker, fault.text);
        return true;
    case RECEIVED_HELLO:
        rpc_receive_hello(rpc, socket, &arrival);
        return true;
    case RECEIVED_MESSAGE:
        rpc_receive_message(rpc, worker, &arrival);
    }
    return true;
}

/* ---- the turn ---- */

enum status rpc_watch(struct rpc *rpc, int fd, void (*ready)(void *arg), void *arg)
{
    if (rpc->watched_count == ENDPOINT_WATCH_MAX)
        return STATUS_BUSY;
    rpc->watched[rpc->watched_count++] = (struct rpc_watched){fd, ready, arg};
    return STATUS_OK;
}

static const struct monotime AT_ONCE = {1};

void rpc_on_turn(struct rpc *rpc, struct monotime (*beat)(void *arg), void *arg)
{
    assert(rpc->beat_count < RPC_BEATS_MAX);
    rpc->beats[rpc->beat_count++] = (struct rpc_beat){beat, arg, AT_ONCE};
}

/* Handles the messages that have arrived, up to a bound. It stops at the reply that the caller waits for: a
 * caller that calls again at once then saves a look at an empty queue. */
static unsigned rpc_drain(struct rpc *rpc, const struct future *awaited)
{
    const size_t sockets = sessions_socket_count(rpc->sessions);
    unsigned count = rpc_receive_own(rpc, awaited);
    for (size_t i = 0; i < sockets && (awaited == NULL || !future_done(awaited)); i++) {
        for (unsigned taken = 0; taken < DRAIN_MAX && rpc_receive_one(rpc, i); taken++) {
            count++;
            if (awaited != NULL && future_done(awaited))
                return count;
        }
    }
    return count;
}

/* Waits (a time of 0: looks), and calls the watches that are ready. */
static void rpc_wait_and_watch(struct rpc *rpc, struct monotime until)
{
    struct endpoint_watch watches[ENDPOINT_WATCH_MAX];
    size_t count = rpc->watched_count;
    for (size_t i = 0; i < count; i++)
        watches[i] = (struct endpoint_watch){.fd = rpc->watched[i].fd};
    const enum profile_kind before = profile_enter(until.ns > 0 ? PROFILE_WAITING : PROFILE_TRANSPORT);
    if (sessions_wait(rpc->sessions, watches, count, until) != STATUS_OK)
        rpc->has_failed = true;
    profile_leave(before);
    rpc->callbacks++;
    for (size_t i = 0; i < count; i++)
        if (watches[i].ready)
            rpc->watched[i].ready(rpc->watched[i].arg);
    rpc->callbacks--;
}

static struct monotime rpc_wake_time(const struct rpc *rpc, struct monotime until)
{
    enum { RETRY_US = 1000 };
    until = monotime_earliest(until, rpc->next_deadline);
    if (rpc->notices != NULL)
        until = monotime_earliest(until, monotime_add_us(monotime_now(), RETRY_US));
    for (size_t i = 0; i < rpc->beat_count; i++)
        until = monotime_earliest(until, rpc->beats[i].next);
    return until;
}

static void rpc_run_beats(struct rpc *rpc)
{
    rpc->callbacks++;
    for (size_t i = 0; i < rpc->beat_count; i++)
        rpc->beats[i].next = rpc->beats[i].beat(rpc->beats[i].arg);
    rpc->callbacks--;
}

/* A turn that has learned of the end of a dialed session does not wait. Later turns do: the other sessions,
 * the watches and the beats go on. */
static enum status rpc_run_turn(struct rpc *rpc, struct monotime until, const struct future *awaited)
{
    const unsigned gone_before = sessions_gone_count(rpc->sessions);
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    rpc->in_turn = true;
    rpc_tell(rpc);
    rpc_end_lost(rpc);
    bool is_news = sessions_gone_count(rpc->sessions) != gone_before;
    bool is_idle = rpc_drain(rpc, awaited) == 0 && !is_news && !rpc->has_failed;
    if (is_idle || ++rpc->busy_turns >= GLANCE_TURNS) {
        rpc->busy_turns = 0;
        rpc_wait_and_watch(rpc, is_idle ? rpc_wake_time(rpc, until) : (struct monotime){0});
        if (is_idle)
            rpc_drain(rpc, awaited);
    }
    rpc_expire(rpc);
    sessions_flush(rpc->sessions);
    rpc_end_lost(rpc);
    rpc_run_beats(rpc);
    rpc_send_notices(rpc);
    rpc->in_turn = false;
    profile_leave(before);
    if (rpc->has_failed)
        return STATUS_IO;
    return sessions_gone_count(rpc->sessions) == 0 ? STATUS_OK : STATUS_PEER_DIED;
}

enum status rpc_turn(struct rpc *rpc, struct monotime until)
{
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    return rpc_run_turn(rpc, until, NULL);
}

/* ---- calling ---- */

enum status rpc_call_then(struct rpc *rpc, uint16_t worker, enum wire_method method,
                          const struct rpc_message *message, struct monotime deadline,
                          future_then_function *then, void *arg, struct future **out, struct error *error)
{
    const uint32_t pending_max = rpc->config.pending_max;
    if (!rpc_reaches(rpc, worker) || rpc->is_closing)
        return error_set(error, STATUS_NOT_FOUND, "worker %u has no session", worker);
    struct future *call = rpc->pending < pending_max ? rpc->free_futures : NULL;
    if (call == NULL)
        return error_set(error, STATUS_BUSY, "%u calls are pending, at most %u", rpc->pending, pending_max);
    struct wire_header header = {
        .kind = WIRE_REQUEST,
        .destination = worker,
        .method = (uint16_t)method,
        .request = rpc->peers[worker].last_request + 1,
        .left_us = monotime_is_never(deadline) ? UINT64_MAX : monotime_us_between(monotime_now(), deadline)};
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    enum status status = sessions_send_request(rpc->sessions, &header, message, error);
    profile_leave(before);
    if (status != STATUS_OK)
        return status;
    rpc->free_futures = call->next;
    rpc->peers[worker].last_request = header.request;
    call->rpc = rpc;
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

enum status rpc_call_async(struct rpc *rpc, uint16_t worker, enum wire_method method,
                           const struct rpc_message *message, struct monotime deadline, struct future **out,
                           struct error *error)
{
    return rpc_call_then(rpc, worker, method, message, deadline, NULL, NULL, out, error);
}

enum status rpc_wait(struct rpc *rpc, struct future *future, struct error *error)
{
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    while (!future_done(future))
        if (rpc_run_turn(rpc, MONOTIME_NEVER, future) == STATUS_IO)
            rpc_cancel_all(rpc, STATUS_IO, "the socket failed");
    if (future_status(future) != STATUS_OK)
        return error_set(error, future_status(future), "%s", future_text(future));
    return STATUS_OK;
}

enum status rpc_call(struct rpc *rpc, uint16_t worker, enum wire_method method,
                     const struct rpc_message *message, struct monotime deadline, struct future **out,
                     struct error *error)
{
    struct future *call = NULL;
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    enum status status = rpc_call_async(rpc, worker, method, message, deadline, &call, error);
    if (status == STATUS_OK)
        status = rpc_wait(rpc, call, error);
    if (out != NULL)
        *out = status == STATUS_OK ? call : NULL;
    if (out == NULL || status != STATUS_OK)
        future_release(call);
    return status;
}
