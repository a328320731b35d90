/* A worker's part in distributed autograd: its beginning and its end, and what it counts.
 *
 * ---- Why sums are equal bit for bit ----
 * A parameter's gradient is a sum over the pieces of its object in one context, and floating sums depend on
 * their order. The order is that of the walk, wherever objects lie:
 *   - A frame (a root's tape, or a piece's) is walked in reverse order of recording, and waits at each node
 *     whose gradients come from elsewhere. While it waits, of this context only the piece that it asked is
 *     being walked, which in turn waits for those that it asks. So there is one thread of control, as on one
 *     worker, and what it does in between depends on the graph alone.
 *   - What is sent ahead, without waiting, goes to one worker W at a time. It called nobody, so W walks it to
 *     its end when it arrives; messages from one worker to another arrive in order, so W has walked it before
 *     anything that is sent there later. Before a frame asks another worker than W, and before it answers
 *     its own caller, it gathers what it has sent ahead: nobody else can reach W in between.
 *   - What is sent ahead is not lent: memory that is lent stays as it is only until the answer, and whoever
 *     does not wait for it would have to keep it (the gradients, and the inputs that the callee reads again).
 *
 * ---- Why nothing is left behind ----
 * A worker's record of a context knows those who called it there, and those whom it has called. The root's
 * own ends when it is freed. Any other ends as soon as one of its callers is over: he has ended his record
 * and says so, or he is gone. (The root may say so itself before, dist_end_older.) It does not matter who
 * else calls, for what one caller has lost the whole context has lost. Whoever ends a record tells all whom
 * he has called there. What tells them finds room sooner or later: it is told again until it is answered
 * (dist_end.c). Messages come in order, so it reaches them behind the calls; and who goes is gone for all
 * whom his calls have reached.
 *
 * Every record but the root's own was made by a call, which left a record that was there before it. Going
 * back from any record to the one whose call made it, to the one that made that, and so on, meets none twice,
 * however workers call each other in rings, and comes to the root's own. When some record on this way is
 * over, by an end or with its worker, the next one on it, towards the one from which the way began, is told
 * and ends too, and so on to the last. So what lies behind a worker that died ends while the root lives, and
 * everything ends with the root.
 *
 * A message that is late finds that the context is over here, or, when that is long ago and forgotten, makes
 * a record anew; the same holds of it, for its maker tells of his end after that message too. */
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

void *dist_take(void **list, size_t bytes)
{
    void **item = *list;
    if (item == NULL)
        return calloc(1, bytes);
    *list = *item; // the first member of each is its `next`
    memset(item, 0, bytes);
    return item;
}

/* A worker that is started again must not give out numbers that its predecessor has: the upper half of the
 * counter's 48 bits is the incarnation. */
static uint64_t first_context(const struct rpc *rpc)
{
    return (uint64_t)rpc_worker(rpc) << NUMBER_BITS |
           (uint64_t)(rpc_incarnation(rpc) & INCARNATION_MASK) << INCARNATION_SHIFT | 1;
}

enum status dist_new(struct dist **out, const struct dist_config *config, struct error *error)
{
    struct dist *dist = calloc(1, sizeof *dist);
    if (dist == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for distributed autograd");
    dist->config = *config;
    dist->next_context = first_context(config->rpc);
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

static void free_list(void *list)
{
    for (void **item = list; item != NULL;) {
        void **next = *item;
        free(item);
        item = next;
    }
}

static void context_list_free(struct dist_context *context)
{
    while (context != NULL) {
        struct dist_context *next = context->next;
        arena_free(context->staging);
        free(context->callers.at);
        free(context);
        context = next;
    }
}

void dist_release(struct dist *dist)
{
    free_list(dist->free_calls);
    free_list(dist->free_ends);
    free(dist);
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
            context_give_up(dist->contexts, "it takes no part any more");
    while (dist->objects != NULL) {
        struct dist_object *object = dist->objects;
        dist->objects = object->next;
        object_free(object);
    }
    free_list(dist->ends);
    context_list_free(dist->free_contexts);
    free_list(dist->roots);
    free_list(dist->free_pieces);
    free_list(dist->free_parts);
    memory_free(&dist->memory);
    dist->is_closed = true;
    if (dist->orphans == 0)
        dist_release(dist);
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
