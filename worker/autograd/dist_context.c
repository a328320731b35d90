/* Contexts on this worker: how they begin and end, the functions of their roots, and what a death does to
 * them. A context has two sides: calls that are made here (dist_call.c), and pieces that are computed here
 * (dist_piece.c).
 *
 * ---- Why sums are equal bit for bit ----
 * A parameter's gradient is a sum over the pieces of its object in one context, and floating sums depend on
 * their order. The order is that of the walk, wherever objects lie:
 * A frame (the root's tape, or a piece's) is walked in reverse order of recording, and waits at each node
 * whose gradients come from another worker. While it waits, only the piece that it asked is being walked in
 * this context, and that piece waits for those that it asks. So there is one thread of control, as on one
 * worker, and the order of its sums depends on the graph alone.
 *
 * ---- Why nothing is left behind ----
 * A worker's record of a context has the pieces of its callers, and marks the workers that it has called. The
 * root's own record ends when it is freed. Any other record ends with the first END_CONTEXT of its root or of
 * a caller. A worker that ends a record sends END_CONTEXT to all workers that it has called there, on the
 * sessions that carried the calls, and so behind them.
 *
 * Every record but the root's own was made by a call of another record, which existed before it. Following
 * these calls back from any record leads to the root's own, also where workers call each other in rings. When
 * a record on this way ends, the next one is told, and so on to the last: everything ends with the root. A
 * late FORWARD may make a record anew after its context has ended here. Its caller sends END_CONTEXT behind
 * it, which ends it again.
 *
 * Workers have sessions with all others, so each learns of a death by itself: it ends the records of other
 * roots, and refuses every call from then on. Gradients may be lost, so they must not be taken for zero. */
#include "worker/autograd/dist.h"
#include "worker/autograd/dist_call.h"
#include "worker/autograd/dist_memory.h"
#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_object.h"
#include "worker/autograd/dist_piece.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A context's id: the root's worker number, then a counter of this many bits. */
enum { NUMBER_BITS = 48 };

struct dist_context {
    struct dist_context *next;
    struct dist *dist;
    uint64_t id;
    bool is_root;            /* this worker is the context's root */
    struct dist_frame frame; /* the root's */
    struct dist_caller *caller;
    struct dist_callee callee;
};

struct dist {
    struct dist_config config;
    struct dist_memory memory;
    struct dist_objects objects;
    struct dist_context *contexts;
    struct dist_context *ended; /* that have still to send END_CONTEXT, when there is room */
    struct arena *staging;      /* of roots with tapes on a device; NULL: none yet */
    uint64_t next_context;
    struct dist_counts counts;
    struct error lost; /* STATUS_PEER_DIED: a worker is gone */
};

/* STATUS_PEER_DIED: a worker of the job is gone, so no context can be right. */
static enum status dist_check_alive(const struct dist *dist, struct error *error)
{
    if (dist->lost.status != STATUS_OK)
        *error = dist->lost;
    return dist->lost.status;
}

static uint16_t root_of(uint64_t id)
{
    return (uint16_t)(id >> NUMBER_BITS);
}

/* ---- contexts: beginning ---- */

/* NULL: not here. */
static struct dist_context *context_find(const struct dist *dist, uint64_t id)
{
    struct dist_context *context = dist->contexts;
    while (context != NULL && context->id != id)
        context = context->next;
    return context;
}

static enum status context_make(struct dist *dist, uint64_t id, struct dist_context **out,
                                struct error *error)
{
    const uint16_t worker = rpc_worker(dist->config.rpc);
    enum status status = dist_check_alive(dist, error);
    if (status != STATUS_OK)
        return status;
    if (dist->counts.contexts >= dist->config.contexts_max)
        return error_set(error, STATUS_BUSY, "worker %u has %u contexts, of which %s, at most %u", worker,
                         dist->counts.contexts,
                         dist->ended == NULL ? "all are open" : "some wait to send END_CONTEXT",
                         dist->config.contexts_max);
    struct dist_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a context");
    status = caller_new(&context->caller, dist->config.rpc, id, &dist->lost, error);
    if (status != STATUS_OK) {
        free(context);
        return status;
    }
    context->dist = dist;
    context->callee = (struct dist_callee){.rpc = dist->config.rpc,
                                           .objects = &dist->objects,
                                           .caller = context->caller,
                                           .piece_count = &dist->counts.pieces,
                                           .pieces_max = dist->config.pieces_max};
    context->id = id;
    context->is_root = root_of(id) == worker;
    context->next = dist->contexts;
    dist->contexts = context;
    dist->counts.contexts++;
    *out = context;
    return STATUS_OK;
}

/* Why a context is not here: STATUS_NOT_FOUND, or a death. */
static enum status context_absent(const struct dist *dist, uint64_t id, struct error *error)
{
    enum status status = dist_check_alive(dist, error);
    return status != STATUS_OK ? status
                               : error_set(error, STATUS_NOT_FOUND, "context %" PRIx64 " is not here", id);
}

/* The context for a call; made when this is the first that names it. STATUS_INVALID: no such root;
 * STATUS_NOT_FOUND: its root is this worker, and it has ended; STATUS_BUSY; a death. */
