/* Contexts: whose they are, how they begin here, fail and end. dist.c says why none is left behind.
 *
 * Which contexts are over, and how, is known for the last few thousand of each root, so that a late message
 * is told so; one that is older only makes a record anew, which its sender will end. */
#include "worker/autograd/dist_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint16_t root_of(uint64_t id)
{
    return (uint16_t)(id >> NUMBER_BITS);
}

static uint64_t number_of(uint64_t id)
{
    return id & (((uint64_t)1 << NUMBER_BITS) - 1);
}

/* ---- sets of workers ---- */

static bool workers_have(const struct dist_workers *workers, uint16_t worker)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->at[i] == worker)
            return true;
    return false;
}

static enum status workers_add(struct dist_workers *workers, uint16_t worker, struct error *error)
{
    if (workers_have(workers, worker))
        return STATUS_OK;
    if (workers->count == workers->capacity) {
        const uint32_t capacity = 2 * workers->capacity + 4;
        uint16_t *grown = reallocarray(workers->at, capacity, sizeof *grown);
        if (grown == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for a context's workers");
        workers->at = grown;
        workers->capacity = capacity;
    }
    workers->at[workers->count++] = worker;
    return STATUS_OK;
}

static void workers_remove(struct dist_workers *workers, uint16_t worker)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->at[i] == worker)
            workers->at[i--] = workers->at[--workers->count];
}

/* ---- what is known of roots ---- */

static struct dist_root *find_root(const struct dist *dist, uint16_t worker)
{
    struct dist_root *root = dist->roots;
    while (root != NULL && root->worker != worker)
        root = root->next;
    return root;
}

static struct dist_root *make_root(struct dist *dist, uint16_t worker)
{
    struct dist_root *root = find_root(dist, worker);
    if (root != NULL)
        return root;
    root = calloc(1, sizeof *root);
    if (root == NULL)
        return NULL;
    root->worker = worker;
    root->next = dist->roots;
    dist->roots = root;
    return root;
}

static void note_past(struct dist *dist, uint64_t id, enum dist_past past)
{
    struct dist_root *root = make_root(dist, root_of(id));
    const uint64_t number = number_of(id);
    if (root == NULL || number + PAST_WINDOW <= root->top)
        return;
    if (number >= root->top + PAST_WINDOW)
        memset(root->past, PAST_UNKNOWN, sizeof root->past);
    else
        for (uint64_t i = root->top + 1; i <= number; i++)
            root->past[i % PAST_WINDOW] = PAST_UNKNOWN;
    if (number > root->top)
        root->top = number;
    root->past[number % PAST_WINDOW] = (uint8_t)past;
}

static enum dist_past past_of(const struct dist *dist, uint64_t id)
{
    const struct dist_root *root = find_root(dist, root_of(id));
    const uint64_t number = number_of(id);
    if (root == NULL || number > root->top || number + PAST_WINDOW <= root->top)
        return PAST_UNKNOWN;
    return (enum dist_past)root->past[number % PAST_WINDOW];
}

/* ---- beginning ---- */

struct dist_context *context_find(const struct dist *dist, uint64_t id)
{
    struct dist_context *context = dist->contexts;
    while (context != NULL && context->id != id)
        context = context->next;
    return context;
}

