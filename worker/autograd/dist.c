/* Opening, closing and counting. And two arguments:
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
#include "worker/autograd/dist_internal.h"

#include <stdlib.h>

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
    rrefs_on_destroy(config->rrefs, dist_on_destroy, dist);
    *out = dist;
    return STATUS_OK;
}

void dist_free(struct dist *dist)
{
    if (dist == NULL)
        return;
    rrefs_on_destroy(dist->config.rrefs, NULL, dist);
    while (dist->contexts != NULL)
        context_lose(dist->contexts, "it has left the job");
    while (dist->ended != NULL) {
        struct dist_context *context = dist->ended;
        dist->ended = context->next;
        free(context);
    }
    while (dist->objects != NULL) {
        struct dist_object *object = dist->objects;
        dist->objects = object->next;
        object_free(object);
    }
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
    *counts = (struct dist_counts){dist->context_count, dist->piece_count};
}
