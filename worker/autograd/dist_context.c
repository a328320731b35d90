/* Contexts on this worker: how they begin, fail and end. dist.c argues why none is left behind. */
#include "worker/autograd/dist_internal.h"

#include <assert.h>
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
    if (dist->context_count >= dist->config.contexts_max)
        return error_set(error, STATUS_BUSY, "worker %u has %u contexts, as many as it may",
                         rpc_worker(dist->config.rpc), dist->context_count);
    if (dist->end_count >= dist->config.contexts_max)
        return error_set(error, STATUS_BUSY, "worker %u has %u END_CONTEXTs that cannot be sent yet",
                         rpc_worker(dist->config.rpc), dist->end_count);
    struct dist_context *context = dist->free_contexts;
    if (context != NULL) {
        dist->free_contexts = context->next;
        struct arena *staging = context->staging;
        *context = (struct dist_context){.staging = staging};
    } else {
        context = calloc(1, sizeof *context);
    }
    if (context == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a context");
    context->dist = dist;
    context->id = id;
    context->next = dist->contexts;
    dist->contexts = context;
    dist->context_count++;
    *out = context;
    return STATUS_OK;
}

/* Why a call cannot begin context `id` here. */
static enum status context_check_over(const struct dist *dist, uint64_t id, struct error *error)
{
    const uint16_t root = root_of(id);
    if (root >= rpc_workers(dist->config.rpc))
        return error_set(error, STATUS_INVALID, "context %" PRIx64 " of worker %u, of %u", id, root,
                         rpc_workers(dist->config.rpc));
    if (rpc_is_gone(dist->config.rpc, root))
        return error_set(error, STATUS_PEER_DIED, "worker %u, the root of context %" PRIx64 ", is gone", root,
                         id);
    if (id < dist->roots[root].over || root == rpc_worker(dist->config.rpc))
        return error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " has ended", id);
    if (id <= dist->roots[root].lost)
        return error_set(error, STATUS_PEER_DIED,
                         "worker %u has ended context %" PRIx64 ", for another worker is gone",
                         rpc_worker(dist->config.rpc), id);
    return STATUS_OK;
}

enum status context_absent(const struct dist *dist, uint64_t id, struct error *error)
{
    enum status status = context_check_over(dist, id, error);
    return status != STATUS_OK ? status
                               : error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " is not here", id);
}

enum status context_enter(struct dist *dist, uint64_t id, struct dist_context **out, struct error *error)
{
    struct dist_context *context = context_find(dist, id);
    if (context == NULL) {
        enum status status = context_check_over(dist, id, error);
        if (status == STATUS_OK)
            status = context_make(dist, id, &context, error);
        if (status != STATUS_OK)
            return status;
    }
    if (context->error.status != STATUS_OK) {
        *error = context->error;
        return error->status;
    }
    *out = context;
    return STATUS_OK;
}

/* ---- failing and ending ---- */

static void context_fail(struct dist_context *context, enum status status, const char *text)
{
    if (context->error.status == STATUS_OK)
        error_set(&context->error, status, "%s", text);
}

/* Newest first, so that rooms are taken again in the same order. */
static void context_end_pieces(struct dist_context *context, enum status status, const char *text)
{
    if (context->is_root) {
        frame_close(&context->frame, status);
        tape_finish(context->frame.tape, NULL);
    }
    while (context->pieces != NULL)
        piece_end(context->pieces, status, text);
}

static void context_finish(struct dist_context *context, enum status status, const char *text)
{
    struct dist *dist = context->dist;
    context_fail(context, status, text);
    context_end_pieces(context, status, text);
    drops_forget(context);
    uses_release(context);
    if (context->staging != NULL)
        arena_reset(context->staging);
    struct dist_context **link = &dist->contexts;
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    dist->context_count--;
    ends_send(context, status == STATUS_PEER_DIED);
    context->next = dist->free_contexts;
    dist->free_contexts = context;
}

void context_end(struct dist_context *context)
{
    char text[64];
    snprintf(text, sizeof text, "context %" PRIx64 " has ended", context->id);
    context_finish(context, STATUS_NOT_FOUND, text);
}

