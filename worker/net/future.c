/* Futures: the results of calls, and futures that follow others.
 *
 * A future is shared by all that may still ask for it: its caller, the table of pending calls, and what
 * was derived from it. Completing one does not call anything; it queues the future, and futures_tell walks
 * the queue at a place where nothing of ours is half done. So a chain of any length needs no stack, and a
 * `then` may call, cancel or release whatever it likes. */
#include "worker/net/rpc_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct rpc_message no_message;

/* ---- pools ---- */

/* As many futures again as may be pending: calls done but not released, and futures made of others. */
enum status futures_new(struct rpc *rpc)
{
    rpc->future_count = 2 * (size_t)rpc->config.pending_max + 64;
    rpc->futures = calloc(rpc->future_count, sizeof *rpc->futures);
    rpc->links = calloc(rpc->future_count, sizeof *rpc->links);
    if (rpc->futures == NULL || rpc->links == NULL)
        return STATUS_NO_MEMORY;
    for (size_t i = rpc->future_count; i-- > 0;) {
        rpc->futures[i].next = rpc->free_futures;
        rpc->free_futures = &rpc->futures[i];
        rpc->links[i].next = rpc->free_links;
        rpc->free_links = &rpc->links[i];
    }
    rpc->done_end = &rpc->done_first;
    return STATUS_OK;
}

static void future_drop_contents(struct future *future)
{
    if (future->has_frames)
        endpoint_release(&future->frames);
    future->has_frames = false;
    if (future->body.bytes != NULL)
        body_free(&future->body);
    text_release(future->text);
    future->text = NULL;
}

void futures_free(struct rpc *rpc)
{
    for (size_t i = 0; rpc->futures != NULL && i < rpc->future_count; i++)
        future_drop_contents(&rpc->futures[i]);
    free(rpc->futures);
    free(rpc->links);
}

struct future *future_new(struct rpc *rpc, enum future_kind kind)
{
    struct future *future = rpc->free_futures;
    if (future == NULL)
        return NULL;
    rpc->free_futures = future->next;
    future->rpc = rpc;
    future->next = NULL;
    future->references = 1;
    future->kind = (uint8_t)kind;
    future->is_done = false;
    future->status = STATUS_AGAIN;
    future->links = NULL;
    future->links_end = &future->links;
    future->source = NULL;
    return future;
}

bool futures_suffice(const struct rpc *rpc, size_t count)
{
    const struct future *future = rpc->free_futures;
    for (; count > 0 && future != NULL; count--)
        future = future->next;
    return count == 0 && rpc->free_links != NULL;
}

/* Releasing the last of a chain releases the one before it, and so on: a loop, for the stack's sake. */
static void future_unreference(struct future *future)
{
    while (future != NULL) {
        assert(future->references > 0);
        if (--future->references > 0)
            return;
        struct future *source = future->source;
        future_drop_contents(future);
        future->next = future->rpc->free_futures;
        future->rpc->free_futures = future;
        future = source;
    }
}

void future_release(struct future *future)
{
    future_unreference(future);
}

/* ---- texts ---- */

struct rpc_text *text_new(const uint8_t *bytes, size_t count)
{
    struct rpc_text *text = malloc(sizeof *text);
    if (text == NULL)
        return NULL;
    text->references = 1;
    rules_copy_text(text->bytes, sizeof text->bytes, bytes, count);
    return text;
}

void text_release(struct rpc_text *text)
{
    if (text != NULL && --text->references == 0)
        free(text);
}

/* ---- completion ---- */

/* Gives up the reference that stands for "pending". A future without waiters is done at once, without the
 * queue. */
void future_complete(struct future *future, enum status status, struct rpc_text *text)
{
    struct rpc *rpc = future->rpc;
    assert(!future->is_done && status != STATUS_AGAIN);
    if (future->kind == FUTURE_CALL)
        pending_remove(rpc, future);
    future->is_done = true;
    future->status = status;
    future->text = text;
    if (text != NULL)
        text->references++;
    if (future->links == NULL) {
        future_unreference(future);
        return;
    }
    future->next = NULL;
    *rpc->done_end = future;
    rpc->done_end = &future->next;
}

static void future_run_then(struct future *waiter, struct future *source)
{
    struct rpc *rpc = waiter->rpc;
    rpc->callbacks++;
    enum status status = waiter->then.function(source, waiter->then.arg);
    rpc->callbacks--;
    future_complete(waiter, status, NULL);
}

