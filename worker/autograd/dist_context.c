/* Contexts on this worker: how they begin and end; END_CONTEXT; deaths. dist.c argues why none is left
 * behind. */
#include "worker/autograd/dist_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint16_t root_of(uint64_t id)
{
    return (uint16_t)(id >> NUMBER_BITS);
}

/* ---- beginning ---- */

struct dist_context *context_find(const struct dist *dist, uint64_t id)
{
    struct dist_context *context = dist->contexts;
    while (context != NULL && context->id != id)
        context = context->next;
    return context;
}

enum status context_make(struct dist *dist, uint64_t id, struct dist_context **out, struct error *error)
{
    const uint16_t worker = rpc_worker(dist->config.rpc);
    enum status status = dist_check_alive(dist, error);
    if (status != STATUS_OK)
        return status;
    if (dist->context_count >= dist->config.contexts_max)
        return error_set(error, STATUS_BUSY, "worker %u has %u contexts, of which %s, at most %u", worker,
                         dist->context_count,
                         dist->ended == NULL ? "all are open" : "some wait to send END_CONTEXT",
                         dist->config.contexts_max);
    struct dist_context *context =
        calloc(1, sizeof *context + rpc_workers(dist->config.rpc) * sizeof context->called[0]);
    if (context == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a context");
    context->dist = dist;
    context->id = id;
    context->is_root = root_of(id) == worker;
    context->next = dist->contexts;
    dist->contexts = context;
    dist->context_count++;
    *out = context;
    return STATUS_OK;
}

enum status context_absent(const struct dist *dist, uint64_t id, struct error *error)
{
    enum status status = dist_check_alive(dist, error);
    return status != STATUS_OK ? status
                               : error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " is not here", id);
}

enum status context_enter(struct dist *dist, uint64_t id, struct dist_context **out, struct error *error)
{
    const uint16_t root = root_of(id);
    *out = context_find(dist, id);
    if (*out != NULL)
        return dist_check_alive(dist, error);
    if (root >= rpc_workers(dist->config.rpc))
        return error_set(error, STATUS_INVALID, "context %" PRIx64 " of worker %u, of %u", id, root,
                         rpc_workers(dist->config.rpc));
    if (root == rpc_worker(dist->config.rpc))
        return error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " has ended", id);
    return context_make(dist, id, out, error);
}

/* ---- ending ---- */

/* Sends END_CONTEXT to the workers that were called. False: some session has no room for it now. */
static bool context_send_ends(struct dist_context *context)
{
    struct rpc *rpc = context->dist->config.rpc;
    const struct rpc_message message = {.context = context->id};
    bool all = true;
    for (uint32_t worker = 0; worker < rpc_workers(rpc); worker++) {
        struct future *future;
        if (!context->called[worker])
            continue;
        const enum status status = rpc_call_async(rpc, (uint16_t)worker, METHOD_END_CONTEXT, &message,
                                                  MONOTIME_NEVER, &future, NULL);
        if (status == STATUS_OK)
            future_release(future);
        context->called[worker] = status == STATUS_BUSY || status == STATUS_NO_MEMORY;
        all = all && !context->called[worker];
    }
    return all;
}

static void context_free(struct dist_context *context)
{
    context->dist->context_count--;
    free(context);
}

/* Newest pieces first, so that rooms are taken again in the same order. */
static void context_finish(struct dist_context *context, enum status status, const char *text)
{
    struct dist_context **link = &context->dist->contexts;
    if (context->is_root) {
        frame_close(&context->frame, status);
        tape_finish(context->frame.tape, NULL);
    }
    while (context->pieces != NULL)
        piece_end(context->pieces, status, text);
    uses_release(context);
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
}

void context_end(struct dist_context *context)
{
    struct dist *dist = context->dist;
    char text[64];
    snprintf(text, sizeof text, "context %" PRIx64 " has ended", context->id);
    context_finish(context, STATUS_NOT_FOUND, text);
    if (context_send_ends(context)) {
        context_free(context);
        return;
    }
    context->next = dist->ended;
    dist->ended = context;
    rpc_hurry(dist->config.rpc, dist);
}

void context_lose(struct dist_context *context, const char *text)
{
    context_finish(context, STATUS_PEER_DIED, text);
    context_free(context);
}

struct monotime dist_on_turn(void *arg)
{
    enum { RETRY_US = 1000 };
    struct dist *dist = arg;
    for (struct dist_context **link = &dist->ended; *link != NULL;) {
        struct dist_context *context = *link;
        if (!context_send_ends(context)) {
            link = &context->next;
            continue;
        }
        *link = context->next;
        context_free(context);
    }
    return dist->ended == NULL ? MONOTIME_NEVER : monotime_add_us(monotime_now(), RETRY_US);
}

/* ---- deaths ---- */

/* A root's own record stays until it is freed. */
void dist_on_left(void *arg, uint16_t worker, enum status why, const char *reason)
{
    struct dist *dist = arg;
    (void)why;
    (void)reason;
    if (dist->lost.status == STATUS_OK)
        error_set(&dist->lost, STATUS_PEER_DIED, "worker %u is gone", worker);
    for (struct dist_context *context = dist->contexts; context != NULL;) {
        struct dist_context *next = context->next;
        if (!context->is_root)
            context_lose(context, dist->lost.text);
        context = next;
    }
}

/* ---- END_CONTEXT ---- */

/* A failed call leaves no piece: a record without any ends with the END_CONTEXT of any worker. */
static bool context_is_ended_by(const struct dist_context *context, uint16_t worker)
{
    const struct dist_piece *piece = context->pieces;
    while (piece != NULL && piece->caller != worker)
        piece = piece->next;
    return worker == root_of(context->id) || piece != NULL || context->pieces == NULL;
}

void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct dist_context *context = context_find(dist, message->context);
    const uint16_t source = rpc_request_source(request);
    if (context != NULL && context->is_root) {
        rpc_reject(request, "worker %u ends context %" PRIx64 ", whose root it is not", source,
                   message->context);
        return;
    }
    if (context != NULL && context_is_ended_by(context, source))
        context_end(context);
    rpc_reply(request, NULL);
}

/* ---- for the optimizer ---- */

enum status dist_gradients(struct dist *dist, uint64_t context, void *object, struct gradients **out,
                           struct error *error)
{
    const struct dist_context *found = context_find(dist, context);
    if (found == NULL)
        return context_absent(dist, context, error);
    *out = NULL;
    for (const struct dist_use *use = found->uses; use != NULL; use = use->next)
        if (use->object->object == object && use->trains)
            *out = use->gradients;
    return STATUS_OK;
}
