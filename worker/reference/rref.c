/* References: opening, closing, the end of a turn, deaths. And the protocol:
 *
 * ---- The protocol ----
 * The owner of an object counts, for each worker, that worker's uses of it. A use begins with a *grant*: the
 * owner counts it before it tells of it, in the answer to REMOTE or CLAIM, or as a number in another call's
 * answer (rref_grant). A worker has one *entry* for all its handles of one object; the entry holds the number
 * of grants that the worker has been told of. When the last handle is released, the entry ends with one
 * RELEASE{object, its grants}. A later grant begins a new entry.
 *
 * A reference is passed on in four messages. The giver A sends SHARE to the taker C. C sends CLAIM, naming A,
 * to the owner B. B counts C, if A has a use, and answers C. Now C has a handle, and answers A. A's entry
 * does not end before that answer, even when A has released its handles.
 *
 * ---- Why it is safe ----
 * Messages from one worker to another arrive in the order of sending. Let g be the grants that B has counted
 * for C, and r the sum of the uses in C's RELEASEs that B has handled. B's count for C is g - r.
 *
 * 1. No count falls below zero. Each grant that C is told of enters one entry, and each entry sends one
 *    RELEASE. So every use in a RELEASE was counted before that RELEASE was sent: r <= g always. A RELEASE
 *    of more uses than there are is a lie, and costs its sender the session.
 * 2. A worker with a handle is counted. The handle's entry has a grant that no RELEASE has given back: g -
 *    r >= 1.
 * 3. A message on its way finds its object. OBJECT, and the messages of a layer above (FORWARD, PARAMETERS),
 *    are sent by a worker with a handle, and so before its RELEASE. CLAIM finds the giver counted: the
 *    giver's entry waits for SHARE's answer, which waits for CLAIM's.
 * 4. An object without users is destroyed. Every grant is told once: calls that carry grants have no
 *    deadline, are answered once, and fail only with the session between B and C, and then B drops all of
 *    C's uses (5). Two cases are left out: C cancels all its calls (rpc_cancel_all), which a worker does
 *    only on the way to its end; and B has no memory for an answer to itself. Such grants stay counted
 *    until the session ends, or B does. A grant that was told is released once, also when C has no room
 *    for it (rref_accept); a RELEASE that cannot be sent is tried again in later turns, and its owner
 *    serves it however many calls are open. So when the last handle anywhere is released and all messages
 *    have arrived, g = r for all workers.
 * 5. Deaths. When C's session with B ends, B drops C's uses, and the rpc drops C's messages that B has not
 *    handled. A grant for a request whose session has ended is not counted (rpc_request_is_live). When A
 *    dies before B handles C's CLAIM, B may have dropped A's uses and refuses the CLAIM; C fails the
 *    SHARE, and `taken` is not called. When B dies, entries of its objects send nothing any more, and end
 *    with their handles. A dead worker has no successor among the workers that knew it: the job goes on
 *    under another generation, with new processes.
 *
 * A worker's own objects need no other rules: its uses are counted like other workers', and its messages to
 * itself are like others'. */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ---- */

static const struct rpc_method methods[] = {
    {.method = METHOD_REMOTE, .callers = UINT8_MAX, .any_tensors = true, .handler = owner_on_remote},
    {.method = METHOD_SHARE, .callers = UINT8_MAX, .handler = user_on_share},
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
}

static struct monotime rrefs_on_turn(void *arg)
{
    struct rrefs *rrefs = arg;
    if (rrefs->is_closed)
        return MONOTIME_NEVER;
    owner_destroy(rrefs, false);
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
    rpc_add_methods(rrefs->rpc, methods, sizeof methods / sizeof methods[0], rrefs);
    rpc_on_left(rrefs->rpc, rrefs_on_left, rrefs);
    rpc_on_turn(rrefs->rpc, rrefs_on_turn, rrefs);
    *out = rrefs;
    return STATUS_OK;
}

void rrefs_free(struct rrefs *rrefs)
{
    if (rrefs == NULL)
        return;
    rrefs->is_closed = true;
    rrefs_call_begins(rrefs);
    owner_destroy(rrefs, true);
    rrefs_call_ends(rrefs);
}

/* ---- counting ---- */

void rrefs_counts(const struct rrefs *rrefs, struct rref_counts *counts)
{
    *counts = (struct rref_counts){.objects = rrefs->object_count};
    for (const struct rref *ref = rrefs->refs; ref != NULL; ref = ref->next)
        counts->references += ref->state != RREF_RELEASING;
    for (uint32_t i = 0; i < rrefs->workers; i++)
        if (i != rrefs->self)
            counts->users += rrefs_of_peer(rrefs, (uint16_t)i);
}

uint32_t rrefs_of_peer(const struct rrefs *rrefs, uint16_t worker)
{
    uint32_t count = 0;
    assert(worker < rrefs->workers);
    for (const struct rref_object *object = rrefs->objects; object != NULL; object = object->next)
        count += object->uses_of[worker] > 0;
    return count;
}
