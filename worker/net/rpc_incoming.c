/* Serving requests: checks, dispatch, answers. Thread: the owner of the rpc.
 *
 * A request to oneself that is bad, or finds no memory, fails alone: the session with oneself cannot end. */
#include "worker/net/rpc_incoming.h"

#include "kernels/base/profile.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rpc_request {
    struct incoming *incoming;
    struct rpc_request *previous, *next; /* in the list of open requests, or of free ones */
    uint64_t id;
    uint16_t method, source;
    bool is_live;           /* the session that it came in goes on */
    rpc_answered *answered; /* NULL: none */
    void *answered_context;
    uint64_t answered_number;
    struct kept kept;
};

/* ---- requests ---- */

static struct rpc_request *request_open(struct incoming *incoming, uint16_t worker, struct arrival *arrival)
{
    struct rpc_request *request = incoming->free;
    if (request != NULL)
        incoming->free = request->next;
    else
        request = malloc(sizeof *request);
    if (request == NULL)
        return NULL;
    request->incoming = incoming;
    request->id = arrival->header.request;
    request->method = arrival->header.method;
    request->source = worker;
    request->is_live = true;
    request->answered = NULL;
    arrival_keep(arrival, &request->kept);
    request->previous = NULL;
    request->next = incoming->open;
    if (incoming->open != NULL)
        incoming->open->previous = request;
    incoming->open = request;
    incoming->open_count++;
    return request;
}