static enum status make_context(struct dist *dist, uint64_t id, struct dist_context **out,
                                struct error *error)
{
    if (dist->context_count >= dist->config.contexts_max)
        return error_set(error, STATUS_BUSY, "worker %u has %u contexts, as many as it may",
                         rpc_worker(dist->config.rpc), dist->context_count);
    if (dist->end_count >= dist->config.contexts_max)
        return error_set(error, STATUS_BUSY, "worker %u has %u ends of contexts that cannot be told yet",
                         rpc_worker(dist->config.rpc), dist->end_count);
    struct dist_context *context = dist->free_contexts;
    if (context != NULL) {
        dist->free_contexts = context->next;
        const struct dist_workers callers = context->callers;
        struct arena *staging = context->staging;
        *context = (struct dist_context){.callers = callers, .staging = staging};
        context->callers.count = 0;
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

/* Of a root that died all contexts are over. Those of its successor have another incarnation in their ids,
 * and may be heard of by others first: before it calls itself, and even before the news of that death. */
static bool root_is_gone(const struct dist *dist, uint64_t id)
{
    uint32_t incarnation;
    return rpc_is_gone(dist->config.rpc, root_of(id), &incarnation) &&
           (incarnation & INCARNATION_MASK) == number_of(id) >> INCARNATION_SHIFT;
}

static enum status check_past(const struct dist *dist, uint64_t id, struct error *error)
{
    const enum dist_past past = past_of(dist, id);
    if (root_of(id) >= rpc_workers(dist->config.rpc))
        return error_set(error, STATUS_INVALID, "context %" PRIx64 " of worker %u, of %u", id, root_of(id),
                         rpc_workers(dist->config.rpc));
    if (root_is_gone(dist, id))
        return error_set(error, STATUS_PEER_DIED, "worker %u, the root of context %" PRIx64 ", is gone",
                         root_of(id), id);
    if (past == PAST_GIVEN_UP)
        return error_set(error, STATUS_PEER_DIED,
                         "worker %u has given context %" PRIx64 " up, for a worker that took part is gone",
                         rpc_worker(dist->config.rpc), id);
    if (past == PAST_ENDED || root_of(id) == rpc_worker(dist->config.rpc))
        return error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " has ended", id);
    return STATUS_OK;
}

enum status context_absent(const struct dist *dist, uint64_t id, struct error *error)
{
    enum status status = check_past(dist, id, error);
    return status != STATUS_OK ? status
                               : error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " is not here", id);
}

enum status context_enter(struct dist *dist, uint64_t id, uint16_t caller, struct dist_context **out,
                          struct error *error)
{
    struct dist_context *context = context_find(dist, id);
    if (context == NULL) {
        enum status status = check_past(dist, id, error);
        if (status == STATUS_OK)
            status = make_context(dist, id, &context, error);
        if (status != STATUS_OK)
            return status;
    }
    if (context->error.status != STATUS_OK) {
        *error = context->error;
        return error->status;
    }
    enum status status = workers_add(&context->callers, caller, error);
    if (status != STATUS_OK && context->callers.count == 0 && !context->is_root)
        context_end(context);
    *out = context;
    return status;
}

/* ---- failing and ending ---- */

void context_fail(struct dist_context *context, enum status status, const char *text)
{
    if (context->error.status == STATUS_OK)
        error_set(&context->error, status, "%s", text);
}

/* Pieces go newest first, so that the rooms are taken again in the same order. */
static void end_pieces(struct dist_context *context, enum status status, const char *text)
{
    if (context->is_root) {
        frame_close(&context->frame, status);
        tape_finish(context->frame.tape, NULL);
    }
    while (context->pieces != NULL)
        piece_end(context->pieces, status, text);
}

static void finish(struct dist_context *context, enum dist_past past, enum status status, const char *text)
{
    struct dist *dist = context->dist;
    context_fail(context, status, text);
    end_pieces(context, status, text);
    drops_forget(context);
    parts_release(context);
    if (context->staging != NULL)
        arena_reset(context->staging);
    note_past(dist, context->id, past);
    struct dist_context **link = &dist->contexts;
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    dist->context_count--;
    context_tell_ends(context, past == PAST_GIVEN_UP);
    context->next = dist->free_contexts;
    dist->free_contexts = context;
}

void context_end(struct dist_context *context)
{
    char text[64];
    snprintf(text, sizeof text, "context %" PRIx64 " has ended", context->id);
    finish(context, PAST_ENDED, STATUS_NOT_FOUND, text);
}

