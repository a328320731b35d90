/* Opening, closing, and the turn: one thread, one loop that reads as a list.
 *
 * A turn first takes the messages that have already arrived, without asking whether there are any: in a busy
 * exchange there is no other system call than libzmq's own. Only a turn that found nothing waits. A busy rpc
 * would therefore never look at its watches, so every GLANCE_TURNS-th turn looks at them without waiting. */
#include "worker/net/rpc_internal.h"

#include "kernels/base/profile.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)ENDPOINT_SET_MAX >= 2 + RPC_DIALED_MAX, "two bound sockets and all dialed ones");

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

void rpc_add_methods(struct rpc *rpc, const struct rpc_method *methods, size_t count, void *context)
{
    for (size_t i = 0; i < count; i++) {
        const struct rpc_method *method = &methods[i];
        assert(method->method > METHOD_NONE && method->method < METHOD_COUNT);
        assert(method->tensor_count <= WIRE_TENSORS_MAX && rpc->services[method->method].method == NULL);
        rpc->services[method->method] = (struct rpc_service){method, context};
    }
}

void rpc_on_left(struct rpc *rpc, rpc_left *left, void *context)
{
    assert(rpc->listener_count < RPC_LEFT_MAX);
    rpc->listeners[rpc->listener_count++] = (struct rpc_listener){left, context};
}

static void rpc_release(struct rpc *rpc, int linger_ms)
{
    futures_free(rpc);
    requests_free(rpc);
    sessions_free(rpc);
    free(rpc->roster);
    free(rpc->welcome);
    while (rpc->socket_count > 0)
        endpoint_free(rpc->sockets[--rpc->socket_count].endpoint, linger_ms);
    free(rpc);
}

static void *rpc_copy_of(const void *bytes, size_t count)
{
    void *copy = malloc(count);
    if (copy != NULL)
        memcpy(copy, bytes, count);
    return copy;
}

static enum status rpc_open_bound(struct rpc *rpc, const char *address, struct error *error)
{
    struct endpoint *endpoint;
    struct wire_pass pass;
    if (address == NULL)
        return STATUS_OK;
    greeting_make_pass(&pass, rpc->config.secret, rpc->config.worker);
    enum status status = endpoint_bind(&endpoint, address, &pass, rpc->config.workers, error);
    if (status == STATUS_OK)
        rpc_add_socket(rpc, endpoint, NULL, false);
    return status;
}

static enum status rpc_open_bound_far(struct rpc *rpc, struct error *error)
{
    struct endpoint *endpoint, *beside = rpc->socket_count > 0 ? rpc->endpoints[0] : NULL;
    const struct rpc_config *config = &rpc->config;
    if (config->far_address == NULL)
        return STATUS_OK;
    enum status status =
        endpoint_bind_far(&endpoint, beside, config->far_address, config->keys, config->workers, error);
    if (status == STATUS_OK)
        rpc_add_socket(rpc, endpoint, NULL, true);
    return status;
}

static enum status rpc_open_memory(struct rpc *rpc, struct error *error)
{
    const struct rpc_config *config = &rpc->config;
    rpc->roster = rpc_copy_of(config->roster, config->workers);
    rpc->config.roster = rpc->roster;
    if (rpc->roster == NULL || hello_keep_job(rpc, config->welcome, config->welcome_bytes) != STATUS_OK ||
        sessions_new(rpc) != STATUS_OK || futures_new(rpc) != STATUS_OK || requests_new(rpc) != STATUS_OK)
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
    rpc->config = *config;
    answers_serve_echo(rpc);
    rpc_add_methods(rpc, config->methods, config->method_count, config->context);
    status = rpc_open_memory(rpc, error);
    if (status == STATUS_OK)
        status = rpc_open_bound(rpc, address, error);
    if (status == STATUS_OK)
        status = rpc_open_bound_far(rpc, error);
    if (status != STATUS_OK) {
        rpc_release(rpc, 0);
        return status;
    }
    self_open(rpc);
    *out = rpc;
    return STATUS_OK;
}

const char *rpc_welcome(const struct rpc *rpc, size_t *bytes)
{
    if (bytes != NULL)
        *bytes = rpc->welcome_bytes;
    return (const char *)rpc->welcome + WIRE_PROOF_BYTES;
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
    return worker < rpc->config.workers && rpc->sessions[worker].is_live;
}

bool rpc_lends_to(const struct rpc *rpc, uint16_t worker)
{
    return rpc_reaches(rpc, worker) && session_lends(rpc, &rpc->sessions[worker]);
}

bool rpc_is_far(const struct rpc *rpc, uint16_t worker)
{
    return rpc_reaches(rpc, worker) && worker != rpc->config.worker && rpc->sessions[worker].socket->is_far;
}

uint16_t rpc_far_port(const struct rpc *rpc)
{
    for (size_t i = 0; i < rpc->bound_count; i++)
        if (rpc->sockets[i].is_far)
            return endpoint_port(rpc->endpoints[i]);
    return 0;
}

bool rpc_is_gone(const struct rpc *rpc, uint16_t worker)
{
    return worker < rpc->config.workers && rpc->sessions[worker].was_live && !rpc->sessions[worker].is_live;
}

