/* END_CONTEXT, sent: the workers that were called in a context hear that it is over on their caller.
 *
 * The memory of an end is taken before the first call of its worker leaves, so that an end never fails. When
 * the session has no room for it, it is sent in a later turn. Its receiver always has room (at_once). */
#include "worker/autograd/dist_internal.h"

enum { RETRY_US = 1000 };

static struct dist_end *end_find(const struct dist_context *context, uint16_t worker)
{
    struct dist_end *end = context->called;
    while (end != NULL && end->worker != worker)
        end = end->next;
    return end;
}

enum status end_prepare(struct dist_context *context, uint16_t worker, struct error *error)
{
    if (end_find(context, worker) != NULL)
        return STATUS_OK;
    struct dist_end *end = dist_pool_take((void **)&context->dist->free_ends, sizeof *end);
    if (end == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a context's workers");
    end->dist = context->dist;
    end->context = context->id;
    end->worker = worker;
    end->next = context->called;
    context->called = end;
    return STATUS_OK;
}

void end_becomes_due(struct dist_context *context, uint16_t worker)
{
    end_find(context, worker)->is_due = true;
}

bool end_is_due(const struct dist_context *context, uint16_t worker)
{
    const struct dist_end *end = end_find(context, worker);
    return end != NULL && end->is_due;
}

static void end_free(struct dist_end *end)
{
    end->next = end->dist->free_ends;
    end->dist->free_ends = end;
}

static enum status end_answered(struct future *future, void *arg)
{
    struct dist_end *end = arg;
    const enum status status = future_status(future);
    end_free(end);
    dist_pool_orphan_done(end->dist);
    return status;
}

static void end_send(struct dist_end *end)
{
    struct dist *dist = end->dist;
    const struct rpc_message message = {.context = end->context, .args = {[END_LOST] = end->is_lost}};
    enum status status = rpc_call_then(dist->config.rpc, end->worker, METHOD_END_CONTEXT, &message,
                                       MONOTIME_NEVER, end_answered, end, NULL, NULL);
    if (status == STATUS_OK) {
        dist->orphans++;
    } else if (status == STATUS_BUSY || status == STATUS_NO_MEMORY) {
        end->next = dist->ends;
        dist->ends = end;
        dist->end_count++;
        rpc_hurry(dist->config.rpc, dist);
    } else {
        end_free(end); // a worker that is gone has nothing left of the context
    }
}

void ends_send(struct dist_context *context, bool is_lost)
{
    while (context->called != NULL) {
        struct dist_end *end = context->called;
        context->called = end->next;
        end->is_lost = is_lost;
        if (end->is_due)
            end_send(end);
        else
            end_free(end);
    }
}

struct monotime dist_on_turn(void *arg)
{
    struct dist *dist = arg;
    struct dist_end *end = dist->ends;
    dist->ends = NULL;
    dist->end_count = 0;
    while (end != NULL) {
        struct dist_end *next = end->next;
        end_send(end);
        end = next;
    }
    return dist->ends == NULL ? MONOTIME_NEVER : monotime_add_us(monotime_now(), RETRY_US);
}
