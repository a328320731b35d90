/* The pool of request objects, and the queues they stand in.
 *
 * An object is a peer's call, from its arrival until its answer has left, or a message of this worker that
 * waits to leave. An object is in one queue at most. The pool begins with two objects for each worker: a call
 * of that worker, and an answer that waits to leave. It grows when more are wanted; objects are freed with
 * the rpc. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>

void request_tell_answered(struct rpc_request *request)
{
    rpc_answered *answered = request->answered;
    request->answered = NULL;
    if (answered != NULL)
        answered(request->answered_context, request->answered_number);
}

static struct rpc_request *request_new(struct rpc *rpc)
{
    struct rpc_request *request = calloc(1, sizeof *request);
    if (request == NULL)
        return NULL;
    request->next_of_all = rpc->requests;
    rpc->requests = request;
    return request;
}

enum status requests_new(struct rpc *rpc)
{
    for (uint32_t i = 0; i < 2 * (uint32_t)rpc->config.workers; i++) {
        struct rpc_request *request = request_new(rpc);
        if (request == NULL)
            return STATUS_NO_MEMORY;
        request_give_back(rpc, request);
    }
    return STATUS_OK;
}

/* Also of requests that their handlers have not answered. */
void requests_free(struct rpc *rpc)
{
    while (rpc->requests != NULL) {
        struct rpc_request *request = rpc->requests;
        rpc->requests = request->next_of_all;
        if (request->is_used) {
            request_tell_answered(request);
            request_release(request);
        }
        free(request);
    }
}

struct rpc_request *request_take(struct rpc *rpc, struct endpoint_message *frames)
{
    struct rpc_request *request = rpc->free_requests;
    if (request != NULL)
        rpc->free_requests = request->next;
    else
        request = request_new(rpc);
    if (request == NULL)
        return NULL;
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
}
