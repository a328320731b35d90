/* Remote references, both sides: the objects that live on this worker, and this worker's references to
 * objects anywhere. The thread that owns the rpc runs all of it.
 *
 * ---- The protocol ----
 * The owner of an object counts, for each worker, that worker's uses of the object. To *grant* a use is to
 * count it and then to tell the worker: in the answer to REMOTE or CLAIM, or as a number in another call's
 * answer (rref_grant). A worker has one reference for all its handles of one object. The reference holds the
 * number of uses that the worker has been told of. When its last handle is released, the reference ends with
 * one RELEASE{object, its uses}. A later grant begins a new reference.
 *
 * A reference is passed on in four messages. The giver A sends SHARE to the taker C. C sends CLAIM, naming A,
 * to the owner B. B counts a use for C, if A has one, and answers C. Now C has a handle, and answers A. A's
 * reference does not end before that answer, even when A has released its handles.
 *
 * ---- Why it is safe ----
 * Messages from one worker to another arrive in the order of sending. Let g be the uses that B has granted to
 * C, and r the sum of the uses in C's RELEASEs that B has handled. B's count for C is g - r.
 *
 * 1. No count falls below zero. Each use that C is told of enters one reference, and each reference sends one
 *    RELEASE. So every use in a RELEASE was counted before that RELEASE was sent: r <= g always. A RELEASE of
 *    more uses than there are is a lie, and costs its sender the session.
 * 2. A worker with a handle is counted. The handle's reference has a use that no RELEASE has given back: g -
 *    r >= 1.
 * 3. A message on its way finds its object. OBJECT, and the messages of a layer above (FORWARD, PARAMETERS),
 *    are sent by a worker with a handle, and so before its RELEASE. CLAIM finds the giver counted: the
 *    giver's reference waits for SHARE's answer, which waits for CLAIM's.
 * 4. An object without users is destroyed. Every grant is told once: calls that carry grants have no
 *    deadline, are answered once, and fail only with the session between B and C, and then B drops all of
 *    C's uses (5). Three cases are left out: C cancels all its calls (rpc_cancel_all), which a worker does
 *    only on the way to its end; B has no memory for an answer to itself; and B has no memory for a RELEASE
 * to itself that waits. Such uses stay counted until the session ends, or B does. A use that was told is
 *    released once, also when C has no room for it (rref_accept). A RELEASE that cannot be sent is tried
 * again in later turns (rpc_notify), and its owner serves it however many calls are open. So when the last
 * handle anywhere is released and all messages have arrived, g = r for all workers.
 * 5. Deaths. When C's session with B ends, B drops C's uses, and the rpc drops C's messages that B has not
 *    handled. A use granted to a request whose session has ended is not counted (rpc_request_is_live). When A
 *    dies before B handles C's CLAIM, B may have dropped A's uses and refuses the CLAIM; C fails the
 *    SHARE, and `taken` is not called. When B dies, references to its objects send nothing any more, and end
 *    with their handles. A dead worker has no successor among the workers that knew it: the job goes on
 *    under another generation, with new processes.
 *
 * A worker's own objects need no other rules: its uses are counted like other workers', and its messages to
 * itself are like others'. */
#include "worker/reference/rref.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An object that lives here. Without uses and keeps it is destroyed when the turn ends, and not found before.
 */
struct rref_object {
    struct rref_object *next; /* newest first */
    uint64_t number;
    const struct rref_class *class;
    void *object;
    uint32_t keeps;     /* calls in progress on it */
    uint64_t uses;      /* of all workers */
    uint64_t uses_of[]; /* (workers) */
};

enum rref_state {
    RREF_MAKING,   /* REMOTE is sent */
    RREF_CLAIMING, /* no handle: CLAIM is sent, or a use is entered at once */
    RREF_HELD,     /* the only one with this owner and number */
    RREF_FAILED,   /* the object could not be made */
};

