/* Opening, closing, and the turn: one thread, one loop that reads as a list.
 *
 * A turn first takes the messages that have already arrived, without asking whether there are any: in a busy
 * exchange there is no other system call than libzmq's own. Only a turn that found nothing waits. A busy rpc
 * would therefore never look at its watches, so every GLANCE_TURNS-th turn looks at them without waiting. */
#include "worker/net/rpc_internal.h"

#include "kernels/base/profile.h"

#include <assert.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLUSH_EVERY_US = 1000 };

/* ---- opening ---- */

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
    calls_fini(&rpc->calls);
    incoming_fini(&rpc->incoming);
    outgoing_fini(&rpc->outgoing);
    sessions_fini(&rpc->sessions, linger_ms);
    free(rpc->roster);
    free(rpc);
}

static enum status rpc_open_parts(struct rpc *rpc, struct error *error)
{
    struct rpc_common *common = &rpc->common;
    rpc->roster = malloc(common->config.workers);
    if (rpc->roster != NULL)
        memcpy(rpc->roster, common->config.roster, common->config.workers);
    common->config.roster = rpc->roster;
    if (rpc->roster == NULL || outgoing_init(&rpc->outgoing, common) != STATUS_OK ||
        calls_init(&rpc->calls, common, &rpc->outgoing) != STATUS_OK ||
        incoming_init(&rpc->incoming, common, &rpc->outgoing, &rpc->calls) != STATUS_OK ||
        sessions_init(&rpc->sessions, common, &rpc->outgoing) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no memory for connections");
    return STATUS_OK;
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
    rpc->common.rpc = rpc;
    rpc->common.config = *config;
    status = rpc_open_parts(rpc, error);
    if (status == STATUS_OK)
        status = sessions_bind(&rpc->sessions, address, error);
    if (status != STATUS_OK) {
        rpc_release(rpc, 0);
        return status;
    }
    rpc_add_methods(rpc, config->methods, config->method_count, config->context);
    *out = rpc;
    return STATUS_OK;
}

enum status rpc_dial(struct rpc *rpc, const struct rpc_address *addresses, size_t count,
                     struct monotime deadline, struct error *error)
{
    assert(rpc->common.callbacks == 0 && !rpc->in_turn);
    return sessions_dial(&rpc->sessions, addresses, count, deadline, error);
}

void rpc_add_methods(struct rpc *rpc, const struct rpc_method *methods, size_t count, void *context)
{
    incoming_add_methods(&rpc->incoming, methods, count, context);
}

void rpc_on_left(struct rpc *rpc, rpc_left *left, void *context)
{
    assert(rpc->listener_count < RPC_LEFT_MAX);
    rpc->listeners[rpc->listener_count++] = (struct rpc_listener){left, context};
}

/* ---- questions ---- */

const char *rpc_welcome(const struct rpc *rpc, size_t *bytes)
{
    return sessions_job(&rpc->sessions, bytes);
}

uint16_t rpc_worker(const struct rpc *rpc)
{
    return rpc->common.config.worker;
}

uint32_t rpc_workers(const struct rpc *rpc)
{
    return rpc->common.config.workers;
}

bool rpc_reaches(const struct rpc *rpc, uint16_t worker)
{
    return sessions_live(&rpc->sessions, worker) != NULL;
}

bool rpc_is_far(const struct rpc *rpc, uint16_t worker)
{
    return sessions_is_far(&rpc->sessions, worker);
}

uint16_t rpc_far_port(const struct rpc *rpc)
{
    return sessions_far_port(&rpc->sessions);
}

bool rpc_is_gone(const struct rpc *rpc, uint16_t worker)
{
    return sessions_is_gone(&rpc->sessions, worker);
}

void rpc_counters(const struct rpc *rpc, struct rpc_counters *counters)
{
    const struct endpoint_counts counts = sessions_strangers(&rpc->sessions);
    *counters = rpc->common.counters;
    counters->unproven = counts.unproven;
    counters->refused = counts.refused;
    counters->crowded = counts.crowded;
}

/* ---- the end of a session: BYE, a death, a bad message ---- */

static void rpc_call_left(struct rpc *rpc, uint16_t worker, enum status why, const char *text)
{
    const struct rpc_config *config = &rpc->common.config;
    if (rpc->is_closing)
        return;
    rpc->common.callbacks++;
    if (config->left != NULL)
        config->left(config->context, worker, why, text);
    for (size_t i = 0; i < rpc->listener_count; i++)
        rpc->listeners[i].left(rpc->listeners[i].context, worker, why, text);
    rpc->common.callbacks--;
}

/* Detaches the peer's open requests, fails the calls to it with `call_status`, and calls `left`. Nothing
 * happens where there is no session, and to that with oneself. The text is copied first: it may lie in a
 * message or an object that ends here. */
static void rpc_end_session(struct rpc *rpc, uint16_t worker, enum status why, enum status call_status,
                            const char *text, bool says_bye)
{
    char copy[WIRE_ERROR_TEXT_MAX + 1];
    if (!rpc_reaches(rpc, worker) || worker == rpc->common.config.worker)
        return;
    snprintf(copy, sizeof copy, "%s", text);
    incoming_close(&rpc->incoming, worker);
    outgoing_close(&rpc->outgoing, worker);
    sessions_close(&rpc->sessions, worker, says_bye ? copy : NULL);
    calls_close(&rpc->calls, worker, call_status, copy);
    rpc_call_left(rpc, worker, why, copy);
    calls_tell(&rpc->calls);
}

static void rpc_end_dead(struct rpc *rpc, uint16_t worker, const char *text)
{
    rpc_end_session(rpc, worker, STATUS_PEER_DIED, STATUS_PEER_DIED, text, true);
}

static void rpc_end_bad(struct rpc *rpc, uint16_t worker, const char *text)
{
    rpc->common.counters.bad++;
    rpc_end_session(rpc, worker, STATUS_INVALID, STATUS_PEER_DIED, text, true);
}

void rpc_peer_died(struct rpc *rpc, uint16_t worker, uint32_t incarnation, const char *text)
{
    const struct session *session = sessions_live(&rpc->sessions, worker);
    if (session != NULL && session->incarnation <= incarnation)
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
    struct rpc *rpc = incoming_rpc_of(request);
    const uint16_t source = rpc_request_source(request);
    const bool costs_session = rpc_request_is_live(request) && source != rpc->common.config.worker;
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
    for (int i = outgoing_next_lost(&rpc->outgoing, 0); i >= 0;
         i = outgoing_next_lost(&rpc->outgoing, (unsigned)i + 1))
        rpc_end_dead(rpc, (uint16_t)i, "the connection is gone");
}

/* ---- closing ---- */

/* Moves the held messages into ZeroMQ's queues, which then has the rest of the time to send them. */
static void rpc_flush_until(struct rpc *rpc, struct monotime deadline)
{
    size_t count;
    struct endpoint *const *endpoints = sessions_endpoints(&rpc->sessions, &count);
    outgoing_flush(&rpc->outgoing);
    while (outgoing_is_waiting(&rpc->outgoing) && monotime_before(monotime_now(), deadline)) {
        bool readable;
        struct monotime soon = monotime_earliest(deadline, monotime_add_us(monotime_now(), FLUSH_EVERY_US));
        struct endpoint_message message;
        for (size_t i = 0; i < count; i++)
            while (endpoint_receive(endpoints[i], &message) == STATUS_OK)
                endpoint_release(&message);
        if (endpoint_wait(endpoints, count, NULL, 0, true, soon, &readable) != STATUS_OK)
            return;
        outgoing_flush(&rpc->outgoing);
    }
}

void rpc_free(struct rpc *rpc, const char *why, int linger_ms)
{
    if (rpc == NULL)
        return;
    assert(rpc->common.callbacks == 0 && !rpc->in_turn);
    struct monotime deadline = monotime_add_us(monotime_now(), (uint64_t)linger_ms * 1000);
    if (why == NULL)
        why = "";
    rpc->is_closing = true;
    rpc_flush_until(rpc, deadline);
    calls_cancel(&rpc->calls, STATUS_SHUTDOWN, why);
    for (uint32_t i = 0; i < rpc->common.config.workers; i++)
        rpc_end_session(rpc, (uint16_t)i, STATUS_SHUTDOWN, STATUS_SHUTDOWN, why, true);
    calls_tell(&rpc->calls);
    rpc_flush_until(rpc, deadline);
    uint64_t left_us = monotime_us_between(monotime_now(), deadline);
    rpc_release(rpc, (int)(left_us / 1000));
}

/* ---- messages that arrive ---- */

static void rpc_receive_hello(struct rpc *rpc, size_t socket, struct arrival *hello)
{
    const struct rpc_config *config = &rpc->common.config;
    const uint16_t worker = hello->header.source;
    rpc_end_dead(rpc, worker, "replaced by a later incarnation");
    const bool has_joined = sessions_accept(&rpc->sessions, socket, hello);
    endpoint_release(&hello->frames);
    if (!has_joined || config->joined == NULL)
        return;
    rpc->common.callbacks++;
    config->joined(config->context, worker);
    rpc->common.callbacks--;
}

static void rpc_receive_message(struct rpc *rpc, uint16_t worker, struct arrival *arrival)
{
    struct error error;
    if (arrival->header.kind == WIRE_BYE) {
        char text[WIRE_ERROR_TEXT_MAX + 1];
        rules_copy_text(text, sizeof text, arrival->frames.payload, arrival->frames.payload_bytes);
        endpoint_release(&arrival->frames);
        rpc_end_session(rpc, worker, STATUS_PEER_DIED, STATUS_PEER_DIED, text, false);
    } else if (incoming_receive(&rpc->incoming, worker, arrival, &error) != STATUS_OK) {
        rpc_end_bad(rpc, worker, error.text);
    }
}

/* False: there is no message, or the socket has failed. */
static bool rpc_receive_one(struct rpc *rpc, size_t socket)
{
    struct arrival arrival;
    struct error fault;
    uint16_t worker;
    switch (sessions_receive(&rpc->sessions, socket, &arrival, &worker, &fault)) {
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

void rpc_hurry(struct rpc *rpc, const void *arg)
{
    for (size_t i = 0; i < rpc->beat_count; i++)
        if (rpc->beats[i].arg == arg)
            rpc->beats[i].next = AT_ONCE;
}

/* Handles the messages that have arrived, up to a bound. It stops at the reply that the caller waits for: a
 * caller that calls again at once then saves a look at an empty queue. */
static unsigned rpc_drain(struct rpc *rpc, const struct future *awaited)
{
    size_t sockets;
    unsigned count = incoming_receive_own(&rpc->incoming, awaited);
    sessions_endpoints(&rpc->sessions, &sockets);
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
    size_t count = rpc->watched_count, sockets;
    struct endpoint *const *endpoints = sessions_endpoints(&rpc->sessions, &sockets);
    bool readable;
    for (size_t i = 0; i < count; i++)
        watches[i] = (struct endpoint_watch){.fd = rpc->watched[i].fd};
    const enum profile_kind before = profile_enter(until.ns > 0 ? PROFILE_WAITING : PROFILE_TRANSPORT);
    if (endpoint_wait(endpoints, sockets, watches, count, outgoing_is_waiting(&rpc->outgoing), until,
                      &readable) != STATUS_OK)
        rpc->has_failed = true;
    profile_leave(before);
    rpc->common.callbacks++;
    for (size_t i = 0; i < count; i++)
        if (watches[i].ready)
            rpc->watched[i].ready(rpc->watched[i].arg);
    rpc->common.callbacks--;
}

static struct monotime rpc_wake_time(const struct rpc *rpc, struct monotime until)
{
    until = monotime_earliest(until, calls_next_deadline(&rpc->calls));
    for (size_t i = 0; i < rpc->beat_count; i++)
        until = monotime_earliest(until, rpc->beats[i].next);
    return until;
}

static void rpc_run_beats(struct rpc *rpc)
{
    rpc->common.callbacks++;
    for (size_t i = 0; i < rpc->beat_count; i++)
        rpc->beats[i].next = rpc->beats[i].beat(rpc->beats[i].arg);
    rpc->common.callbacks--;
}

/* A turn that has learned of the end of a dialed session does not wait. Later turns do: the other sessions,
 * the watches and the beats go on. */
static enum status rpc_run_turn(struct rpc *rpc, struct monotime until, const struct future *awaited)
{
    const unsigned gone_before = sessions_gone_count(&rpc->sessions);
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    rpc->in_turn = true;
    calls_tell(&rpc->calls);
    rpc_end_lost(rpc);
    bool is_news = sessions_gone_count(&rpc->sessions) != gone_before;
    bool is_idle = rpc_drain(rpc, awaited) == 0 && !is_news && !rpc->has_failed;
    if (is_idle || ++rpc->busy_turns >= GLANCE_TURNS) {
        rpc->busy_turns = 0;
        rpc_wait_and_watch(rpc, is_idle ? rpc_wake_time(rpc, until) : (struct monotime){0});
        if (is_idle)
            rpc_drain(rpc, awaited);
    }
    calls_expire(&rpc->calls);
    outgoing_flush(&rpc->outgoing);
    rpc_end_lost(rpc);
    rpc_run_beats(rpc);
    rpc->in_turn = false;
    profile_leave(before);
    if (rpc->has_failed)
        return STATUS_IO;
    return sessions_gone_count(&rpc->sessions) == 0 ? STATUS_OK : STATUS_PEER_DIED;
}

enum status rpc_turn(struct rpc *rpc, struct monotime until)
{
    assert(rpc->common.callbacks == 0 && !rpc->in_turn);
    return rpc_run_turn(rpc, until, NULL);
}

/* ---- calling ---- */

enum status rpc_call_then(struct rpc *rpc, uint16_t worker, enum wire_method method,
                          const struct rpc_message *message, struct monotime deadline,
                          future_then_function *then, void *arg, struct future **out, struct error *error)
{
    if (!rpc_reaches(rpc, worker) || rpc->is_closing)
        return error_set(error, STATUS_NOT_FOUND, "worker %u has no session", worker);
    return calls_begin(&rpc->calls, worker, method, message, deadline, then, arg, out, error);
}

enum status rpc_call_async(struct rpc *rpc, uint16_t worker, enum wire_method method,
                           const struct rpc_message *message, struct monotime deadline, struct future **out,
                           struct error *error)
{
    return rpc_call_then(rpc, worker, method, message, deadline, NULL, NULL, out, error);
}

enum status rpc_wait(struct rpc *rpc, struct future *future, struct error *error)
{
    assert(rpc->common.callbacks == 0 && !rpc->in_turn);
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
    assert(rpc->common.callbacks == 0 && !rpc->in_turn);
    struct future *call;
    *out = NULL;
    enum status status = rpc_call_async(rpc, worker, method, message, deadline, &call, error);
    if (status != STATUS_OK)
        return status;
    status = rpc_wait(rpc, call, error);
    if (status == STATUS_OK)
        *out = call;
    else
        future_release(call);
    return status;
}

void rpc_cancel_all(struct rpc *rpc, enum status why, const char *text)
{
    calls_cancel(&rpc->calls, why, text);
    calls_tell(&rpc->calls);
}
