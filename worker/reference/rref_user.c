/* References of this worker: making, using, copying, releasing. One entry stands for all handles of one
 * object (rref.c). */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY_US = 1000 };

/* ---- the pool ---- */

static bool user_add_entries(struct rrefs *rrefs, size_t count)
{
    struct rref_block *block = calloc(1, sizeof *block + count * sizeof block->refs[0]);
    if (block == NULL)
        return false;
    block->next = rrefs->ref_blocks;
    block->count = count;
    rrefs->ref_blocks = block;
    for (size_t i = count; i-- > 0;) {
        block->refs[i].rrefs = rrefs;
        block->refs[i].next = rrefs->free_refs;
        rrefs->free_refs = &block->refs[i];
    }
    return true;
}

/* references_max entries in use, and as many whose RELEASE is not answered. */
enum status user_new(struct rrefs *rrefs)
{
    const size_t count = 2 * (size_t)rrefs->config.references_max;
    if (!user_add_entries(rrefs, count))
        return STATUS_NO_MEMORY;
    return rref_table_new(&rrefs->refs_table, count);
}

static struct rref *user_take_any(struct rrefs *rrefs, enum rref_state state, uint16_t owner)
{
    struct rref *ref = rrefs->free_refs;
    if (ref == NULL)
        return NULL;
    rrefs->free_refs = ref->next;
    *ref = (struct rref){.rrefs = rrefs, .state = (uint8_t)state, .link = {.owner = owner}};
    rrefs->ref_live++;
    return ref;
}

static enum status user_too_many(const struct rrefs *rrefs, struct error *error)
{
    return error_set(error, STATUS_BUSY, "worker %u holds %u references, at most %u", rrefs->self,
                     rrefs->ref_live, rrefs->config.references_max);
}

enum status user_take(struct rrefs *rrefs, enum rref_state state, uint16_t owner, struct rref **out,
                      struct error *error)
{
    *out = NULL;
    if (rrefs->ref_live >= rrefs->config.references_max)
        return user_too_many(rrefs, error);
    *out = user_take_any(rrefs, state, owner);
    if (*out == NULL)
        return error_set(error, STATUS_BUSY,
                         "worker %u has no room for a reference: %u are on their way back to their owners",
                         rrefs->self, rrefs->ref_releasing);
    return STATUS_OK;
}

void user_give_back(struct rref *ref)
{
    struct rrefs *rrefs = ref->rrefs;
    if (ref->state == RREF_RELEASING)
        rrefs->ref_releasing--;
    else
        rrefs->ref_live--;
    free(ref->text);
    ref->text = NULL;
    ref->state = RREF_FREE;
    ref->next = rrefs->free_refs;
    rrefs->free_refs = ref;
}

/* ---- the end of an entry ---- */

static enum status user_on_released(struct future *future, void *arg);

static void user_wait_for_turn(struct rref *ref)
{
    ref->next = ref->rrefs->unsent;
    ref->rrefs->unsent = ref;
    rpc_hurry(ref->rrefs->rpc, ref->rrefs);
}

/* A RELEASE that cannot be sent now is tried again every turn. Without a session the owner has dropped the
 * uses. */
static void user_send_release(struct rref *ref)
{
    struct rrefs *rrefs = ref->rrefs;
    struct rpc_message message = {.args = {ref->link.number, ref->uses}};
    enum status status = rpc_call_then(rrefs->rpc, ref->link.owner, METHOD_RELEASE, &message, MONOTIME_NEVER,
                                       user_on_released, ref, NULL, NULL);
    if (status == STATUS_OK)
        rrefs_call_begins(rrefs);
    else if (status == STATUS_BUSY || status == STATUS_NO_MEMORY)
        user_wait_for_turn(ref);
    else
        user_give_back(ref);
}

static enum status user_on_released(struct future *future, void *arg)
{
    struct rref *ref = arg;
    if (rrefs_call_ends(ref->rrefs))
        user_give_back(ref);
    return future_status(future);
}

struct monotime user_turn(struct rrefs *rrefs)
{
    struct rref *ref = rrefs->unsent;
    rrefs->unsent = NULL;
    while (ref != NULL) {
        struct rref *next = ref->next;
        if (ref->is_gone)
            user_give_back(ref);
        else
            user_send_release(ref);
        ref = next;
    }
    return rrefs->unsent == NULL ? MONOTIME_NEVER : monotime_add_us(monotime_now(), RETRY_US);
}

static void user_end_entry(struct rref *ref)
{
    struct rrefs *rrefs = ref->rrefs;
    rref_table_remove(&rrefs->refs_table, &ref->link);
    if (ref->link.owner == rrefs->self) {
        owner_uncount(rrefs, ref->link.number, rrefs->self, ref->uses);
        user_give_back(ref);
        return;
    }
    ref->state = RREF_RELEASING;
    rrefs->ref_live--;
    rrefs->ref_releasing++;
    user_send_release(ref);
}