static void request_close(struct rpc_request *request)
{
    struct incoming *incoming = request->incoming;
    *(request->previous == NULL ? &incoming->open : &request->previous->next) = request->next;
    if (request->next != NULL)
        request->next->previous = request->previous;
    incoming->open_count--;
    kept_drop(&request->kept);
    request->next = incoming->free;
    incoming->free = request;
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

struct rpc *incoming_rpc_of(const struct rpc_request *request)
{
    return request->incoming->common->rpc;
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
    struct incoming *incoming = request->incoming;
    const uint16_t source = request->source;
    assert(status != STATUS_AGAIN);
    request_tell_answered(request);
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    if (request->is_live) {
        struct wire_header header = outgoing_header(incoming->outgoing, WIRE_REPLY, source);
        header.method = request->method;
        header.request = request->id;
        header.status = (uint8_t)status;
        if (outgoing_send_answer(incoming->outgoing, &header, value, text) != STATUS_OK)
            calls_fail(incoming->calls, source, request->id, STATUS_NO_MEMORY, "no memory for the answer");
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

void incoming_add_methods(struct incoming *incoming, const struct rpc_method *methods, size_t count,
                          void *context)
{
    for (size_t i = 0; i < count; i++) {
        const struct rpc_method *method = &methods[i];
        assert(method->method > METHOD_NONE && method->method < METHOD_COUNT);
        assert(method->tensor_count <= WIRE_TENSORS_MAX && incoming->services[method->method].method == NULL);
        incoming->services[method->method] = (struct rpc_service){method, context};
    }
}

enum status incoming_init(struct incoming *incoming, struct rpc_common *common, struct outgoing *outgoing,
                          struct calls *calls)
{
    incoming->common = common;
    incoming->outgoing = outgoing;
    incoming->calls = calls;
    incoming_add_methods(incoming, &echo_method, 1, NULL);
    incoming->sources = calloc(common->config.workers, sizeof *incoming->sources);
    for (uint32_t i = 0; i < common->config.workers; i++) { /* the pool begins with one for each worker */
        struct rpc_request *request = calloc(1, sizeof *request);
        if (request == NULL)
            return STATUS_NO_MEMORY;
        request->next = incoming->free;
        incoming->free = request;
    }
    return incoming->sources == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

void incoming_close(struct incoming *incoming, uint16_t worker)
{
    struct source *source = &incoming->sources[worker];
    for (struct rpc_request *request = incoming->open; request != NULL; request = request->next)
        if (request->source == worker)
            request->is_live = false;
    bodies_drop_arriving(&source->bodies);
    source->window = (struct replay_window){0};
}

/* Also of requests that their handlers have not answered. */
void incoming_fini(struct incoming *incoming)
{
    while (incoming->open != NULL) {
        request_tell_answered(incoming->open);
        request_close(incoming->open);
    }
    while (incoming->free != NULL) {
        struct rpc_request *next = incoming->free->next;
        free(incoming->free);
        incoming->free = next;
    }
    for (uint32_t i = 0; incoming->sources != NULL && i < incoming->common->config.workers; i++) {
        segment_detach(&incoming->sources[i].segment);
        bodies_drop_arriving(&incoming->sources[i].bodies);
    }
    free(incoming->sources);
}

/* ---- receiving ---- */

/* Checks that this worker may make this request. */
static enum status serve_check(const struct incoming *incoming, uint16_t worker,
                               const struct wire_header *header, struct error *error)
{
    const struct rpc_config *config = &incoming->common->config;
    const struct rpc_method *method = incoming->services[header->method].method;
    if (method == NULL || (method->callers & config->roster[worker]) == 0)
        return error_set(error, STATUS_PERMISSION, "method %u is not permitted here", header->method);
    if (!method->any_tensors && rules_check_tensors(method, config->rows_max, header, error) != STATUS_OK)
        return STATUS_INVALID;
    if (outgoing_is_unread(incoming->outgoing, worker))
        return error_set(error, STATUS_INVALID, "too many answers wait unread");
    return STATUS_OK;
}

static void serve_request(struct rpc_request *request, const struct arrival *arrival)
{
    struct incoming *incoming = request->incoming;
    const struct rpc_service *service = &incoming->services[request->method];
    const uint32_t incoming_max = incoming->common->config.incoming_max;
    if (incoming->open_count > incoming_max && !service->method->at_once) {
        rpc_fail(request, STATUS_BUSY, "%u calls are open, at most %u", incoming->open_count - 1,
                 incoming_max);
    } else if (arrival->body_state == STATUS_BUSY) {
        rpc_fail(request, STATUS_BUSY, "no room for a body of %u bytes", arrival->header.body_bytes);
    } else if (arrival->header.left_us == 0) {
        rpc_fail(request, STATUS_TIMEOUT, "the deadline passed before the request came");
    } else {
        incoming->common->callbacks++;
        service->method->handler(service->context, request, &request->kept.message);
        incoming->common->callbacks--;
    }
}

static enum status receive_request(struct incoming *incoming, uint16_t worker, struct arrival *arrival,
                                   struct error *error)
{
    struct rpc_request *request = NULL;
    enum status status = serve_check(incoming, worker, &arrival->header, error);
    if (status == STATUS_OK &&
        !replay_window_note(&incoming->sources[worker].window, arrival->header.request)) {
        incoming->common->counters.duplicates++;
        arrival_drop(arrival);
        return STATUS_OK;
    }
    if (status == STATUS_OK && arrival->body_state == STATUS_INVALID)
        status = error_set(error, STATUS_INVALID, "a request whose body has not come");
    if (status == STATUS_OK && (request = request_open(incoming, worker, arrival)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a request");
    if (status == STATUS_OK)
        serve_request(request, arrival);
    else
        arrival_drop(arrival);
    return status;
}

/* Finds the tensors that a peer lends. Its segment is mapped once, when the peer first lends a tensor. */
static enum status receive_lent(const struct incoming *incoming, uint16_t worker, struct arrival *arrival,
                                struct error *error)
{
    struct segment *segment = &incoming->sources[worker].segment;
    if (!rules_lends(&arrival->header))
        return STATUS_OK;
    if (!outgoing_lends(incoming->outgoing, worker))
        return error_set(error, STATUS_INVALID, "a tensor is lent, but %s",
                         incoming->common->config.outbox == NULL ? "this job has no shared memory"
                                                                 : "its worker is on another host");
    if (segment->data == NULL && segment_attach(segment, worker, 0, error) != STATUS_OK)
        return STATUS_INVALID;
    return rules_find_lent(&arrival->header, segment, arrival->lent, error);
}

enum status incoming_receive(struct incoming *incoming, uint16_t worker, struct arrival *arrival,
                             struct error *error)
{
    struct bodies *bodies = &incoming->sources[worker].bodies;
    const char *fault;
    if (arrival->header.kind == WIRE_PIECE) {
        fault = bodies_receive_piece(bodies, &arrival->header, arrival->frames.payload);
        endpoint_release(&arrival->frames);
    } else {
        arrival_take_body(arrival, bodies);
        if (receive_lent(incoming, worker, arrival, error) != STATUS_OK) {
            arrival_drop(arrival);
            return STATUS_INVALID;
        }
        if (arrival->header.kind == WIRE_REQUEST)
            return receive_request(incoming, worker, arrival, error);
        fault = calls_receive_reply(incoming->calls, worker, arrival);
    }
    return fault == NULL ? STATUS_OK : error_set(error, STATUS_INVALID, "%s", fault);
}

static void receive_own(struct incoming *incoming, struct arrival *arrival)
{
    const uint16_t self = incoming->common->config.worker;
    const struct endpoint_message *frames = &arrival->frames;
    const size_t payload_bytes = frames->payload_bytes - OWN_TAIL_BYTES;
    struct error error;
    const char *fault = NULL;
    enum status status =
        wire_decode(&arrival->header, frames->header, frames->header_bytes, payload_bytes, NULL);
    assert(status == STATUS_OK);
    memcpy(arrival->lent, frames->payload + payload_bytes, sizeof arrival->lent);
    incoming->common->counters.received++;
    if (arrival->header.kind == WIRE_REQUEST)
        status = receive_request(incoming, self, arrival, &error);
    else
        fault = calls_receive_reply(incoming->calls, self, arrival);
    assert(fault == NULL);
    (void)fault;
    if (status != STATUS_OK) {
        calls_fail(incoming->calls, self, arrival->header.request, status, error.text);
        calls_tell(incoming->calls);
    }
}

unsigned incoming_receive_own(struct incoming *incoming, const struct future *awaited)
{
    struct arrival arrival = {.body_state = STATUS_OK};
    unsigned count = 0;
    while (count < DRAIN_MAX && (awaited == NULL || !future_done(awaited)) &&
           outgoing_take_own(incoming->outgoing, &arrival.frames)) {
        receive_own(incoming, &arrival);
        count++;
    }
    return count;
}