/* A reference: all uses of one object by this worker. */
struct rref {
    struct rref *next;
    struct rrefs *rrefs;
    uint16_t owner;
    uint64_t number;
    enum rref_state state;
    uint32_t handles; /* and SHAREs that are not answered */
    uint64_t uses;    /* that the owner has told us of */
    const struct rref_class *class;
    struct error failure;        /* RREF_FAILED */
    struct rpc_request *request; /* RREF_CLAIMING: the SHARE to answer, and its tag */
    uint64_t tag;
};

struct rrefs {
    struct rrefs_config config;
    struct rpc *rpc;
    uint16_t self;
    uint32_t workers;
    bool is_closed;
    uint32_t pending; /* calls and requests that will end in a callback with this memory */

    struct rref_object *objects;
    uint64_t last_number; /* given to an object */
    uint32_t object_count;
    bool has_unused; /* an object may have lost its last use in this turn */
    void (*on_destroy)(void *context, void *object);
    void *on_destroy_context;

    struct rref *refs;
    uint32_t ref_count;
};

/* ---- how long the rrefs last: until no call is pending ---- */

/* Begins every callback that `pending` counts. False: the rrefs are closed, and perhaps freed by this. Calls
 * and requests end in rpc_free at the latest. */
static bool rrefs_call_ends(struct rrefs *rrefs)
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

static const struct rref_class *rrefs_class(const struct rrefs *rrefs, const char *name, size_t bytes)
{
    for (size_t i = 0; i < rrefs->config.class_count; i++) {
        const struct rref_class *class = rrefs->config.classes[i];
        if (strlen(class->name) == bytes && memcmp(class->name, name, bytes) == 0)
            return class;
    }
    return NULL;
}

/* ---- objects that live here: destroying ---- */

static bool object_is_used(const struct rref_object *object)
{
    return object->uses > 0 || object->keeps > 0;
}

/* Newest first: an object that holds a reference to another was made after it. An object may end the last
 * uses of others. */
static void objects_destroy(struct rrefs *rrefs, bool all)
{
    while (rrefs->has_unused || all) {
        struct rref_object **link = &rrefs->objects;
        while (*link != NULL && !all && object_is_used(*link))
            link = &(*link)->next;
        struct rref_object *object = *link;
        rrefs->has_unused = object != NULL;
        if (object == NULL)
            return;
        *link = object->next;
        rrefs->object_count--;
        if (rrefs->on_destroy != NULL)
            rrefs->on_destroy(rrefs->on_destroy_context, object->object);
        object->class->destroy(object->object);
        free(object);
    }
}

void rrefs_on_destroy(struct rrefs *rrefs, void (*destroyed)(void *context, void *object), void *context)
{
    rrefs->on_destroy = destroyed;
    rrefs->on_destroy_context = context;
}

/* ---- objects that live here: counting uses ---- */

static struct rref_object *object_find(const struct rrefs *rrefs, uint64_t number)
{
    struct rref_object *object = rrefs->objects;
    while (object != NULL && object->number != number)
        object = object->next;
    return object != NULL && object_is_used(object) ? object : NULL;
}

static enum status objects_check_room(const struct rrefs *rrefs, struct error *error)
{
    if (rrefs->object_count < rrefs->config.objects_max)
        return STATUS_OK;
    return error_set(error, STATUS_BUSY, "worker %u has %u objects, at most %u", rrefs->self,
                     rrefs->object_count, rrefs->config.objects_max);
}

