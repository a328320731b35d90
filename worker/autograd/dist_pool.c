/* Lists of free records, so that a step allocates nothing. A call or an end whose future is not done outlives
 * dist_free. */
#include "worker/autograd/dist_internal.h"

#include <stdlib.h>
#include <string.h>

void *dist_pool_take(void **list, size_t bytes)
{
    void **item = *list;
    if (item == NULL)
        return calloc(1, bytes);
    *list = *item;
    memset(item, 0, bytes);
    return item;
}

void dist_pool_free(void *list)
{
    for (void **item = list; item != NULL;) {
        void **next = *item;
        free(item);
        item = next;
    }
}

static void free_if_last(struct dist *dist)
{
    if (dist->orphans > 0 || !dist->is_closed)
        return;
    dist_pool_free(dist->free_calls);
    dist_pool_free(dist->free_ends);
    free(dist);
}

void dist_pool_orphan_done(struct dist *dist)
{
    dist->orphans--;
    free_if_last(dist);
}

void dist_pool_close(struct dist *dist)
{
    dist->is_closed = true;
    free_if_last(dist);
}