static void user_end_if_unused(struct rref *ref)
{
    if (ref->handles > 0 || ref->flights > 0)
        return;
    if (ref->state == RREF_HELD && !ref->is_gone)
        user_end_entry(ref);
    else
        user_give_back(ref);
}

static void user_mark_gone(struct rref *ref)
{
    if (ref->state == RREF_HELD)
        rref_table_remove(&ref->rrefs->refs_table, &ref->link);
    ref->is_gone = true;
}

void user_left(struct rrefs *rrefs, uint16_t worker)
{
    for (struct rref_block *block = rrefs->ref_blocks; block != NULL; block = block->next)
        for (size_t i = 0; i < block->count; i++) {
            struct rref *ref = &block->refs[i];
            if (ref->state != RREF_FREE && ref->link.owner == worker && !ref->is_gone)
                user_mark_gone(ref);
        }
}

/* ---- messages ---- */

enum status user_send(struct rref *ref, uint16_t worker, enum wire_method method,
                      const struct rpc_message *message, struct monotime deadline, future_then_function *then,
                      struct future **out, struct error *error)
{
    enum status status =
        rpc_call_then(ref->rrefs->rpc, worker, method, message, deadline, then, ref, out, error);
    if (status == STATUS_NOT_FOUND && worker == ref->link.owner && method != METHOD_REMOTE)
        status = error_set(error, STATUS_PEER_DIED, "worker %u, which has object %llu, is gone", worker,
                           (unsigned long long)ref->link.number);
    if (status != STATUS_OK)
        return status;
    rrefs_call_begins(ref->rrefs);
    ref->flights++;
    return STATUS_OK;
}

static void user_flight_ends(struct rref *ref)
{
    assert(ref->flights > 0);
    ref->flights--;
    user_end_if_unused(ref);
}

static enum status user_on_answer(struct future *future, void *arg)
{
    struct rref *ref = arg;
    if (rrefs_call_ends(ref->rrefs))
        user_flight_ends(ref);
    return future_status(future);
}

enum status user_ask(struct rref *ref, uint16_t worker, enum wire_method method,
                     const struct rpc_message *message, struct monotime deadline, struct future **out,
                     struct error *error)
{
    enum status status = rref_ready(ref, error);
    if (status == STATUS_AGAIN)
        status = error_set(error, STATUS_BUSY, "the reference to an object of worker %u is not ready",
                           ref->link.owner);
    if (status == STATUS_OK)
        status = user_send(ref, worker, method, message, deadline, user_on_answer, out, error);
    return status;
}

/* ---- making ---- */

/* One more grant of object `number`. */
static void user_enter(struct rref *ref, uint64_t number)
{
    if (ref->uses++ > 0)
        return;
    ref->state = RREF_HELD;
    ref->link.number = number;
    rref_table_add(&ref->rrefs->refs_table, &ref->link);
}

struct rref *user_hold(struct rref *ref, uint64_t number, const struct rref_class *class)
{
    struct rref *held = (struct rref *)rref_table_find(&ref->rrefs->refs_table, ref->link.owner, number);
    if (held == NULL)
        held = ref;
    else
        user_give_back(ref);
    user_enter(held, number);
    if (held->class == NULL)
        held->class = class;
    held->handles++;
    return held;
}

static void user_fail(struct rref *ref, enum status status, const char *text)
{
    ref->state = RREF_FAILED;
    ref->status = status;
    ref->text = strdup(text);
}

/* The answer to REMOTE. An owner that answers with a number in use loses its session. */
static enum status user_on_made(struct future *future, void *arg)
{
    struct rref *ref = arg;
    struct rrefs *rrefs = ref->rrefs;
    const struct rpc_message *value = future_value(future);
    uint16_t owner = ref->link.owner;
    if (!rrefs_call_ends(rrefs))
        return future_status(future);
    if (value == NULL) {
        user_fail(ref, future_status(future), future_text(future));
    } else if (ref->is_gone) {
        user_fail(ref, STATUS_PEER_DIED, "its owner is gone");
    } else if (rref_table_find(&rrefs->refs_table, owner, value->args[0]) != NULL) {
        user_fail(ref, STATUS_INVALID, "its owner answered with another object's number");
        rpc_reject_worker(rrefs->rpc, owner, "object %llu was made twice",
                          (unsigned long long)value->args[0]);
    } else {
        user_enter(ref, value->args[0]);
    }
    user_flight_ends(ref);
    return future_status(future);
}

/* The constructor's message, with the class's name as its first tensor. */
static void user_name_class(struct rpc_message *message, const char *name,
                            const struct rpc_message *arguments)
{
    if (arguments != NULL)
        *message = *arguments;
    assert(message->args[0] == 0 && message->data[0] == NULL);
    if (message->tensor_count == 0)
        message->tensor_count = 1;
    message->tensors[0] = (struct wire_tensor){WIRE_U8, 1, {(uint32_t)strlen(name)}};
    message->data[0] = name;
}