/* A new object, used by `worker`. STATUS_BUSY: objects_max; STATUS_NO_MEMORY. */
static enum status object_add(struct rrefs *rrefs, const struct rref_class *class, void *object,
                              uint16_t worker, uint64_t *number, struct error *error)
{
    enum status status = objects_check_room(rrefs, error);
    if (status != STATUS_OK)
        return status;
    struct rref_object *added = calloc(1, sizeof *added + rrefs->workers * sizeof added->uses_of[0]);
    if (added == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an object");
    *number = added->number = ++rrefs->last_number;
    added->class = class;
    added->object = object;
    added->uses = added->uses_of[worker] = 1;
    added->next = rrefs->objects;
    rrefs->objects = added;
    rrefs->object_count++;
    return STATUS_OK;
}

static void object_uncount(struct rrefs *rrefs, struct rref_object *object, uint16_t worker, uint64_t uses)
{
    assert(uses <= object->uses_of[worker]);
    object->uses_of[worker] -= uses;
    object->uses -= uses;
    rrefs->has_unused = rrefs->has_unused || !object_is_used(object);
}

enum status rref_grant(struct rrefs *rrefs, const struct rref_class *class, void *object,
                       const struct rpc_request *request, uint64_t *number, struct error *error)
{
    enum status status = object_add(rrefs, class, object, rpc_request_source(request), number, error);
    if (status == STATUS_OK && !rpc_request_is_live(request))
        rref_revoke(rrefs, *number, request);
    return status;
}

void rref_revoke(struct rrefs *rrefs, uint64_t number, const struct rpc_request *request)
{
    struct rref_object *object = object_find(rrefs, number);
    if (object != NULL)
        object_uncount(rrefs, object, rpc_request_source(request), 1);
}

/* ---- objects that live here: finding ---- */

static enum status object_absent(const struct rrefs *rrefs, uint64_t number, struct error *error)
{
    bool was_freed = number > 0 && number <= rrefs->last_number;
    return error_set(error, STATUS_NOT_FOUND, "object %llu of worker %u %s", (unsigned long long)number,
                     rrefs->self, was_freed ? "was freed" : "does not exist");
}

/* The object when `worker` uses it; errors as rref_object_use. */
static enum status object_find_used_by(const struct rrefs *rrefs, uint16_t worker, uint64_t number,
                                       struct rref_object **out, struct error *error)
{
    struct rref_object *object = object_find(rrefs, number);
    if (object == NULL)
        return object_absent(rrefs, number, error);
    if (object->uses_of[worker] == 0)
        return error_set(error, STATUS_PERMISSION, "worker %u holds no reference to object %llu of worker %u",
                         worker, (unsigned long long)number, rrefs->self);
    *out = object;
    return STATUS_OK;
}

enum status rref_object_use(struct rrefs *rrefs, uint16_t worker, uint64_t number, void **object,
                            const struct rref_class **class, struct error *error)
{
    struct rref_object *found;
    enum status status = object_find_used_by(rrefs, worker, number, &found, error);
    if (status != STATUS_OK)
        return status;
    found->keeps++;
    *object = found->object;
    *class = found->class;
    return STATUS_OK;
}

void rref_object_done(struct rrefs *rrefs, uint64_t number)
{
    if (rrefs->is_closed)
        return;
    struct rref_object *object = object_find(rrefs, number);
    assert(object != NULL && object->keeps > 0);
    object->keeps--;
    rrefs->has_unused = rrefs->has_unused || !object_is_used(object);
}

/* ---- REMOTE, CLAIM, RELEASE and OBJECT, received ---- */

static void fail_unknown_class(const struct rrefs *rrefs, struct rpc_request *request,
                               const struct wire_tensor *name, const void *bytes)
{
    char known[WIRE_ERROR_TEXT_MAX] = "";
    size_t length = 0;
    for (size_t i = 0; i < rrefs->config.class_count && length < sizeof known; i++)
        if (rrefs->config.classes[i]->create != NULL)
            length += (size_t)snprintf(known + length, sizeof known - length, "%s%s", length == 0 ? "" : ", ",
                                       rrefs->config.classes[i]->name);
    rpc_fail(request, STATUS_NOT_FOUND, "worker %u has no constructor \"%.*s\"; it has: %s", rrefs->self,
             (int)name->dims[0], (const char *)bytes, known[0] == '\0' ? "none" : known);
}

static enum status object_create(struct rrefs *rrefs, const struct rref_class *class,
                                 struct rpc_request *request, const struct rpc_message *message,
                                 uint64_t *number, struct error *error)
{
    void *object;
    enum status status = objects_check_room(rrefs, error);
    if (status == STATUS_OK)
        status = class->create(rrefs->config.context, class, message, &object, error);
    if (status != STATUS_OK)
        return status;
    status = rref_grant(rrefs, class, object, request, number, error);
    if (status != STATUS_OK) /* the constructor has used up the room */
        class->destroy(object);
    return status;
}

static void on_remote(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    struct error error = {0};
    uint64_t number;
    const struct wire_tensor *name = &message->tensors[0];
    if (message->tensor_count == 0 || name->dtype != WIRE_U8 || name->rank != 1 ||
        name->dims[0] > RREF_NAME_BYTES) {
        rpc_reject(request, "a constructor's name is a tensor of 1 to %d bytes", RREF_NAME_BYTES);
        return;
    }
    const struct rref_class *class = rrefs_class(rrefs, message->data[0], name->dims[0]);
    if (class == NULL || class->create == NULL) {
        fail_unknown_class(rrefs, request, name, message->data[0]);
        return;
    }
    enum status status = object_create(rrefs, class, request, message, &number, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    rpc_reply(request, &(struct rpc_message){.args = {number}});
}

/* args: object, giver. Answers with the class's name. */
static void on_claim(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    struct rref_object *object;
    struct error error = {0};
    if (message->args[1] >= rrefs->workers) {
        rpc_reject(request, "a reference given by worker %llu, of %u", (unsigned long long)message->args[1],
                   rrefs->workers);
        return;
    }
    enum status status =
        object_find_used_by(rrefs, (uint16_t)message->args[1], message->args[0], &object, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    object->uses++;
    object->uses_of[rpc_request_source(request)]++;
    const char *name = object->class->name;
    rpc_reply(request, &(struct rpc_message){.tensor_count = 1,
                                             .tensors = {{WIRE_U8, 1, .dims = {(uint32_t)strlen(name)}}},
                                             .data = {name}});
}

/* args: object, uses. */
static void on_release(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    uint16_t worker = rpc_request_source(request);
    uint64_t number = message->args[0], uses = message->args[1];
    struct rref_object *object = object_find(rrefs, number);
    uint64_t held = object == NULL ? 0 : object->uses_of[worker];
    if (uses == 0 || uses > held) {
        rpc_reject(request, "%llu uses of object %llu given back, of %llu", (unsigned long long)uses,
                   (unsigned long long)number, (unsigned long long)held);
        return;
    }
    object->keeps++; /* `released` may complete calls on the object */
    object_uncount(rrefs, object, worker, uses);
    if (object->class->released != NULL && object->uses_of[worker] == 0)
        object->class->released(object->object, worker);
    rref_object_done(rrefs, number);
    rpc_reply(request, NULL);
}

static void object_on_answered(void *context, uint64_t number)
{
    if (rrefs_call_ends(context))
        rref_object_done(context, number);
}

/* args: object, function; the others are the function's. */
static void on_object(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    struct error error = {0};
    const struct rref_class *class;
    uint64_t number = message->args[0], function = message->args[1];
    void *object;
    enum status status = rref_object_use(rrefs, rpc_request_source(request), number, &object, &class, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    rrefs->pending++;
    rpc_on_answer(request, object_on_answered, rrefs, number);
    if (function < class->function_count)
        class->functions[function](object, request, message);
    else
        rpc_fail(request, STATUS_INVALID, "function %llu of class %s, which has %u, from 0",
                 (unsigned long long)function, class->name, class->function_count);
}

/* ---- references of this worker ---- */

/* Takes the reference out of the list, and frees it. */
static void reference_free(struct rref *ref)
{
    struct rref **link = &ref->rrefs->refs;
    while (*link != ref)
        link = &(*link)->next;
    *link = ref->next;
    ref->rrefs->ref_count--;
    free(ref);
}

static struct rref *reference_find(const struct rrefs *rrefs, uint16_t owner, uint64_t number)
{
    struct rref *ref = rrefs->refs;
    while (ref != NULL && !(ref->state == RREF_HELD && ref->owner == owner && ref->number == number))
        ref = ref->next;
    return ref;
}

/* A reference without handles and uses. STATUS_BUSY: references_max. */
static enum status reference_new(struct rrefs *rrefs, enum rref_state state, uint16_t owner,
                                 struct rref **out, struct error *error)
{
    if (rrefs->ref_count >= rrefs->config.references_max)
        return error_set(error, STATUS_BUSY, "worker %u holds %u references, the limit", rrefs->self,
                         rrefs->config.references_max);
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a reference");
    **out = (struct rref){.rrefs = rrefs, .state = state, .owner = owner, .next = rrefs->refs};
    rrefs->refs = *out;
    rrefs->ref_count++;
    return STATUS_OK;
}

/* Adds a use that the owner has granted, and a handle for it. If the object has another reference already,
 * that one gets both, and `ref` is freed. Returns the reference with the handle. */
static struct rref *reference_add_use(struct rref *ref, uint64_t number, const struct rref_class *class)
{
    struct rref *held = reference_find(ref->rrefs, ref->owner, number);
    if (held == NULL)
        held = ref;
    else if (held != ref)
        reference_free(ref);
    held->state = RREF_HELD;
    held->number = number;
    held->uses++;
    held->handles++;
    if (held->class == NULL)
        held->class = class;
    return held;
}

/* ---- the end of a reference ---- */

static void uses_give_back(struct rrefs *rrefs, uint16_t owner, uint64_t number, uint64_t uses)
{
    rpc_notify(rrefs->rpc, owner, METHOD_RELEASE, &(struct rpc_message){.args = {number, uses}});
}

static void reference_end_if_unused(struct rref *ref)
{
    if (ref->handles > 0 || ref->state == RREF_MAKING)
        return;
    if (ref->state == RREF_HELD)
        uses_give_back(ref->rrefs, ref->owner, ref->number, ref->uses);
    reference_free(ref);
}

static enum status owner_is_gone(uint16_t owner, uint64_t object, struct error *error)
{
    return error_set(error, STATUS_PEER_DIED, "worker %u, which had object %llu, is gone", owner,
                     (unsigned long long)object);
}

/* ---- making ---- */

/* Sends a message about the reference. `then` handles the answer, and begins with rrefs_call_ends. */
static enum status reference_send(struct rref *ref, uint16_t worker, enum wire_method method,
                                  const struct rpc_message *message, future_then_function *then,
                                  struct future **out, struct error *error)
{
    enum status status =
        rpc_call_then(ref->rrefs->rpc, worker, method, message, MONOTIME_NEVER, then, ref, out, error);
    if (status == STATUS_OK)
        ref->rrefs->pending++;
    return status;
}

static void reference_fail(struct rref *ref, enum status status, const char *text)
{
    ref->state = RREF_FAILED;
    error_set(&ref->failure, status, "%s", text);
}

/* The answer to REMOTE. An owner that answers with the number of an object that this worker has already loses
 * its session. That comes last, because functions that learn of the session's end may release the reference.
 */
static void reference_on_made(struct future *future, void *arg)
{
    struct rref *ref = arg;
    struct rrefs *rrefs = ref->rrefs;
    const struct rpc_message *value = future_value(future);
    const uint16_t owner = ref->owner;
    if (!rrefs_call_ends(rrefs))
        return;
    const bool is_twice = value != NULL && reference_find(rrefs, owner, value->args[0]) != NULL;
    if (value == NULL) {
        reference_fail(ref, future_status(future), future_text(future));
    } else if (is_twice) {
        reference_fail(ref, STATUS_INVALID, "its owner answered with another object's number");
    } else {
        ref->state = RREF_HELD;
        ref->number = value->args[0];
        ref->uses = 1;
    }
    reference_end_if_unused(ref);
    if (is_twice)
        rpc_reject_worker(rrefs->rpc, owner, "object %llu was made twice",
                          (unsigned long long)value->args[0]);
}

/* The constructor's message, with the class's name as its first tensor. */
static void name_class(struct rpc_message *message, const char *name, const struct rpc_message *arguments)
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
    name_class(&message, name, arguments);
    enum status status = reference_new(rrefs, RREF_MAKING, worker, &ref, error);
    if (status != STATUS_OK)
        return status;
    ref->class = rrefs_class(rrefs, name, strlen(name));
    status = reference_send(ref, worker, METHOD_REMOTE, &message, reference_on_made, NULL, error);
    if (status != STATUS_OK) {
        reference_free(ref);
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
    enum status status = reference_new(rrefs, RREF_CLAIMING, rrefs->self, &ref, error);
    if (status != STATUS_OK)
        return status;
    status = object_add(rrefs, class, object, rrefs->self, &number, error);
    if (status == STATUS_OK)
        *out = reference_add_use(ref, number, class);
    else
        reference_free(ref);
    return status;
}

enum status rref_accept(struct rrefs *rrefs, uint16_t owner, uint64_t object, const struct rref_class *class,
                        struct rref **out, struct error *error)
{
    struct rref *ref = reference_find(rrefs, owner, object);
    enum status status = STATUS_OK;
    *out = NULL;
    if (!rpc_reaches(rrefs->rpc, owner))
        return owner_is_gone(owner, object, error);
    if (ref == NULL)
        status = reference_new(rrefs, RREF_CLAIMING, owner, &ref, error);
    if (status == STATUS_OK)
        *out = reference_add_use(ref, object, class);
    else
        uses_give_back(rrefs, owner, object, 1);
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
                                                      : owner_is_gone(rref->owner, rref->number, error);
}

enum status rref_check_ready(const struct rref *rref, struct error *error)
{
    enum status status = rref_ready(rref, error);
    if (status != STATUS_AGAIN)
        return status;
    return error_set(error, STATUS_BUSY, "the reference to an object of worker %u is not ready", rref->owner);
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
    reference_end_if_unused(rref);
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
        object_find_used_by(rrefs, rrefs->self, rref->number, &object, NULL) != STATUS_OK)
        return NULL;
    return object->object;
}

enum status rref_call(struct rref *rref, uint32_t function, const struct rpc_message *message,
                      struct monotime deadline, struct future **out, struct error *error)
{
    struct rpc_message full = {0};
    enum status status = rref_check_ready(rref, error);
    if (message != NULL)
        full = *message;
    full.args[0] = rref->number;
    full.args[1] = function;
    if (status == STATUS_OK)
        status = rpc_call_async(rref->rrefs->rpc, rref->owner, METHOD_OBJECT, &full, deadline, out, error);
    return status;
}

enum status rref_ask(struct rref *rref, uint32_t function, const struct rpc_message *message,
                     struct future **out, struct error *error)
{
    struct future *future = NULL;
    enum status status = rref_call(rref, function, message, MONOTIME_NEVER, &future, error);
    if (status == STATUS_OK)
        status = rpc_wait(rref->rrefs->rpc, future, error);
    if (out != NULL)
        *out = status == STATUS_OK ? future : NULL;
    if (out == NULL || status != STATUS_OK)
        future_release(future);
    return status;
}

/* ---- passing on, by the giver ---- */

static void reference_on_shared(struct future *future, void *arg)
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
    enum status status = rref_check_ready(rref, error);
    if (status == STATUS_OK)
        status = reference_send(rref, worker, METHOD_SHARE, &message, reference_on_shared, out, error);
    if (status == STATUS_OK)
        rref_copy(rref);
    return status;
}

enum status rref_give(struct rref *rref, uint16_t worker, uint64_t tag, struct error *error)
{
    struct future *future = NULL;
    enum status status = rref_share(rref, worker, tag, &future, error);
    if (status == STATUS_OK)
        status = rpc_wait(rref->rrefs->rpc, future, error);
    future_release(future);
    return status;
}

/* ---- passing on, by the taker ---- */

static void reference_refuse_share(struct rref *ref, enum status status, const char *text)
{
    struct rpc_request *request = ref->request;
    reference_free(ref);
    rpc_fail(request, status, "%s", text);
}

/* The answer to CLAIM: the owner has granted a use, and tells the class's name. `taken` may release the
 * handle. */
static void reference_on_claimed(struct future *future, void *arg)
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
        reference_refuse_share(ref, owner_is_gone(owner, ref->number, &error), error.text);
    } else if (value == NULL) {
        reference_refuse_share(ref, future_status(future), future_text(future));
    } else if (value->tensor_count != 1 || name->dtype != WIRE_U8 || name->rank != 1 ||
               name->dims[0] > RREF_NAME_BYTES) {
        reference_refuse_share(ref, STATUS_INVALID, "the object's owner answered without its class");
        rpc_reject_worker(rrefs->rpc, owner, "an object's class is a tensor of 1 to %d bytes",
                          RREF_NAME_BYTES);
    } else {
        ref = reference_add_use(ref, ref->number, rrefs_class(rrefs, value->data[0], name->dims[0]));
        rrefs->config.taken(rrefs->config.context, rpc_request_source(request), tag, ref);
        rpc_reply(request, NULL);
    }
}

