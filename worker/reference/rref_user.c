/* References of this worker: making, passing on, using, copying, releasing. One entry stands for all handles
 * of one object (rref.c). */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- entries ---- */

static struct rref *user_find(const struct rrefs *rrefs, uint16_t owner, uint64_t number)
{
    struct rref *ref = rrefs->refs;
    while (ref != NULL && !(ref->state == RREF_HELD && ref->owner == owner && ref->number == number))
        ref = ref->next;
    return ref;
}

static enum status user_check_room(const struct rrefs *rrefs, uint32_t count, struct error *error)
{
    return count <= rrefs->config.references_max
               ? STATUS_OK
               : error_set(error, STATUS_BUSY, "worker %u holds %u references, the limit", rrefs->self,
                           rrefs->config.references_max);
}

/* An entry without handles and uses. `within`: references_max, or STATUS_BUSY. */
static enum status user_take(struct rrefs *rrefs, enum rref_state state, uint16_t owner, bool within,
                             struct rref **out, struct error *error)
{
    enum status status = within ? user_check_room(rrefs, rrefs->ref_count + 1, error) : STATUS_OK;
    *out = status == STATUS_OK ? calloc(1, sizeof **out) : NULL;
    if (status == STATUS_OK && *out == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a reference");
    if (status != STATUS_OK)
        return status;
    **out = (struct rref){.rrefs = rrefs, .state = state, .owner = owner, .next = rrefs->refs};
    rrefs->refs = *out;
    rrefs->ref_count++;
    return STATUS_OK;
}

/* A handle for a use that the owner has counted; `ref`, taken for it, is freed when the object has an entry
 * already. Returns the entry with the handle. */
static struct rref *user_hold(struct rref *ref, uint64_t number, const struct rref_class *class)
{
    struct rref *held = user_find(ref->rrefs, ref->owner, number);
    if (held == NULL)
        held = ref;
    else
        user_free(ref);
    held->state = RREF_HELD;
    held->number = number;
    held->uses++;
    held->handles++;
    if (held->class == NULL)
        held->class = class;
    return held;
}

/* ---- the end of an entry ---- */

/* A RELEASE that cannot be sent now is tried again every turn. Without a session the owner has dropped the
 * uses. */
static void user_send_release(struct rref *ref)
{
    struct rrefs *rrefs = ref->rrefs;
    const struct rpc_message message = {.args = {ref->number, ref->uses}};
    struct future *future;
    enum status status =
        rpc_call_async(rrefs->rpc, ref->owner, METHOD_RELEASE, &message, MONOTIME_NEVER, &future, NULL);
    if (status == STATUS_BUSY || status == STATUS_NO_MEMORY) {
        ref->state = RREF_RELEASING;
        rrefs->has_unsent = true;
        rpc_hurry(rrefs->rpc, rrefs);
        return;
    }
    if (status == STATUS_OK)
        future_release(future);
    user_free(ref);
}

struct monotime user_turn(struct rrefs *rrefs)
{
    enum { RETRY_US = 1000 };
    if (!rrefs->has_unsent)
        return MONOTIME_NEVER;
    rrefs->has_unsent = false;
    for (struct rref *ref = rrefs->refs; ref != NULL;) {
        struct rref *next = ref->next;
        if (ref->state == RREF_RELEASING)
            user_send_release(ref);
        ref = next;
    }
    return rrefs->has_unsent ? monotime_add_us(monotime_now(), RETRY_US) : MONOTIME_NEVER;
}

static void user_end_if_unused(struct rref *ref)
{
    if (ref->handles > 0 || ref->state == RREF_MAKING)
        return;
    if (ref->state == RREF_HELD)
        user_send_release(ref);
    else
        user_free(ref);
}

static enum status user_say_gone(uint16_t owner, uint64_t object, struct error *error)
{
    return error_set(error, STATUS_PEER_DIED, "worker %u, which had object %llu, is gone", owner,
                     (unsigned long long)object);
}

/* ---- making ---- */

/* Sends a message of the entry's whose answer `then` handles; `then` begins with rrefs_call_ends. */
static enum status user_send(struct rref *ref, uint16_t worker, enum wire_method method,
                             const struct rpc_message *message, future_then_function *then,
                             struct future **out, struct error *error)
{
    enum status status =
        rpc_call_then(ref->rrefs->rpc, worker, method, message, MONOTIME_NEVER, then, ref, out, error);
    if (status == STATUS_OK)
        rrefs_call_begins(ref->rrefs);
    return status;
}

static void user_fail(struct rref *ref, enum status status, const char *text)
{
    ref->state = RREF_FAILED;
    error_set(&ref->failure, status, "%s", text);
}

/* The answer to REMOTE. An owner that answers with a number in use loses its session, last of all: the
 * functions that learn of its end may release the reference. */
static void user_on_made(struct future *future, void *arg)
{
    struct rref *ref = arg;
    struct rrefs *rrefs = ref->rrefs;
    const struct rpc_message *value = future_value(future);
    const uint16_t owner = ref->owner;
    if (!rrefs_call_ends(rrefs))
        return;
    const bool is_twice = value != NULL && user_find(rrefs, owner, value->args[0]) != NULL;
    if (value == NULL) {
        user_fail(ref, future_status(future), future_text(future));
    } else if (is_twice) {
        user_fail(ref, STATUS_INVALID, "its owner answered with another object's number");
    } else {
        ref->state = RREF_HELD;
        ref->number = value->args[0];
        ref->uses = 1;
    }
    user_end_if_unused(ref);
    if (is_twice)
        rpc_reject_worker(rrefs->rpc, owner, "object %llu was made twice",
                          (unsigned long long)value->args[0]);
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
    message->tensors[0] = (struct wire_tensor){WIRE_U8, 1, .dims = {(uint32_t)strlen(name)}};
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
    enum status status = user_take(rrefs, RREF_MAKING, worker, true, &ref, error);
    if (status != STATUS_OK)
        return status;
    ref->class = rrefs_class(rrefs, name, strlen(name));
    status = user_send(ref, worker, METHOD_REMOTE, &message, user_on_made, NULL, error);
    if (status != STATUS_OK) {
        user_free(ref);
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
    enum status status = user_take(rrefs, RREF_CLAIMING, rrefs->self, true, &ref, error);
    if (status != STATUS_OK)
        return status;
    status = owner_add(rrefs, class, object, rrefs->self, &number, error);
    if (status == STATUS_OK)
        *out = user_hold(ref, number, class);
    else
        user_free(ref);
    return status;
}

/* Also a use that is given back needs an entry. */
enum status rref_accept(struct rrefs *rrefs, uint16_t owner, uint64_t object, const char *class_name,
                        struct rref **out, struct error *error)
{
    const struct rref_class *class =
        class_name == NULL ? NULL : rrefs_class(rrefs, class_name, strlen(class_name));
    struct rref *ref;
    *out = NULL;
    if (!rpc_reaches(rrefs->rpc, owner))
        return user_say_gone(owner, object, error);
    enum status status = user_take(rrefs, RREF_CLAIMING, owner, false, &ref, error);
    if (status != STATUS_OK)
        return status;
    ref = user_hold(ref, object, class);
    status = user_check_room(rrefs, rrefs->ref_count, error);
    if (status == STATUS_OK)
        *out = ref;
    else
        rref_release(ref);
    return status;
}

/* ---- handles ---- */

enum status rref_ready(const struct rref *rref, struct error *error)
{
    if (rref->state == RREF_MAKING)
        return STATUS_AGAIN;
    if (rref->state == RREF_FAILED)
        return error_set(error, rref->failure.status, "%s", rref->failure.text);
    return rpc_reaches(rref->rrefs->rpc, rref->owner) ? STATUS_OK
                                                      : user_say_gone(rref->owner, rref->number, error);
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
    return rref->owner;
}

uint64_t rref_object(const struct rref *rref)
{
    return rref->number;
}

const struct rref_class *rref_class_of(const struct rref *rref)
{
    return rref->class;
}

void *rref_local(const struct rref *rref)
{
    const struct rrefs *rrefs = rref->rrefs;
    struct rref_object *object;
    if (rref->state != RREF_HELD || rref->owner != rrefs->self ||
        owner_find(rrefs, rrefs->self, rref->number, &object, NULL) != STATUS_OK)
        return NULL;
    return object->object;
}

static enum status user_check_ready(const struct rref *rref, struct error *error)
{
    enum status status = rref_ready(rref, error);
    if (status != STATUS_AGAIN)
        return status;
    return error_set(error, STATUS_BUSY, "the reference to an object of worker %u is not ready", rref->owner);
}

enum status rref_call(struct rref *rref, uint32_t function, const struct rpc_message *message,
                      struct monotime deadline, struct future **out, struct error *error)
{
    struct rpc_message full = {0};
    enum status status = user_check_ready(rref, error);
    if (message != NULL)
        full = *message;
    full.args[0] = rref->number;
    full.args[1] = function;
    if (status == STATUS_OK)
        status = rpc_call_async(rref->rrefs->rpc, rref->owner, METHOD_OBJECT, &full, deadline, out, error);
    return status;
}

/* ---- passing on, by the giver ---- */

static void user_on_shared(struct future *future, void *arg)
{
    struct rref *ref = arg;
    (void)future;
    if (rrefs_call_ends(ref->rrefs))
        rref_release(ref);
}

enum status rref_share(struct rref *rref, uint16_t worker, uint64_t tag, struct future **out,
                       struct error *error)
{
    const struct rpc_message message = {.args = {rref->number, rref->owner, tag}};
    enum status status = user_check_ready(rref, error);
    if (status == STATUS_OK)
        status = user_send(rref, worker, METHOD_SHARE, &message, user_on_shared, out, error);
    if (status == STATUS_OK)
        rref_copy(rref);
    return status;
}

/* ---- passing on, by the taker ---- */

static void user_refuse_share(struct rref *ref, enum status status, const char *text)
{
    struct rpc_request *request = ref->request;
    user_free(ref);
    rpc_fail(request, status, "%s", text);
}

/* The answer to CLAIM: the owner has counted this worker, and tells the class's name. `taken` may release the
 * reference. */
static void user_on_claimed(struct future *future, void *arg)
{
    struct rref *ref = arg;
    struct rrefs *rrefs = ref->rrefs;
    struct rpc_request *request = ref->request;
    const struct rpc_message *value = future_value(future);
    const struct wire_tensor *name = value == NULL ? NULL : &value->tensors[0];
    const uint16_t owner = ref->owner;
    const uint64_t tag = ref->tag;
    struct error error;
    if (!rrefs_call_ends(rrefs))
        return;
    if (!rpc_reaches(rrefs->rpc, owner)) {
        user_refuse_share(ref, user_say_gone(owner, ref->number, &error), error.text);
    } else if (value == NULL) {
        user_refuse_share(ref, future_status(future), future_text(future));
    } else if (value->tensor_count != 1 || name->dtype != WIRE_U8 || name->rank != 1 ||
               name->dims[0] > RREF_NAME_BYTES) {
        user_refuse_share(ref, STATUS_INVALID, "the object's owner answered without its class");
        rpc_reject_worker(rrefs->rpc, owner, "an object's class is a tensor of 1 to %d bytes",
                          RREF_NAME_BYTES);
    } else {
        ref = user_hold(ref, ref->number, rrefs_class(rrefs, value->data[0], name->dims[0]));
        rrefs->config.taken(rrefs->config.context, rpc_request_source(request), tag, ref);
        rpc_reply(request, NULL);
    }
}

/* args: object, owner, tag. */
void user_on_share(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    struct rref *ref;
    struct error error = {0};
    const uint64_t object = message->args[0], owner = message->args[1];
    const struct rpc_message claim = {.args = {object, rpc_request_source(request)}};
    if (owner >= rrefs->workers) {
        rpc_reject(request, "a reference to an object of worker %llu, of %u", (unsigned long long)owner,
                   rrefs->workers);
        return;
    }
    if (rrefs->config.taken == NULL) {
        rpc_fail(request, STATUS_PERMISSION, "worker %u takes no references", rrefs->self);
        return;
    }
    enum status status = rpc_reaches(rrefs->rpc, (uint16_t)owner)
                             ? user_take(rrefs, RREF_CLAIMING, (uint16_t)owner, true, &ref, &error)
                             : user_say_gone((uint16_t)owner, object, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    ref->number = object;
    ref->request = request;
    ref->tag = message->args[2];
    status = user_send(ref, (uint16_t)owner, METHOD_CLAIM, &claim, user_on_claimed, NULL, &error);
    if (status != STATUS_OK)
        user_refuse_share(ref, status, error.text);
}