void context_lose(struct dist_context *context, const char *text)
{
    struct dist_root *root = &context->dist->roots[root_of(context->id)];
    assert(!context->is_root);
    if (context->id > root->lost)
        root->lost = context->id;
    context_finish(context, STATUS_PEER_DIED, text);
}

/* ---- deaths ---- */

/* A root's own record stays until it is freed. */
static void context_fail_root(struct dist_context *context, uint16_t worker, const char *text)
{
    context_fail(context, STATUS_PEER_DIED, text);
    for (struct dist_piece *piece = context->pieces; piece != NULL;) {
        struct dist_piece *next = piece->next;
        if (piece->caller == worker)
            piece_end(piece, STATUS_PEER_DIED, text);
        piece = next;
    }
    drops_send(context);
}

static bool context_has_caller(const struct dist_context *context, uint16_t worker)
{
    const struct dist_piece *piece = context->pieces;
    while (piece != NULL && piece->caller != worker)
        piece = piece->next;
    return piece != NULL;
}

static bool context_has_part_of(const struct dist_context *context, uint16_t worker)
{
    return root_of(context->id) == worker || context_has_caller(context, worker) ||
           end_is_due(context, worker);
}

/* The contexts of a worker that is gone are over. Contexts with its calls, or called there, have lost
 * gradients. */
void dist_on_left(void *arg, uint16_t worker, enum status why, const char *reason)
{
    struct dist *dist = arg;
    char text[64];
    (void)why;
    (void)reason;
    snprintf(text, sizeof text, "worker %u is gone", worker);
    for (struct dist_context *context = dist->contexts; context != NULL;) {
        struct dist_context *next = context->next;
        const bool has_part = context_has_part_of(context, worker);
        if (has_part && context->is_root)
            context_fail_root(context, worker, text);
        else if (has_part)
            context_lose(context, text);
        context = next;
    }
}

/* ---- END_CONTEXT ---- */

/* A failed call leaves no piece: a record without any ends with the END_CONTEXT of any worker. */
static bool context_is_ended_by(const struct dist_context *context, uint16_t worker)
{
    return worker == root_of(context->id) || context_has_caller(context, worker) ||
           (context->pieces == NULL && !context->is_root);
}

void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct dist_context *context = context_find(dist, message->context);
    const uint16_t source = rpc_request_source(request);
    const bool is_lost = message->args[END_LOST] != 0;
    const char *text = "a worker that was called in this context is gone";
    if (context != NULL && context->is_root && !is_lost) {
        rpc_reject(request, "worker %u ends context %" PRIx64 ", whose root it is not", source,
                   message->context);
        return;
    }
    if (context != NULL && context_is_ended_by(context, source)) {
        if (!is_lost)
            context_end(context);
        else if (context->is_root)
            context_fail_root(context, source, text);
        else
            context_lose(context, text);
    }
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
        if (use->object->object == object && use->slab != NULL)
            *out = use->slab->gradients;
    return STATUS_OK;
}

uint32_t dist_readers(const struct dist *dist, uint64_t context, const void *object)
{
    uint32_t readers = 0;
    for (const struct dist_context *at = dist->contexts; at != NULL; at = at->next) {
        if (at->id == context)
            continue;
        bool reads = false;
        for (const struct dist_piece *piece = at->pieces; piece != NULL; piece = piece->next)
            reads = reads || (piece->use->object->object == object && piece->state != PIECE_OVER);
        readers += reads;
    }
    return readers;
}

void dist_end_older(struct dist *dist, uint16_t root, uint64_t context)
{
    if (context > dist->roots[root].over)
        dist->roots[root].over = context;
    for (struct dist_context *at = dist->contexts; at != NULL;) {
        struct dist_context *next = at->next;
        if (root_of(at->id) == root && at->id < context && !at->is_root)
            context_end(at);
        at = next;
    }
}

uint64_t dist_oldest(const struct dist *dist)
{
    uint64_t oldest = dist->next_context;
    for (const struct dist_context *at = dist->contexts; at != NULL; at = at->next)
        if (at->is_root && at->id < oldest)
            oldest = at->id;
    return oldest;
}