static enum status context_enter(struct dist *dist, uint64_t id, struct dist_context **out,
                                 struct error *error)
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

/* ---- contexts: ending ---- */

static void context_free(struct dist_context *context)
{
    context->dist->counts.contexts--;
    caller_free(context->caller);
    free(context);
}

static void context_finish(struct dist_context *context, enum status status, const char *text)
{
    struct dist_context **link = &context->dist->contexts;
    if (context->is_root) {
        frame_close(&context->frame, status);
        tape_finish(context->frame.tape, NULL);
    }
    callee_end(&context->callee, status, text);
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
}

/* Both end the context here. context_end sends END_CONTEXT to the workers that this one has called in it.
 * context_lose: after a death (`text`), which the others learn of themselves. */
static void context_end(struct dist_context *context)
{
    struct dist *dist = context->dist;
    char text[64];
    snprintf(text, sizeof text, "context %" PRIx64 " has ended", context->id);
    context_finish(context, STATUS_NOT_FOUND, text);
    if (caller_send_ends(context->caller)) {
        context_free(context);
        return;
    }
    context->next = dist->ended;
    dist->ended = context;
    rpc_hurry(dist->config.rpc, dist);
}

static void context_lose(struct dist_context *context, const char *text)
{
    context_finish(context, STATUS_PEER_DIED, text);
    context_free(context);
}

