/* The calls that are pending: a hash table by (worker, request id), and a binary heap of those with a
 * deadline. Each future knows its place in the heap. Deadlines mostly come in ascending order, where the heap
 * costs one comparison, and removing any one of ten thousand costs a dozen. Thread: the owner of the rpc. */
#include "worker/net/rpc_internal.h"

#include <stdlib.h>

enum status pending_new(struct rpc *rpc)
{
    uint32_t slots = 4;
    while (slots < 2 * rpc->config.pending_max)
        slots *= 2;
    rpc->table_mask = slots - 1;
    rpc->table = calloc(slots, sizeof *rpc->table);
    rpc->heap = calloc(rpc->config.pending_max, sizeof *rpc->heap);
    return rpc->table == NULL || rpc->heap == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

void pending_free(struct rpc *rpc)
{
    free(rpc->table);
    free(rpc->heap);
}

/* ---- the table ---- */

/* Fibonacci hashing: neighbouring ids of one worker land far apart, and so do workers. */
static uint32_t table_home(const struct rpc *rpc, uint16_t worker, uint64_t request)
{
    uint64_t mixed = (request ^ (uint64_t)worker << 48) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32) & rpc->table_mask;
}

static uint32_t table_home_of(const struct rpc *rpc, const struct future *call)
{
    return table_home(rpc, call->call.session->worker, call->call.request);
}

static void table_add(struct rpc *rpc, struct future *call)
{
    uint32_t at = table_home_of(rpc, call);
    while (rpc->table[at] != NULL)
        at = (at + 1) & rpc->table_mask;
    rpc->table[at] = call;
}

struct future *pending_find(const struct rpc *rpc, const struct rpc_session *session, uint64_t request)
{
    uint32_t at = table_home(rpc, session->worker, request);
    for (; rpc->table[at] != NULL; at = (at + 1) & rpc->table_mask)
        if (rpc->table[at]->call.request == request && rpc->table[at]->call.session == session)
            return rpc->table[at];
    return NULL;
}

/* Moves back the entries that the gap would hide from a search, so that no tombstones gather. */
static void table_remove(struct rpc *rpc, const struct future *call)
{
    uint32_t gap = table_home_of(rpc, call);
    while (rpc->table[gap] != call)
        gap = (gap + 1) & rpc->table_mask;
    uint32_t at = gap;
    for (;;) {
        at = (at + 1) & rpc->table_mask;
        if (rpc->table[at] == NULL)
            break;
        uint32_t home = table_home_of(rpc, rpc->table[at]);
        if (((at - home) & rpc->table_mask) < ((at - gap) & rpc->table_mask))
            continue;
        rpc->table[gap] = rpc->table[at];
        gap = at;
    }
    rpc->table[gap] = NULL;
}

/* ---- the heap ---- */

static void heap_put(struct rpc *rpc, uint32_t at, struct future *call)
{
    rpc->heap[at] = call;
    call->call.place = (int32_t)at;
}

static void heap_rise(struct rpc *rpc, uint32_t at, struct future *call)
{
    while (at > 0 && monotime_before(call->call.deadline, rpc->heap[(at - 1) / 2]->call.deadline)) {
        heap_put(rpc, at, rpc->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(rpc, at, call);
}

static void heap_sink(struct rpc *rpc, uint32_t at, struct future *call)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= rpc->heap_count)
            break;
        if (child + 1 < rpc->heap_count &&
            monotime_before(rpc->heap[child + 1]->call.deadline, rpc->heap[child]->call.deadline))
            child++;
        if (!monotime_before(rpc->heap[child]->call.deadline, call->call.deadline))
            break;
        heap_put(rpc, at, rpc->heap[child]);
        at = child;
    }
    heap_put(rpc, at, call);
}

static void heap_remove(struct rpc *rpc, struct future *call)
{
    uint32_t at = (uint32_t)call->call.place;
    struct future *last = rpc->heap[--rpc->heap_count];
    call->call.place = NO_PLACE;
    if (last == call)
        return;
    if (at > 0 && monotime_before(last->call.deadline, rpc->heap[(at - 1) / 2]->call.deadline))
        heap_rise(rpc, at, last);
    else
        heap_sink(rpc, at, last);
}

struct monotime pending_next_deadline(const struct rpc *rpc)
{
    return rpc->heap_count == 0 ? MONOTIME_NEVER : rpc->heap[0]->call.deadline;
}

void pending_remove(struct rpc *rpc, struct future *call)
{
    table_remove(rpc, call);
    if (call->call.place != NO_PLACE)
        heap_remove(rpc, call);
    rpc->pending--;
}

void pending_add(struct rpc *rpc, struct future *call)
{
    call->call.place = NO_PLACE;
    table_add(rpc, call);
    rpc->pending++;
    if (!monotime_is_never(call->call.deadline))
        heap_rise(rpc, rpc->heap_count++, call);
}