/* ---- closing ---- */

/* Moves the held messages into ZeroMQ's queues, which then has the rest of the time to send them. */
static void rpc_flush_until(struct rpc *rpc, struct monotime deadline)
{
    send_flush(rpc);
    while (rpc->held_total > 0 && monotime_before(monotime_now(), deadline)) {
        bool readable;
        struct monotime soon = monotime_earliest(deadline, monotime_add_us(monotime_now(), FLUSH_EVERY_US));
        struct endpoint_message message;
        for (size_t i = 0; i < rpc->socket_count; i++)
            while (endpoint_receive(rpc->endpoints[i], &message) == STATUS_OK)
                endpoint_release(&message);
        if (endpoint_wait(rpc->endpoints, rpc->socket_count, NULL, 0, true, soon, &readable) != STATUS_OK)
            return;
        send_flush(rpc);
    }
}

void rpc_free(struct rpc *rpc, const char *why, int linger_ms)
{
    if (rpc == NULL)
        return;
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    struct monotime deadline = monotime_add_us(monotime_now(), (uint64_t)linger_ms * 1000);
    if (why == NULL)
        why = "";
    rpc->is_closing = true;
    rpc->config.left = NULL;
    rpc->listener_count = 0;
    rpc_flush_until(rpc, deadline);
    calls_complete(rpc, NULL, STATUS_SHUTDOWN, why);
    for (size_t i = 0; i < rpc->config.workers; i++)
        session_end(rpc, &rpc->sessions[i], STATUS_SHUTDOWN, STATUS_SHUTDOWN, why);
    futures_tell(rpc);
    rpc_flush_until(rpc, deadline);
    uint64_t left_us = monotime_us_between(monotime_now(), deadline);
    rpc_release(rpc, (int)(left_us / 1000));
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
static unsigned rpc_drain_socket(struct rpc *rpc, const struct future *awaited)
{
    unsigned count = self_drain(rpc, awaited);
    for (size_t i = 0; i < rpc->socket_count && (awaited == NULL || !awaited->is_done); i++) {
        for (unsigned taken = 0; taken < DRAIN_MAX && receive_one(rpc, &rpc->sockets[i]); taken++) {
            count++;
            if (awaited != NULL && awaited->is_done)
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
    bool readable;
    for (size_t i = 0; i < count; i++)
        watches[i] = (struct endpoint_watch){.fd = rpc->watched[i].fd};
    const enum profile_kind before = profile_enter(until.ns > 0 ? PROFILE_WAITING : PROFILE_TRANSPORT);
    if (endpoint_wait(rpc->endpoints, rpc->socket_count, watches, count, rpc->held_total > 0, until,
                      &readable) != STATUS_OK)
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
    until = monotime_earliest(until, rpc->next_deadline);
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
    unsigned gone_before = rpc->gone_count;
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    rpc->in_turn = true;
    futures_tell(rpc);
    sessions_reap(rpc);
    bool is_news = rpc->gone_count != gone_before;
    bool is_idle = rpc_drain_socket(rpc, awaited) == 0 && !is_news && !rpc->has_failed;
    if (is_idle || ++rpc->busy_turns >= GLANCE_TURNS) {
        rpc->busy_turns = 0;
        rpc_wait_and_watch(rpc, is_idle ? rpc_wake_time(rpc, until) : (struct monotime){0});
        if (is_idle)
            rpc_drain_socket(rpc, awaited);
    }
    calls_expire(rpc);
    send_flush(rpc);
    sessions_reap(rpc);
    rpc_run_beats(rpc);
    rpc->in_turn = false;
    profile_leave(before);
    if (rpc->has_failed)
        return STATUS_IO;
    return rpc->gone_count == 0 ? STATUS_OK : STATUS_PEER_DIED;
}

enum status rpc_turn(struct rpc *rpc, struct monotime until)
{
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    return rpc_run_turn(rpc, until, NULL);
}

enum status rpc_wait(struct rpc *rpc, struct future *future, struct error *error)
{
    assert(rpc->callbacks == 0 && !rpc->in_turn);
    while (!future->is_done)
        if (rpc_run_turn(rpc, MONOTIME_NEVER, future) == STATUS_IO)
            rpc_cancel_all(rpc, STATUS_IO, "the socket failed");
    if (future->status != STATUS_OK)
        return error_set(error, future->status, "%s", future_text(future));
    return STATUS_OK;
}

enum status rpc_call(struct rpc *rpc, uint16_t worker, enum wire_method method,
                     const struct rpc_message *message, struct monotime deadline, struct future **out,
                     struct error *error)
{
    assert(rpc->callbacks == 0 && !rpc->in_turn);
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

void rpc_counters(const struct rpc *rpc, struct rpc_counters *counters)
{
    *counters = rpc->counters;
    if (rpc->bound_count == 0)
        return;
    const struct endpoint_counts counts = endpoint_counts(rpc->endpoints[0]);
    counters->unproven = counts.unproven;
    counters->refused = counts.refused;
    counters->crowded = counts.crowded;
}