static struct monotime dist_on_turn(void *arg)
{
    enum { RETRY_US = 1000 };
    struct dist *dist = arg;
    for (struct dist_context **link = &dist->ended; *link != NULL;) {
        struct dist_context *context = *link;
        if (!caller_send_ends(context->caller)) {
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
static void dist_on_left(void *arg, uint16_t worker, enum status why, const char *reason)
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
static void dist_on_end(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct dist_context *context = context_find(dist, message->context);
    const uint16_t source = rpc_request_source(request);
    if (context != NULL && context->is_root) {
        rpc_reject(request, "worker %u ends context %" PRIx64 ", whose root it is not", source,
                   message->context);
        return;
    }
    if (context != NULL && (source == root_of(context->id) || callee_serves(&context->callee, source)))
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
    *out = uses_gradients(found->callee.uses, object);
    return STATUS_OK;
}

/* ---- FORWARD and BACKWARD, received ---- */

static void request_refuse(struct dist *dist, struct rpc_request *request, const struct error *error)
{
    rpc_fail(request, error->status, "worker %u: %s", rpc_worker(dist->config.rpc), error->text);
}

static void dist_on_forward(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct error error = {0};
    struct forward_flags flags;
    struct dist_context *context = NULL;
    if (message->context == 0 || !flags_unpack(message, &flags)) {
        rpc_reject(request, "a call within a context whose flags do not fit its tensors");
        return;
    }
    enum status status = STATUS_OK;
    if (flags.depth > DIST_DEPTH_MAX)
        status = error_set(&error, STATUS_INVALID, "calls nested deeper than %d", DIST_DEPTH_MAX);
    if (status == STATUS_OK)
        status = context_enter(dist, message->context, &context, &error);
    if (status == STATUS_OK)
        callee_forward(&context->callee, request, message, &flags);
    else
        request_refuse(dist, request, &error);
}

static bool gradients_are_sound(const struct rpc_message *message)
{
    const uint64_t outputs = message->args[BACKWARD_OUTPUTS];
    bool sound = message->context != 0 && outputs != 0 && outputs >> DIST_OUTPUTS_MAX == 0 &&
                 __builtin_popcountll(outputs) == message->tensor_count;
    for (uint32_t i = 0; i < message->tensor_count && sound; i++)
        sound = wire_tensor_is_sound(&message->tensors[i]) && message->tensors[i].dtype == WIRE_F32;
    return sound;
}

static void dist_on_backward(void *arg, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist *dist = arg;
    struct error error = {0};
    if (!gradients_are_sound(message)) {
        rpc_reject(request, "a backward whose gradients are not those that it names");
        return;
    }
    struct dist_context *context = context_find(dist, message->context);
    if (context != NULL) {
        callee_backward(&context->callee, request, message);
        return;
    }
    context_absent(dist, message->context, &error);
    request_refuse(dist, request, &error);
}

/* ---- the root: its context ---- */

/* Host memory for tensors of messages: the tape's own, or one arena of all roots here where the tape's is a
 * device's. */
static enum status root_staging(struct dist *dist, struct tape *tape, struct arena **out, struct error *error)
{
    const bool host = tape_backend(tape)->ops->host;
    const struct arena_source source = memory_source(&dist->memory);
    enum status status =
        host || dist->staging != NULL ? STATUS_OK : arena_new(&dist->staging, &source, error);
    *out = host ? tape_arena(tape) : dist->staging;
    return status;
}

enum status dist_context_new(struct dist_context **out, struct dist *dist, enum tape_mode mode,
                             struct tape *tape, struct gradients *gradients, struct error *error)
{
    struct dist_context *context;
    struct arena *staging;
    enum status status = root_staging(dist, tape, &staging, error);
    if (status == STATUS_OK)
        status = context_make(dist, dist->next_context, &context, error);
    if (status != STATUS_OK)
        return status;
    dist->next_context++;
    tape_begin(tape, mode, gradients);
    context->frame =
        (struct dist_frame){.caller = context->caller, .tape = tape, .staging = staging, .depth = 1};
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

/* ---- the root: calls ---- */

enum status dist_call(struct dist_context *context, struct rref *object, uint32_t function,
                      const uint64_t *numbers, uint32_t number_count, struct variable *const in[],
                      uint32_t in_count, struct variable *out[], uint32_t out_count)
{
    struct error error = {0};
    const struct dist_asked asked = {object, function, numbers, number_count, in, in_count};
    enum status status = frame_call(&context->frame, &asked, out, out_count, &error);
    if (status == STATUS_OK)
        return STATUS_OK;
    for (uint32_t i = 0; i < out_count; i++) // not before: `out` may be `in`
        out[i] = NULL;
    tape_fail(context->frame.tape, status, "%s", error.text);
    return status;
}

/* ---- the root: backward ---- */

static enum status root_walk(struct dist_frame *frame, struct error *error)
{
    enum status status = tape_walk(frame->tape);
    while (status == STATUS_AGAIN) {
        status = frame_wait(frame, error);
        if (status != STATUS_OK)
            return status;
        status = tape_resume(frame->tape);
    }
    return status == STATUS_OK ? caller_check_alive(frame->caller, error) : tape_status(frame->tape, error);
}

enum status dist_backward(struct dist_context *context, struct variable *loss, struct error *error)
{
    struct dist_frame *frame = &context->frame;
    struct error failure = {0};
    if (dist_check_alive(context->dist, &failure) != STATUS_OK)
        tape_fail(frame->tape, failure.status, "%s", failure.text);
    if (loss != NULL && variable_tensor(loss)->shape.rank != 0)
        tape_fail(frame->tape, STATUS_INVALID, "a loss that is no scalar");
    enum status status = tape_seed(frame->tape, loss, NULL);
    if (status == STATUS_OK)
        status = root_walk(frame, &failure);
    else
        tape_status(frame->tape, &failure);
    if (status != STATUS_OK)
        tape_fail(frame->tape, status, "%s", failure.text);
    if (status != STATUS_OK && error != NULL)
        *error = failure;
    return status;
}

/* ---- opening, closing, counting ---- */

enum { EVERYBODY = WIRE_ROLE_AGENT | WIRE_ROLE_OBSERVER | WIRE_ROLE_PSERVER | WIRE_ROLE_TRAINER };

static const struct rpc_method methods[] = {
    {.method = METHOD_FORWARD, .callers = EVERYBODY, .any_tensors = true, .handler = dist_on_forward},
    {.method = METHOD_BACKWARD, .callers = EVERYBODY, .any_tensors = true, .handler = dist_on_backward},
    {.method = METHOD_END_CONTEXT, .callers = EVERYBODY, .at_once = true, .handler = dist_on_end},
};

enum status dist_new(struct dist **out, const struct dist_config *config, struct error *error)
{
    struct dist *dist = calloc(1, sizeof *dist);
    if (dist == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for distributed autograd");
    dist->config = *config;
    dist->objects = (struct dist_objects){.rrefs = config->rrefs,
                                          .memory = &dist->memory,
                                          .progress = config->progress,
                                          .progress_context = config->progress_context};
    dist->next_context = (uint64_t)rpc_worker(config->rpc) << NUMBER_BITS | 1;
    enum status status = memory_new(&dist->memory, config->outbox, error);
    if (status != STATUS_OK) {
        memory_free(&dist->memory);
        free(dist);
        return status;
    }
    rpc_add_methods(config->rpc, methods, sizeof methods / sizeof methods[0], dist);
    rpc_on_left(config->rpc, dist_on_left, dist);
    rpc_on_turn(config->rpc, dist_on_turn, dist);
    rrefs_on_destroy(config->rrefs, objects_on_destroy, &dist->objects);
    *out = dist;
    return STATUS_OK;
}

void dist_free(struct dist *dist)
{
    if (dist == NULL)
        return;
    rrefs_on_destroy(dist->config.rrefs, NULL, dist);
    while (dist->contexts != NULL)
        context_lose(dist->contexts, "it has left the job"); // it unlinks; NOLINT(clang-analyzer-unix.Malloc)
    while (dist->ended != NULL) {
        struct dist_context *context = dist->ended;
        dist->ended = context->next;
        context_free(context);
    }
    objects_free(&dist->objects);
    arena_free(dist->staging);
    memory_free(&dist->memory);
    free(dist);
}

struct rpc *dist_rpc(const struct dist *dist)
{
    return dist->config.rpc;
}

struct rrefs *dist_rrefs(const struct dist *dist)
{
    return dist->config.rrefs;
}

struct arena_source dist_arena_source(struct dist *dist)
{
    return memory_source(&dist->memory);
}

void dist_counts(const struct dist *dist, struct dist_counts *counts)
{
    *counts = dist->counts;
}
