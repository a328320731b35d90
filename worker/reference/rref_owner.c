/* Objects that live here, and their uses: REMOTE, CLAIM, RELEASE and OBJECT, received. */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct rref_class *rrefs_class(const struct rrefs *rrefs, const char *name, size_t bytes)
{
    for (size_t i = 0; i < rrefs->config.class_count; i++) {
        const struct rref_class *class = rrefs->config.classes[i];
        if (strlen(class->name) == bytes && memcmp(class->name, name, bytes) == 0)
            return class;
    }
    return NULL;
}

/* ---- destroying ---- */

static bool object_is_used(const struct rref_object *object)
{
    return object->uses > 0 || object->keeps > 0;
}

/* Newest first: an object that holds a reference to another was made after it. An object may end the last
 * uses of others. */
void owner_destroy(struct rrefs *rrefs, bool all)
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

/* ---- counting ---- */

static struct rref_object *owner_find_object(const struct rrefs *rrefs, uint64_t number)
{
    struct rref_object *object = rrefs->objects;
    while (object != NULL && object->number != number)
        object = object->next;
    return object != NULL && object_is_used(object) ? object : NULL;
}

static enum status owner_check_room(const struct rrefs *rrefs, struct error *error)
{
    if (rrefs->object_count < rrefs->config.objects_max)
        return STATUS_OK;
    return error_set(error, STATUS_BUSY, "worker %u has %u objects, at most %u", rrefs->self,
                     rrefs->object_count, rrefs->config.objects_max);
}

enum status owner_add(struct rrefs *rrefs, const struct rref_class *class, void *object, uint16_t worker,
                      uint64_t *number, struct error *error)
{
    enum status status = owner_check_room(rrefs, error);
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

static void owner_uncount(struct rrefs *rrefs, struct rref_object *object, uint16_t worker, uint64_t uses)
{
    assert(uses <= object->uses_of[worker]);
    object->uses_of[worker] -= uses;
    object->uses -= uses;
    rrefs->has_unused = rrefs->has_unused || !object_is_used(object);
}

void owner_left(struct rrefs *rrefs, uint16_t worker)
{
    for (struct rref_object *object = rrefs->objects; object != NULL; object = object->next)
        owner_uncount(rrefs, object, worker, object->uses_of[worker]);
}

enum status rref_grant(struct rrefs *rrefs, const struct rref_class *class, void *object,
                       const struct rpc_request *request, uint64_t *number, struct error *error)
{
    enum status status = owner_add(rrefs, class, object, rpc_request_source(request), number, error);
    if (status == STATUS_OK && !rpc_request_is_live(request))
        rref_revoke(rrefs, *number, request);
    return status;
}

void rref_revoke(struct rrefs *rrefs, uint64_t number, const struct rpc_request *request)
{
    struct rref_object *object = owner_find_object(rrefs, number);
    if (object != NULL)
        owner_uncount(rrefs, object, rpc_request_source(request), 1);
}

/* ---- finding ---- */

static enum status owner_no_object(const struct rrefs *rrefs, uint64_t number, struct error *error)
{
    bool was_freed = number > 0 && number <= rrefs->last_number;
    return error_set(error, STATUS_NOT_FOUND, "object %llu of worker %u %s", (unsigned long long)number,
                     rrefs->self, was_freed ? "was freed" : "does not exist");
}

enum status owner_find(const struct rrefs *rrefs, uint16_t worker, uint64_t number, struct rref_object **out,
                       struct error *error)
{
    struct rref_object *object = owner_find_object(rrefs, number);
    if (object == NULL)
        return owner_no_object(rrefs, number, error);
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
    enum status status = owner_find(rrefs, worker, number, &found, error);
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
    struct rref_object *object = owner_find_object(rrefs, number);
    assert(object != NULL && object->keeps > 0);
    object->keeps--;
    rrefs->has_unused = rrefs->has_unused || !object_is_used(object);
}

/* ---- handlers ---- */

static void owner_fail_unknown_class(const struct rrefs *rrefs, struct rpc_request *request,
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

static enum status owner_create(struct rrefs *rrefs, const struct rref_class *class,
                                struct rpc_request *request, const struct rpc_message *message,
                                uint64_t *number, struct error *error)
{
    void *object;
    enum status status = owner_check_room(rrefs, error);
    if (status == STATUS_OK)
        status = class->create(rrefs->config.context, rpc_request_source(request), message, &object, error);
    if (status != STATUS_OK)
        return status;
    status = rref_grant(rrefs, class, object, request, number, error);
    if (status != STATUS_OK) /* the constructor has used up the room */
        class->destroy(object);
    return status;
}

void owner_on_remote(void *context, struct rpc_request *request, const struct rpc_message *message)
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
        owner_fail_unknown_class(rrefs, request, name, message->data[0]);
        return;
    }
    enum status status = owner_create(rrefs, class, request, message, &number, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    rpc_reply(request, &(struct rpc_message){.args = {number}});
}

/* args: object, giver. Answers with the class's name. */
void owner_on_claim(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    struct rref_object *object;
    struct error error = {0};
    if (message->args[1] >= rrefs->workers) {
        rpc_reject(request, "a reference given by worker %llu, of %u", (unsigned long long)message->args[1],
                   rrefs->workers);
        return;
    }
    enum status status = owner_find(rrefs, (uint16_t)message->args[1], message->args[0], &object, &error);
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
void owner_on_release(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    uint16_t worker = rpc_request_source(request);
    uint64_t number = message->args[0], uses = message->args[1];
    struct rref_object *object = owner_find_object(rrefs, number);
    uint64_t held = object == NULL ? 0 : object->uses_of[worker];
    if (uses == 0 || uses > held) {
        rpc_reject(request, "%llu uses of object %llu given back, of %llu", (unsigned long long)uses,
                   (unsigned long long)number, (unsigned long long)held);
        return;
    }
    object->keeps++; /* `released` may complete calls on the object */
    owner_uncount(rrefs, object, worker, uses);
    if (object->class->released != NULL && object->uses_of[worker] == 0)
        object->class->released(object->object, worker);
    rref_object_done(rrefs, number);
    rpc_reply(request, NULL);
}

static void owner_on_answered(void *context, uint64_t number)
{
    if (rrefs_call_ends(context))
        rref_object_done(context, number);
}

/* args: object, function; the others are the function's. */
void owner_on_object(void *context, struct rpc_request *request, const struct rpc_message *message)
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
    rrefs_call_begins(rrefs);
    rpc_on_answer(request, owner_on_answered, rrefs, number);
    if (function < class->function_count)
        class->functions[function](object, request, message);
    else
        rpc_fail(request, STATUS_INVALID, "function %llu of class %s, which has %u, from 0",
                 (unsigned long long)function, class->name, class->function_count);
}
