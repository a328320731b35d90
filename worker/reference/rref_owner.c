/* Objects that live here, and their uses: REMOTE, CLAIM, RELEASE and OBJECT, received.
 *
 * An object stays in its table as long as it has a use or a call on it is in progress. After that it is
 * doomed: out of the table, and destroyed when the turn ends. */
#include "worker/reference/rref_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ---- */

enum status owner_new(struct rrefs *rrefs)
{
    uint32_t count = rrefs->config.objects_max;
    rrefs->doomed_end = &rrefs->doomed_first;
    rrefs->objects = calloc(count, sizeof *rrefs->objects);
    rrefs->uses = calloc((size_t)count * rrefs->workers, sizeof *rrefs->uses);
    rrefs->users_of = calloc(rrefs->workers, sizeof *rrefs->users_of);
    if (rrefs->objects == NULL || rrefs->uses == NULL || rrefs->users_of == NULL)
        return STATUS_NO_MEMORY;
    for (uint32_t i = count; i-- > 0;) {
        rrefs->objects[i].next = rrefs->free_objects;
        rrefs->free_objects = &rrefs->objects[i];
    }
    return rref_table_new(&rrefs->object_table, count);
}

/* An object may hold the last references to others: those are doomed then, and destroyed in the same loop. */
static void owner_destroy_doomed(struct rrefs *rrefs)
{
    while (rrefs->doomed_first != NULL) {
        struct rref_object *object = rrefs->doomed_first;
        rrefs->doomed_first = object->next;
        if (rrefs->doomed_first == NULL)
            rrefs->doomed_end = &rrefs->doomed_first;
        if (rrefs->on_destroy != NULL)
            rrefs->on_destroy(rrefs->on_destroy_context, object->object);
        object->class->destroy(object->object);
        rrefs->object_count--;
        object->next = rrefs->free_objects;
        rrefs->free_objects = object;
    }
}

void rrefs_on_destroy(struct rrefs *rrefs, void (*destroyed)(void *context, void *object), void *context)
{
    rrefs->on_destroy = destroyed;
    rrefs->on_destroy_context = context;
}

static void owner_doom(struct rrefs *rrefs, struct rref_object *object)
{
    rref_table_remove(&rrefs->object_table, &object->link);
    object->is_alive = false;
    object->next = NULL;
    *rrefs->doomed_end = object;
    rrefs->doomed_end = &object->next;
}

static struct rref_object *owner_newest(const struct rrefs *rrefs)
{
    struct rref_object *found = NULL;
    for (uint32_t i = 0; i < rrefs->config.objects_max; i++) {
        struct rref_object *object = &rrefs->objects[i];
        if (object->is_alive && (found == NULL || object->link.number > found->link.number))
            found = object;
    }
    return found;
}

/* Newest first: an object that holds a reference to another was made after it. */
void owner_close(struct rrefs *rrefs)
{
    owner_destroy_doomed(rrefs);
    for (struct rref_object *object; (object = owner_newest(rrefs)) != NULL;) {
        owner_doom(rrefs, object);
        owner_destroy_doomed(rrefs);
    }
}

void owner_turn(struct rrefs *rrefs)
{
    owner_destroy_doomed(rrefs);
}

/* ---- counting ---- */

static struct rref_object *owner_find_object(const struct rrefs *rrefs, uint64_t number)
{
    return (struct rref_object *)rref_table_find(&rrefs->object_table, rrefs->self, number);
}

static uint64_t *owner_uses_of(const struct rrefs *rrefs, const struct rref_object *object, uint16_t worker)
{
    return &rrefs->uses[(size_t)(object - rrefs->objects) * rrefs->workers + worker];
}

static void owner_doom_if_unused(struct rrefs *rrefs, struct rref_object *object)
{
    if (object->uses == 0 && object->keeps == 0)
        owner_doom(rrefs, object);
}

static enum status owner_check_place(const struct rrefs *rrefs, struct error *error)
{
    if (rrefs->free_objects != NULL)
        return STATUS_OK;
    return error_set(error, STATUS_BUSY, "worker %u has %u objects, at most %u", rrefs->self,
                     rrefs->object_count, rrefs->config.objects_max);
}