void context_give_up(struct dist_context *context, const char *text)
{
    assert(!context->is_root);
    finish(context, PAST_GIVEN_UP, STATUS_PEER_DIED, text);
}

/* `worker` calls nothing any more in this context: it is gone, or gave it up. So does who is not the root,
 * whoever else calls; a root's own record stays until it is freed. */
static void lose_caller(struct dist_context *context, uint16_t worker, const char *text)
{
    if (!context->is_root) {
        context_give_up(context, text);
        return;
    }
    workers_remove(&context->callers, worker);
    context_fail(context, STATUS_PEER_DIED, text);
    for (struct dist_piece *piece = context->pieces; piece != NULL;) {
        struct dist_piece *next = piece->next;
        if (piece->caller == worker)
            piece_end(piece, STATUS_PEER_DIED, text);
        piece = next;
    }
    drops_send(context);
}

void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct dist_context *context = context_find(dist, message->context);
    const uint16_t source = rpc_request_source(request);
    const bool gives_up = message->args[END_GIVES_UP] != 0;
    if (context != NULL && context->is_root && source != rpc_worker(dist->config.rpc) && !gives_up) {
        rpc_reject(request, "worker %u ends context %" PRIx64 ", whose root it is not", source,
                   message->context);
        return;
    }
    if (context == NULL && source == root_of(message->context))
        note_past(dist, message->context, PAST_ENDED);
    if (context != NULL && (source == root_of(context->id) || workers_have(&context->callers, source))) {
        if (gives_up)
            lose_caller(context, source, "a worker between the root and this one is gone");
        else
            context_end(context);
    }
    rpc_reply(request, NULL);
}

/* Of one who was called, what he had computed is lost, so no backward can be right any more. */
static void lose_worker(struct dist_context *context, uint16_t worker)
{
    char text[64];
    snprintf(text, sizeof text, "worker %u is gone", worker);
    if (root_is_gone(context->dist, context->id))
        context_give_up(context, text);
    else if (workers_have(&context->callers, worker))
        lose_caller(context, worker, text);
    else if (context_has_called(context, worker))
        context_fail(context, STATUS_PEER_DIED, text);
}

void dist_on_left(void *arg, uint16_t worker, enum status why, const char *text)
{
    struct dist *dist = arg;
    (void)why;
    (void)text;
    for (struct dist_context *context = dist->contexts; context != NULL;) {
        struct dist_context *next = context->next;
        lose_worker(context, worker);
        context = next;
    }
}

/* ---- the root ---- */

/* Where what travels is staged: the tape's own memory, or the context's where that is a device's. */
static enum status root_staging(struct dist_context *context, struct tape *tape, struct arena **out,
                                struct error *error)
{
    *out = tape_arena(tape);
    if (tape_backend(tape)->ops->host)
        return STATUS_OK;
    const struct arena_source source = dist_arena_source(context->dist);
    enum status status = context->staging != NULL ? STATUS_OK : arena_new(&context->staging, &source, error);
    *out = context->staging;
    return status;
}

enum status dist_context_new(struct dist_context **out, struct dist *dist, enum tape_mode mode,
                             struct tape *tape, struct gradients *gradients, struct error *error)
{
    struct dist_context *context;
    struct arena *staging;
    enum status status = make_context(dist, dist->next_context, &context, error);
    if (status != STATUS_OK)
        return status;
    dist->next_context++;
    status = root_staging(context, tape, &staging, error);
    if (status != STATUS_OK) {
        context_end(context);
        return status;
    }
    context->is_root = true;
    tape_begin(tape, mode, gradients);
    frame_open(&context->frame, context, NULL, tape, staging, 1);
    *out = context;
    return STATUS_OK;
}

void dist_context_free(struct dist_context *context)
{
    if (context != NULL)
        context_end(context);
}

uint64_t dist_context_id(const struct dist_context *context)
{
    return context->id;
}

/* ---- for the optimizer ---- */

void dist_end_older(struct dist *dist, uint16_t root, uint64_t context)
{
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
