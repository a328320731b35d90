/* The pool of request objects, and the queues they stand in.
 *
 * An object is a peer's call, from its arrival until its answer has left, or a message of this worker that
 * waits to leave. An object is in one queue at most. The pool is allocated at the start. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>

/* At most incoming_max requests and the one being refused are open. At most pending_max requests wait to
 * leave. Requests to oneself may be open or answered besides: incoming_max once more. So when the pool is
 * used up, at least REPLIES_HELD_MIN answers wait for peers, and send_make_room ends a peer's session: a
 * request that arrives always finds an object. */
static size_t requests_count(const struct rpc *rpc)
{
    return 2 * (size_t)rpc->config.incoming_max + rpc->config.pending_max + REPLIES_HELD_MIN + FAREWELLS_MAX;
}

enum status requests_new(struct rpc *rpc)
{
    size_t count = requests_count(rpc);
    rpc->requests = calloc(count, sizeof *rpc->requests);
    if (rpc->requests == NULL)
        return STATUS_NO_MEMORY;
    for (size_t i = count; i-- > 0;) {
        rpc->requests[i].next = rpc->free_requests;
        rpc->free_requests = &rpc->requests[i];
    }
    return STATUS_OK;
}

void request_tell_answered(struct rpc_request *request)
{
    rpc_answered *answered = request->answered;
    request->answered = NULL;
    if (answered != NULL)
        answered(request->answered_context, request->answered_number);
}

/* Also of requests that their handlers have not answered. */
void requests_free(struct rpc *rpc)
{
    for (size_t i = 0; rpc->requests != NULL && i < requests_count(rpc); i++) {
        struct rpc_request *request = &rpc->requests[i];
        if (!request->is_used)
            continue;
        request_tell_answered(request);
        request_release(request);
    }
    free(rpc->requests);
}

struct rpc_request *request_take(struct rpc *rpc, struct endpoint_message *frames)
{
    struct rpc_request *request = rpc->free_requests;
    if (request == NULL)
        return NULL;
    rpc->free_requests = request->next;
    request->is_used = true;
    request->answered = NULL;
    request->body = (struct rpc_body){0};
    request->leaving = NULL;
    request->rpc = rpc;
    endpoint_move(&request->frames, frames);
    return request;
}

void request_release(struct rpc_request *request)
{
    endpoint_release(&request->frames);
    body_free(&request->body);
    if (request->leaving != NULL)
        leaving_free(request);
}

void request_give_back(struct rpc *rpc, struct rpc_request *request)
{
    request->is_used = false;
    request->next = rpc->free_requests;
    rpc->free_requests = request;
}

void queue_push(struct request_queue *queue, struct rpc_request *request)
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

void queue_remove(struct request_queue *queue, struct rpc_request *request)
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

void queue_drop(struct rpc *rpc, struct request_queue *queue)
{
    while (queue->first != NULL) {
        struct rpc_request *request = queue->first;
        queue_remove(queue, request);
        request_release(request);
        request_give_back(rpc, request);
    }
}