static void future_count_completed(struct future *waiter, struct future *source, size_t index)
{
    if (source->status != STATUS_OK && index < waiter->all.failed_index) {
        source->references++;
        future_unreference(waiter->source);
        waiter->source = source;
        waiter->all.failed_index = index;
    }
    if (--waiter->all.remaining == 0)
        future_complete(waiter, waiter->source == NULL ? STATUS_OK : waiter->source->status, NULL);
}

static void future_tell_waiter(struct future *waiter, struct future *source, size_t index)
{
    if (waiter->kind == FUTURE_THEN)
        future_run_then(waiter, source);
    else
        future_count_completed(waiter, source, index);
}

void futures_tell(struct rpc *rpc)
{
    if (rpc->is_telling)
        return;
    rpc->is_telling = true;
    while (rpc->done_first != NULL) {
        struct future *future = rpc->done_first;
        rpc->done_first = future->next;
        if (rpc->done_first == NULL)
            rpc->done_end = &rpc->done_first;
        while (future->links != NULL) {
            struct future_link link = *future->links;
            future->links->next = rpc->free_links;
            rpc->free_links = future->links;
            future->links = link.next;
            future_tell_waiter(link.waiter, future, link.index);
        }
        future_unreference(future);
    }
    rpc->is_telling = false;
}

/* ---- for callers ---- */

bool future_done(const struct future *future)
{
    return future->is_done;
}

enum status future_status(const struct future *future)
{
    return future->status;
}

const char *future_text(const struct future *future)
{
    while (future->status != STATUS_OK && future->text == NULL && future->source != NULL)
        future = future->source;
    return future->status == STATUS_OK || future->text == NULL ? "" : future->text->bytes;
}

const struct rpc_message *future_value(const struct future *future)
{
    while (future->kind == FUTURE_THEN && future->status == STATUS_OK && future->source->is_done)
        future = future->source;
    if (!future->is_done || future->status != STATUS_OK)
        return NULL;
    return future->kind == FUTURE_CALL ? &future->value : &no_message;
}

/* Lets `waiter` know when `future` is done. The links' number is checked by the caller. */
static void future_link_to(struct future *future, struct future *waiter, size_t index)
{
    struct rpc *rpc = future->rpc;
    struct future_link *link = rpc->free_links;
    rpc->free_links = link->next;
    if (future->links == NULL)
        future->links_end = &future->links;
    *link = (struct future_link){waiter, index, NULL};
    *future->links_end = link;
    future->links_end = &link->next;
}

enum status future_then(struct future *future, future_then_function *then, void *arg, struct future **out)
{
    struct rpc *rpc = future->rpc;
    if (rpc->free_links == NULL)
        return STATUS_BUSY;
    struct future *made = future_new(rpc, FUTURE_THEN);
    if (made == NULL)
        return STATUS_BUSY;
    made->references++; /* until it is done */
    made->then.function = then;
    made->then.arg = arg;
    made->source = future;
    future->references++;
    *out = made;
    if (future->is_done)
        future_run_then(made, future);
    else
        future_link_to(future, made, 0);
    return STATUS_OK;
}

/* Whether the pool has a link for each that is not done yet. */
static bool futures_have_links(const struct rpc *rpc, struct future *const *futures, size_t count)
{
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++)
        wanted += !futures[i]->is_done;
    for (const struct future_link *link = rpc->free_links; link != NULL && wanted > 0; link = link->next)
        wanted--;
    return wanted == 0;
}

enum status future_all(struct rpc *rpc, struct future *const *futures, size_t count, struct future **out)
{
    if (!futures_have_links(rpc, futures, count))
        return STATUS_BUSY;
    struct future *made = future_new(rpc, FUTURE_ALL);
    if (made == NULL)
        return STATUS_BUSY;
    made->references++; /* until it is done */
    made->all.remaining = count + 1;
    made->all.failed_index = SIZE_MAX;
    *out = made;
    for (size_t i = 0; i < count; i++) {
        assert(futures[i]->rpc == rpc);
        if (futures[i]->is_done)
            future_count_completed(made, futures[i], i);
        else
            future_link_to(futures[i], made, i);
    }
    if (--made->all.remaining == 0)
        future_complete(made, made->source == NULL ? STATUS_OK : made->source->status, NULL);
    return STATUS_OK;
}