/* args: object, owner, tag. */
static void on_share(void *context, struct rpc_request *request, const struct rpc_message *message)
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
                             ? reference_new(rrefs, RREF_CLAIMING, (uint16_t)owner, &ref, &error)
                             : owner_is_gone((uint16_t)owner, object, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    ref->number = object;
    ref->request = request;
    ref->tag = message->args[2];
    status = reference_send(ref, (uint16_t)owner, METHOD_CLAIM, &claim, reference_on_claimed, NULL, &error);
    if (status != STATUS_OK)
        reference_refuse_share(ref, status, error.text);
}

/* ---- opening and closing ---- */

static const struct rpc_method methods[] = {
    {.method = METHOD_REMOTE, .callers = UINT8_MAX, .any_tensors = true, .handler = on_remote},
    {.method = METHOD_SHARE, .callers = UINT8_MAX, .handler = on_share},
    {.method = METHOD_CLAIM, .callers = UINT8_MAX, .handler = on_claim},
    {.method = METHOD_RELEASE, .callers = UINT8_MAX, .at_once = true, .handler = on_release},
    {.method = METHOD_OBJECT, .callers = UINT8_MAX, .any_tensors = true, .handler = on_object},
};

static void rrefs_on_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct rrefs *rrefs = context;
    (void)why;
    (void)text;
    if (rrefs->is_closed)
        return;
    for (struct rref_object *object = rrefs->objects; object != NULL; object = object->next)
        object_uncount(rrefs, object, worker, object->uses_of[worker]);
}

static struct monotime rrefs_on_turn(void *arg)
{
    struct rrefs *rrefs = arg;
    if (!rrefs->is_closed)
        objects_destroy(rrefs, false);
    return MONOTIME_NEVER;
}

enum status rrefs_new(struct rrefs **out, const struct rrefs_config *config, struct error *error)
{
    assert(config->objects_max >= 1 && config->references_max >= 1);
    for (size_t i = 0; i < config->class_count; i++)
        assert(strlen(config->classes[i]->name) - 1 < RREF_NAME_BYTES && config->classes[i]->destroy != NULL);
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
    rrefs->pending++;
    objects_destroy(rrefs, true);
    rrefs_call_ends(rrefs);
}

/* ---- counting ---- */

void rrefs_counts(const struct rrefs *rrefs, struct rref_counts *counts)
{
    *counts = (struct rref_counts){.objects = rrefs->object_count, .references = rrefs->ref_count};
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