enum status rpc_remote(struct rrefs *rrefs, uint16_t worker, const char *name,
                       const struct rpc_message *arguments, struct rref **out, struct error *error)
{
    struct rref *ref;
    struct rpc_message message = {0};
    if (name[0] == '\0' || strlen(name) > RREF_NAME_BYTES)
        return error_set(error, STATUS_INVALID, "a constructor's name has 1 to %d bytes", RREF_NAME_BYTES);
    user_name_class(&message, name, arguments);
    enum status status = user_take(rrefs, RREF_MAKING, worker, &ref, error);
    if (status != STATUS_OK)
        return status;
    ref->class = rrefs_class(rrefs, name, strlen(name));
    status = user_send(ref, worker, METHOD_REMOTE, &message, MONOTIME_NEVER, user_on_made, NULL, error);
    if (status != STATUS_OK) {
        user_give_back(ref);
        return status;
    }
    ref->handles = 1;
    *out = ref;
    return STATUS_OK;
}

enum status rref_own(struct rrefs *rrefs, const struct rref_class *class, void *object, struct rref **out,
                     struct error *error)
{
    struct rref *ref;
    uint64_t number;
    enum status status = user_take(rrefs, RREF_HELD, rrefs->self, &ref, error);
    if (status != STATUS_OK)
        return status;
    status = owner_add(rrefs, class, object, &number, error);
    if (status != STATUS_OK) {
        user_give_back(ref);
        return status;
    }
    owner_count(rrefs, number, rrefs->self);
    *out = user_hold(ref, number, class);
    return STATUS_OK;
}

/* An entry for a grant, beyond references_max if need be: also a use that is given back needs one. */
static struct rref *user_take_for_grant(struct rrefs *rrefs, uint16_t owner)
{
    if (rrefs->free_refs == NULL && !user_add_entries(rrefs, rrefs->config.references_max))
        return NULL;
    return user_take_any(rrefs, RREF_HELD, owner);
}

/* No memory for an entry: a use of our own object is given back at once; another owner drops it with the
 * session. */
static enum status user_refuse_grant(struct rrefs *rrefs, uint16_t owner, uint64_t object,
                                     struct error *error)
{
    if (owner == rrefs->self)
        owner_uncount(rrefs, object, owner, 1);
    else
        rpc_peer_died(rrefs->rpc, owner, "no memory to give a reference back");
    return error_set(error, STATUS_NO_MEMORY, "no memory for a reference to object %llu of worker %u",
                     (unsigned long long)object, owner);
}

enum status rref_accept(struct rrefs *rrefs, uint16_t owner, uint64_t object, const char *class_name,
                        struct rref **out, struct error *error)
{
    *out = NULL;
    enum status status = rrefs_check_owner(rrefs, owner, object, error);
    if (status != STATUS_OK)
        return status;
    const struct rref_class *class =
        class_name == NULL ? NULL : rrefs_class(rrefs, class_name, strlen(class_name));
    struct rref *ref = user_take_for_grant(rrefs, owner);
    if (ref == NULL)
        return user_refuse_grant(rrefs, owner, object, error);
    ref = user_hold(ref, object, class);
    if (rrefs->ref_live <= rrefs->config.references_max) {
        *out = ref;
        return STATUS_OK;
    }
    rref_release(ref);
    return user_too_many(rrefs, error);
}

/* ---- handles ---- */

enum status rref_ready(const struct rref *rref, struct error *error)
{
    if (rref->state == RREF_MAKING)
        return STATUS_AGAIN;
    if (rref->state == RREF_FAILED)
        return error_set(error, rref->status, "%s", rref->text == NULL ? "" : rref->text);
    if (rref->is_gone)
        return error_set(error, STATUS_PEER_DIED, "worker %u, which had object %llu, is gone",
                         rref->link.owner, (unsigned long long)rref->link.number);
    return STATUS_OK;
}

struct rref *rref_copy(struct rref *rref)
{
    assert(rref->handles > 0);
    rref->handles++;
    return rref;
}

void rref_release(struct rref *rref)
{
    if (rref == NULL || rref->rrefs->is_closed)
        return;
    assert(rref->handles > 0);
    rref->handles--;
    user_end_if_unused(rref);
}

/* ---- using ---- */

uint16_t rref_owner(const struct rref *rref)
{
    return rref->link.owner;
}

uint64_t rref_object(const struct rref *rref)
{
    return rref->link.number;
}

const struct rref_class *rref_class_of(const struct rref *rref)
{
    return rref->class;
}

void *rref_local(const struct rref *rref)
{
    const struct rrefs *rrefs = rref->rrefs;
    struct rref_object *object;
    if (rref->state != RREF_HELD || rref->link.owner != rrefs->self ||
        owner_find(rrefs, rrefs->self, rref->link.number, &object, NULL) != STATUS_OK)
        return NULL;
    return object->object;
}

enum status rref_call(struct rref *rref, uint32_t function, const struct rpc_message *message,
                      struct monotime deadline, struct future **out, struct error *error)
{
    struct rpc_message full = {0};
    if (message != NULL)
        full = *message;
    full.args[0] = rref->link.number;
    full.args[1] = function;
    return user_ask(rref, rref->link.owner, METHOD_OBJECT, &full, deadline, out, error);
}