enum status owner_add(struct rrefs *rrefs, const struct rref_class *class, void *object, uint64_t *number,
                      struct error *error)
{
    enum status status = owner_check_place(rrefs, error);
    if (status != STATUS_OK)
        return status;
    struct rref_object *place = rrefs->free_objects;
    rrefs->free_objects = place->next;
    rrefs->object_count++;
    *number = ++rrefs->last_number;
    *place = (struct rref_object){.link = {.number = *number, .owner = rrefs->self},
                                  .class = class,
                                  .object = object,
                                  .is_alive = true};
    rref_table_add(&rrefs->object_table, &place->link);
    return STATUS_OK;
}

static void owner_count_use(struct rrefs *rrefs, struct rref_object *object, uint16_t worker)
{
    uint64_t *uses = owner_uses_of(rrefs, object, worker);
    object->uses++;
    if ((*uses)++ == 0)
        rrefs->users_of[worker]++;
}

void owner_count(struct rrefs *rrefs, uint64_t number, uint16_t worker)
{
    owner_count_use(rrefs, owner_find_object(rrefs, number), worker);
}

static void owner_uncount_uses(struct rrefs *rrefs, struct rref_object *object, uint16_t worker,
                               uint64_t uses)
{
    uint64_t *held = owner_uses_of(rrefs, object, worker);
    assert(uses > 0 && uses <= *held);
    *held -= uses;
    object->uses -= uses;
    if (*held == 0)
        rrefs->users_of[worker]--;
    owner_doom_if_unused(rrefs, object);
}

/* The class's `released` may complete calls on the object, so the object is kept meanwhile. */
static void owner_take_back(struct rrefs *rrefs, struct rref_object *object, uint16_t worker, uint64_t uses)
{
    object->keeps++;
    owner_uncount_uses(rrefs, object, worker, uses);
    if (object->class->released != NULL && *owner_uses_of(rrefs, object, worker) == 0)
        object->class->released(object->object, worker);
    object->keeps--;
    owner_doom_if_unused(rrefs, object);
}

void owner_uncount(struct rrefs *rrefs, uint64_t number, uint16_t worker, uint64_t uses)
{
    owner_take_back(rrefs, owner_find_object(rrefs, number), worker, uses);
}

void owner_left(struct rrefs *rrefs, uint16_t worker)
{
    for (uint32_t i = 0; i < rrefs->config.objects_max && rrefs->users_of[worker] > 0; i++) {
        struct rref_object *object = &rrefs->objects[i];
        uint64_t uses = object->is_alive ? *owner_uses_of(rrefs, object, worker) : 0;
        if (uses > 0)
            owner_uncount_uses(rrefs, object, worker, uses);
    }
}

uint64_t rref_grant(struct rref *rref, const struct rpc_request *request)
{
    struct rrefs *rrefs = rref->rrefs;
    assert(rref->state == RREF_HELD && rref->link.owner == rrefs->self);
    if (rpc_request_is_live(request))
        owner_count(rrefs, rref->link.number, rpc_request_source(request));
    return rref->link.number;
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
    if (*owner_uses_of(rrefs, object, worker) == 0)
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
    owner_doom_if_unused(rrefs, object);
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
    enum status status = owner_check_place(rrefs, error);
    if (status == STATUS_OK)
        status = class->create(rrefs->config.context, rpc_request_source(request), message, &object, error);
    if (status != STATUS_OK)
        return status;
    status = owner_add(rrefs, class, object, number, error);
    if (status != STATUS_OK) /* the constructor has used up the room */
        class->destroy(object);
    return status;
}

/* A caller whose session ended meanwhile is not counted, and then the object has no user. */
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
    if (rpc_request_is_live(request))
        owner_count(rrefs, number, rpc_request_source(request));
    else
        owner_doom_if_unused(rrefs, owner_find_object(rrefs, number));
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
    owner_count_use(rrefs, object, rpc_request_source(request));
    const char *name = object->class->name;
    rpc_reply(request, &(struct rpc_message){.tensor_count = 1,
                                             .tensors = {{WIRE_U8, 1, {(uint32_t)strlen(name)}}},
                                             .data = {name}});
}

/* args: object, uses. */
void owner_on_release(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct rrefs *rrefs = context;
    uint16_t worker = rpc_request_source(request);
    uint64_t number = message->args[0], uses = message->args[1];
    struct rref_object *object = owner_find_object(rrefs, number);
    uint64_t held = object == NULL ? 0 : *owner_uses_of(rrefs, object, worker);
    if (uses == 0 || uses > held) {
        rpc_reject(request, "%llu uses of object %llu given back, of %llu", (unsigned long long)uses,
                   (unsigned long long)number, (unsigned long long)held);
        return;
    }
    owner_take_back(rrefs, object, worker, uses);
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
