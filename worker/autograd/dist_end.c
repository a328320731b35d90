/* Telling those who were called within a context that it is over here.
 *
 * What will tell one of them, a `struct dist_end`, is taken before the first call of him leaves, so that no
 * memory is wanting when the context ends, and then goes its own way. END_CONTEXT is served however many
 * calls are open at the callee, but may find no room on its way: in the queue here, or, between clients, at
 * the server that passes it on, which then answers. So an end is kept until it is answered, and told again:
 * in the next turn, or after a refusal when a while has passed, for the next one would come at once. */
#include "worker/autograd/dist_internal.h"

#include <stdlib.h>

enum { RETRY_US = 1000 };

static struct dist_end *find(const struct dist_context *context, uint16_t worker)
{
    struct dist_end *end = context->called;
    while (end != NULL && end->worker != worker)
        end = end->next;
    return end;
}

static void give_back(struct dist_end *end)
{
    end->next = end->dist->free_ends;
    end->dist->free_ends = end;
}

static void wait_for_turn(struct dist_end *end)
{
    end->next = end->dist->ends;
    end->dist->ends = end;
    end->dist->end_count++;
    rpc_hurry(end->dist->config.rpc, end->dist);
}

enum status context_calls(struct dist_context *context, uint16_t worker, struct error *error)
{
    if (find(context, worker) != NULL)
        return STATUS_OK;
    struct dist_end *end = dist_take((void **)&context->dist->free_ends, sizeof *end);
    if (end == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a context's workers");
    end->dist = context->dist;
    end->context = context->id;
    end->worker = worker;
    end->next = context->called;
    context->called = end;
    return STATUS_OK;
}

void context_called(struct dist_context *context, uint16_t worker)
{
    find(context, worker)->is_due = true;
}

bool context_has_called(const struct dist_context *context, uint16_t worker)
{
    const struct dist_end *end = find(context, worker);
    return end != NULL && end->is_due;
}

static void refused(struct dist_end *end)
{
    const struct monotime now = monotime_now();
    if (!monotime_before(now, end->dist->retry_at))
        end->dist->retry_at = monotime_add_us(now, RETRY_US);
    wait_for_turn(end);
}

/* Who is gone has nothing left of the context. */
static enum status on_told(struct future *future, void *arg)
{
    struct dist_end *end = arg;
    struct dist *dist = end->dist;
    const enum status status = future_status(future);
    if (status == STATUS_BUSY && !dist->is_closed)
        refused(end);
    else
        give_back(end);
    if (--dist->orphans == 0 && dist->is_closed)
        dist_release(dist);
    return status;
}

static void tell(struct dist_end *end)
{
    struct dist *dist = end->dist;
    const struct rpc_message message = {.context = end->context, .args = {[END_GIVES_UP] = end->gives_up}};
    dist->orphans++;
    enum status status = rpc_call_then(dist->config.rpc, end->worker, METHOD_END_CONTEXT, &message,
                                       MONOTIME_NEVER, on_told, end, NULL, NULL);
    if (status == STATUS_OK)
        return;
    dist->orphans--;
    if (status == STATUS_BUSY || status == STATUS_NO_MEMORY)
        wait_for_turn(end);
    else
        give_back(end);
}

void context_tell_ends(struct dist_context *context, bool gives_up)
{
    while (context->called != NULL) {
        struct dist_end *end = context->called;
        context->called = end->next;
        end->gives_up = gives_up;
        if (end->is_due)
            tell(end);
        else
            give_back(end);
    }
}

struct monotime dist_on_turn(void *arg)
{
    struct dist *dist = arg;
    struct dist_end *end = dist->ends;
    if (end == NULL)
        return MONOTIME_NEVER;
    const struct monotime now = monotime_now();
    if (monotime_before(now, dist->retry_at))
        return dist->retry_at;
    dist->ends = NULL;
    dist->end_count = 0;
    while (end != NULL) {
        struct dist_end *next = end->next;
        tell(end);
        end = next;
    }
    return dist->ends == NULL ? MONOTIME_NEVER : monotime_add_us(now, RETRY_US);
}
