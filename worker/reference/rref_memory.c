/* How long the memory of references lasts: an entry until it is freed, the rest until no call is pending. */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdlib.h>

void user_free(struct rref *ref)
{
    struct rref **link = &ref->rrefs->refs;
    while (*link != ref)
        link = &(*link)->next;
    *link = ref->next;
    ref->rrefs->ref_count--;
    free(ref);
}

void rrefs_call_begins(struct rrefs *rrefs)
{
    rrefs->pending++;
}

/* Calls and requests end in rpc_free at the latest; the references stay until then. */
bool rrefs_call_ends(struct rrefs *rrefs)
{
    assert(rrefs->pending > 0);
    rrefs->pending--;
    if (!rrefs->is_closed)
        return true;
    if (rrefs->pending > 0)
        return false;
    for (struct rref *ref = rrefs->refs, *next; ref != NULL; ref = next) {
        next = ref->next;
        free(ref);
    }
    free(rrefs);
    return false;
}
