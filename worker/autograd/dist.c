/* Opening, closing and counting. And two arguments:
 *
 * ---- Why sums are equal bit for bit ----
 * A parameter's gradient is a sum over the pieces of its object in one context, and floating sums depend on
 * their order. The order is that of the walk, wherever objects lie:
 *   - A frame (the root's tape, or a piece's) is walked in reverse order of recording, and waits at each
 *     node whose gradients come from another worker. While it waits, only the piece that it asked is being
 *     walked in this context, and that piece waits for those that it asks. So there is one thread of
 *     control, as on one worker, and the order of its sums depends on the graph alone.
 *   - A backward that is sent ahead, unawaited, goes to one worker W at a time. Its piece has called
 *     nobody, so W walks it to its end when it arrives. Messages from one worker to another arrive in
 *     order, so W has walked it before anything that is sent there later. Before a frame asks another
 *     worker than W, and before it answers its own caller, it gathers the answers of all that it has sent
 *     ahead.
 *   - A backward that is sent ahead lends nothing: lent memory must stay as it is until the answer, and a
 *     frame that does not wait would have to keep it.
 *
 * ---- Why nothing is left behind ----
 * A worker's record of a context has the pieces of its callers, and a list of the workers that it has called.
 * The root's own record ends when it is freed. Any other record ends with the first END_CONTEXT of its root
 * or of a caller, or when its root, a caller or a worker that it has called is gone. A worker that ends a
 * record sends END_CONTEXT to all workers that it has called there, on the sessions that carried the calls,
 * and so behind them.
 *
 * Every record but the root's own was made by a call of another record, which existed before it. Following
 * these calls back from any record leads to the root's own, also where workers call each other in rings. When
 * a record on this way ends, the next one is told, and so on to the last: everything ends with the root. A
 * record that a death has ended says so in its END_CONTEXT: gradients are lost, so the context must not begin
 * anew here, and its gradients must not be taken for zero (struct dist_root.lost).
 *
 * A late FORWARD may make a record anew after its context has ended here. Its caller sends END_CONTEXT behind
 * it, which ends it again. Before an optimizer changes parameters, the root names its oldest open context
 * (dist_end_older), and calls within older ones are refused from then on. */
#include "worker/autograd/dist_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { EVERYBODY = WIRE_ROLE_AGENT | WIRE_ROLE_OBSERVER | WIRE_ROLE_PSERVER | WIRE_ROLE_TRAINER };

static const struct rpc_method methods[] = {
    {.method = METHOD_FORWARD, .callers = EVERYBODY, .any_tensors = true, .handler = dist_on_forward},
    {.method = METHOD_BACKWARD, .callers = EVERYBODY, .any_tensors = true, .handler = dist_on_backward},
    {.method = METHOD_DROP,
     .callers = EVERYBODY,
     .any_tensors = true,
     .at_once = true,
     .handler = dist_on_drop},
    {.method = METHOD_END_CONTEXT, .callers = EVERYBODY, .at_once = true, .handler = dist_on_end},
};

enum status dist_new(struct dist **out, const struct dist_config *config, struct error *error)
{
    struct dist *dist = calloc(1, sizeof *dist);
    if (dist == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for distributed autograd");
    dist->config = *config;
    dist->next_context = (uint64_t)rpc_worker(config->rpc) << NUMBER_BITS | 1;
    dist->roots = calloc(rpc_workers(config->rpc), sizeof *dist->roots);
    enum status status = dist->roots != NULL
                             ? memory_new(&dist->memory, config->outbox, error)
                             : error_set(error, STATUS_NO_MEMORY, "no memory for the contexts of %u workers",
                                         rpc_workers(config->rpc));
    if (status != STATUS_OK) {
        memory_free(&dist->memory);
        free(dist->roots);
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

static void contexts_free(struct dist_context *context)
{
    while (context != NULL) {
        struct dist_context *next = context->next;
        arena_free(context->staging);
        free(context);
        context = next;
    }
}

void dist_free(struct dist *dist)
{
    if (dist == NULL)
        return;
    rrefs_on_destroy(dist->config.rrefs, NULL, dist);
    while (dist->contexts != NULL)
        if (dist->contexts->is_root)
            context_end(dist->contexts);
        else
            context_lose(dist->contexts, "it takes no part any more");
    while (dist->objects != NULL) {
        struct dist_object *object = dist->objects;
        dist->objects = object->next;
        object_free(object);
    }
    dist_pool_free(dist->ends);
    contexts_free(dist->free_contexts);
    free(dist->roots);
    dist_pool_free(dist->free_pieces);
    dist_pool_free(dist->free_uses);
    memory_free(&dist->memory);
    dist_pool_close(dist);
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
