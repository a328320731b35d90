/* References: opening, closing, what is done at a turn's end, and why an object lives exactly as long as
 * somebody uses it.
 *
 * ---- The protocol ----
 * The owner of an object keeps, for each worker, how many uses that worker has of it. A use begins with a
 * *grant*, which the owner counts before it tells: the answer to REMOTE or to CLAIM, or a number within
 * another call's answer (rref_grant). A worker keeps one entry for all its handles of one object, with the
 * number of grants it has been told of. With the last handle gone and nothing on its way that was sent for
 * the entry, the entry ends with one RELEASE{object, its grants}; a grant told later begins a new one.
 *
 * A reference is passed on so: the giver A sends SHARE to the taker C; C sends CLAIM, naming A, to the
 * owner B; B counts C, if A has a use, and answers; C has a handle now, and answers A's SHARE. While SHARE
 * is on its way A's entry does not end, whatever becomes of its handles.
 *
 * ---- Why it is safe, in whatever order messages arrive ----
 * Let g be the grants that B has counted for C, and r the sum of the uses in C's RELEASEs that B has
 * handled. B's count for C is g - r.
 *
 * 1. No count falls below zero. Each grant told to C enters one entry of C, and each entry one RELEASE. So
 *    every use in a RELEASE was granted, and counted, before that RELEASE was sent, hence before it came:
 *    r <= g always, whichever of C's RELEASEs and CLAIMs overtakes which. A RELEASE of more than there is
 *    can only be a lie, and costs its sender the session.
 * 2. Nobody who may use an object is uncounted. C may use it while it has a handle. A handle belongs to an
 *    entry with a grant that no RELEASE has given back, so g - r >= 1.
 * 3. What is on its way finds the object. A message that needs the object (CLAIM, FETCH, OBJECT) is sent for
 *    an entry that does not end before its answer: the sender's own, or, for CLAIM, the giver's, which waits
 *    for SHARE's answer, which waits for CLAIM's. A layer above keeps a handle for what it sends itself
 *    (FORWARD, PARAMETERS). By 2 the count of that worker is positive until then. In particular, at every
 *    moment until B has counted C, it has A counted: there is no gap between the two. (A call that ran into
 *    its deadline may come later; it then finds the object or a status.)
 * 4. What nobody uses is destroyed. Every grant is told exactly once: the calls that carry grants have no
 *    deadline, are answered once, and fail only with the session between B and C, in which case B drops all
 *    of C's uses (5). Two cases are left out: C cancels all its calls (rpc_cancel_all), and B has no memory
 *    for an answer to itself; what was granted so is told to nobody, and stays counted until the session
 *    ends, or B does. A worker cancels only on the way to its end. What was told is released once, also what
 *    C has no place for (rref_accept): a RELEASE that cannot leave is tried again every turn, and after a
 *    while one that the owner was too busy to handle, which the rpc answers in the handler's place. So when
 *    the last handle everywhere is gone and all has arrived, g = r for all workers.
 * 5. Deaths. When C's session with B ends, for whatever reason, B drops C's uses, and the rpc drops whatever
 *    C sent in it and B has not handled. A grant for a request whose session has ended is not counted
 *    (rpc_request_is_live), so nothing of an ended session is ever counted after its end: the uses of C's
 *    successor are its own. When A dies before C's CLAIM was handled, B may have dropped A's uses and refuses
 *    C's CLAIM (naming A, who has none): C fails the SHARE, `taken` is not called, no one believes to hold
 *    anything. When B dies, entries of its objects are marked, send nothing any more, and go with their
 *    handles. A successor of B never takes a message meant for B's objects for one of its own: the upper bits
 *    of an object's number are its owner's incarnation.
 *
 * Whatever a worker does to its own objects needs no message: its uses are counted like everyone's, and
 * REMOTE, CLAIM, SHARE, FETCH and OBJECT to oneself are calls to oneself; only RELEASE is done at once.
 *
 * An object is destroyed at the end of a turn, never inside of anything: code that answers a call on an
 * object, or releases the last handle of it, may go on using it until it returns. A call in progress
 * (rref_object_use) keeps it beyond the last use. */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ---- */

static const struct rpc_method methods[] = {
    {.method = METHOD_REMOTE, .callers = UINT8_MAX, .any_tensors = true, .handler = owner_on_remote},
    {.method = METHOD_SHARE, .callers = UINT8_MAX, .handler = share_on_share},
    {.method = METHOD_CLAIM, .callers = UINT8_MAX, .handler = owner_on_claim},
    {.method = METHOD_RELEASE, .callers = UINT8_MAX, .at_once = true, .handler = owner_on_release},
    {.method = METHOD_OBJECT, .callers = UINT8_MAX, .any_tensors = true, .handler = owner_on_object},
};

static void rrefs_on_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct rrefs *rrefs = context;
    (void)why;
    (void)text;
    if (rrefs->is_closed)
        return;
    owner_left(rrefs, worker);
    user_left(rrefs, worker);
}

static struct monotime rrefs_on_turn(void *arg)
{
    struct rrefs *rrefs = arg;
    if (rrefs->is_closed)
        return MONOTIME_NEVER;
    owner_turn(rrefs);
    return user_turn(rrefs);
}

static void check_classes(const struct rrefs_config *config)
{
    for (size_t i = 0; i < config->class_count; i++) {
        const struct rref_class *class = config->classes[i];
        assert(class->name[0] != '\0' && strlen(class->name) <= RREF_NAME_BYTES && class->destroy != NULL);
        (void)class;
    }
}

enum status rrefs_new(struct rrefs **out, const struct rrefs_config *config, struct error *error)
{
    assert(config->objects_max >= 1 && config->references_max >= 1);
    check_classes(config);
    struct rrefs *rrefs = calloc(1, sizeof *rrefs);
    if (rrefs == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for references");
    rrefs->config = *config;
    rrefs->rpc = config->rpc;
    rrefs->self = rpc_worker(config->rpc);
    rrefs->workers = rpc_workers(config->rpc);
    if (owner_new(rrefs) != STATUS_OK || user_new(rrefs) != STATUS_OK) {
        rrefs_free_memory(rrefs);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u objects and %u references",
                         config->objects_max, config->references_max);
    }
    rpc_add_methods(rrefs->rpc, methods, sizeof methods / sizeof methods[0], rrefs);
    rpc_on_left(rrefs->rpc, rrefs_on_left, rrefs);
    rpc_on_turn(rrefs->rpc, rrefs_on_turn, rrefs);
    *out = rrefs;
    return STATUS_OK;
}

/* Calls that are still on their way end in rpc_free at the latest, and find the memory until then. */
void rrefs_free(struct rrefs *rrefs)
{
    if (rrefs == NULL)
        return;
    rrefs->is_closed = true;
    rrefs_call_begins(rrefs);
    owner_close(rrefs);
    rrefs_call_ends(rrefs);
}

/* ---- counting ---- */

void rrefs_counts(const struct rrefs *rrefs, struct rref_counts *counts)
{
    *counts = (struct rref_counts){.objects = rrefs->object_count, .references = rrefs->ref_live};
    for (uint32_t i = 0; i < rrefs->workers; i++)
        if (i != rrefs->self)
            counts->users += rrefs->users_of[i];
}

uint32_t rrefs_of_peer(const struct rrefs *rrefs, uint16_t worker)
{
    assert(worker < rrefs->workers);
    return rrefs->users_of[worker];
}
