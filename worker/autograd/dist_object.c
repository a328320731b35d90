/* Memory that this worker keeps for each of its objects that is called within contexts: rooms to compute in,
 * and uses with their gradients. Both serve again in later contexts, and are freed with the object. */
#include "worker/autograd/dist_object.h"
#include "kernels/params/gradients.h"
#include "worker/autograd/dist_versions.h"

#include <assert.h>
#include <stdlib.h>

struct dist_object {
    struct dist_object *next;
    struct dist_objects *objects;
    void *object;
    const struct rref_class *class;
    const struct dist_class *rules;
    struct backend *backend;
    struct params *params;          /* NULL: none */
    struct dist_versions *versions; /* NULL: one */
    struct dist_room *rooms;        /* free */
    struct dist_use *uses;          /* free */
};

/* A context's use of an object: begins with the context's first call of it, and lasts as long as the context.
 */
struct dist_use {
    struct dist_use *next;
    uint64_t number; /* the object's */
    struct dist_object *object;
    struct gradients *gradients; /* their sum over the context's pieces. NULL: none yet, or no parameters */
    bool trains;                 /* `gradients` are of this context */
    uint32_t readers;            /* pieces that may still compute with the parameters */
    uint32_t slot;               /* the version that they read, if the parameters have versions */
};

/* ---- objects ---- */

static enum status object_make(struct dist_objects *objects, void *object, const struct rref_class *class,
                               struct dist_object **out, struct error *error)
{
    struct dist_object *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to call %s", class->name);
    const struct dist_class *rules = class->extension;
    made->object = object;
    made->class = class;
    made->rules = rules;
    made->backend = rules->backend(object);
    made->params = rules->params != NULL ? rules->params(object) : NULL;
    made->versions = rules->versions != NULL ? rules->versions(object) : NULL;
    made->objects = objects;
    made->next = objects->first;
    objects->first = made;
    *out = made;
    return STATUS_OK;
}

static enum status object_find(struct dist_objects *objects, void *object, const struct rref_class *class,
                               struct dist_object **out, struct error *error)
{
    if (class->extension == NULL)
        return error_set(error, STATUS_INVALID, "a %s cannot be called within a context", class->name);
    for (struct dist_object *at = objects->first; at != NULL; at = at->next)
        if (at->object == object) {
            *out = at;
            return STATUS_OK;
        }
    return object_make(objects, object, class, out, error);
}

static void room_free(struct dist_room *room)
{
    tape_free(room->tape);
    arena_free(room->own);
    free(room);
}

static void object_free(struct dist_object *object)
{
    while (object->rooms != NULL) {
        struct dist_room *room = object->rooms;
        object->rooms = room->next;
        room_free(room);
    }
    while (object->uses != NULL) {
        struct dist_use *use = object->uses;
        object->uses = use->next;
        gradients_free(use->gradients);
        free(use);
    }
    free(object);
}

void objects_free(struct dist_objects *objects)
{
    while (objects->first != NULL) {
        struct dist_object *object = objects->first;
        objects->first = object->next;
        object_free(object);
    }
}

void objects_on_destroy(void *arg, void *object)
{
    struct dist_objects *objects = arg;
    for (struct dist_object **link = &objects->first; *link != NULL; link = &(*link)->next) {
        struct dist_object *found = *link;
        if (found->object != object)
            continue;
        *link = found->next;
        object_free(found);
        return;
    }
}

/* ---- a context's uses ---- */

/* The first call in a context takes a use of the object (rref_object_use); later calls share it, and only
 * have it checked that their caller holds a reference. */
enum status use_take(struct dist_objects *objects, struct dist_use **uses, uint16_t caller, uint64_t number,
                     struct dist_use **out, struct error *error)
{
    struct rrefs *rrefs = objects->rrefs;
    const struct rref_class *class;
    struct dist_object *found = NULL;
    void *object;
    enum status status = rref_object_use(rrefs, caller, number, &object, &class, error);
    if (status != STATUS_OK)
        return status;
    for (struct dist_use *use = *uses; use != NULL; use = use->next)
        if (use->number == number) {
            rref_object_done(rrefs, number);
            *out = use;
            return STATUS_OK;
        }
    status = object_find(objects, object, class, &found, error);
    struct dist_use *use = NULL;
    if (status == STATUS_OK && (use = found->uses) != NULL)
        found->uses = use->next;
    else if (status == STATUS_OK && (use = calloc(1, sizeof *use)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory to call %s", class->name);
    if (status != STATUS_OK) {
        rref_object_done(rrefs, number);
        return status;
    }
    use->number = number;
    use->object = found;
    use->trains = false;
    use->next = *uses;
    *uses = use;
    *out = use;
    return STATUS_OK;
}

enum status use_gradients(struct dist_use *use, struct gradients **out, struct error *error)
{
    struct params *params = use->object->params;
    enum status status = STATUS_OK;
    if (params != NULL && use->gradients == NULL)
        status = gradients_new(&use->gradients, params, error);
    if (status != STATUS_OK)
        return status;
    if (params != NULL && !use->trains)
        gradients_begin(use->gradients);
    use->trains = params != NULL;
    *out = use->gradients;
    return STATUS_OK;
}

void use_start_reading(struct dist_use *use)
{
    if (use->readers++ == 0 && use->object->versions != NULL)
        use->slot = dist_versions_hold(use->object->versions);
}

void use_stop_reading(struct dist_use *use)
{
    if (--use->readers == 0 && use->object->versions != NULL)
        dist_versions_drop(use->object->versions, use->slot);
}

void use_place(struct dist_use *use)
{
    if (use->object->versions != NULL)
        dist_versions_place(use->object->versions, use->slot);
}

void use_place_newest(struct dist_use *use)
{
    if (use->object->versions != NULL)
        dist_versions_place_newest(use->object->versions);
}

/* The last use of an object may destroy it. */
void uses_release(struct dist_objects *objects, struct dist_use **uses)
{
    while (*uses != NULL) {
        struct dist_use *use = *uses;
        const uint64_t number = use->number;
        *uses = use->next;
        use->next = use->object->uses;
        use->object->uses = use;
        rref_object_done(objects->rrefs, number);
    }
}

struct gradients *uses_gradients(const struct dist_use *uses, const void *object)
{
    struct gradients *gradients = NULL;
    for (const struct dist_use *use = uses; use != NULL; use = use->next)
        if (use->object->object == object && use->trains)
            gradients = use->gradients;
    return gradients;
}

const char *use_class(const struct dist_use *use)
{
    return use->object->class->name;
}

void use_forward(const struct dist_use *use, struct dist_piece *piece)
{
    use->object->rules->forward(use->object->object, piece);
}

/* ---- rooms ---- */

enum status room_take(struct dist_use *use, struct dist_room **out, struct error *error)
{
    struct dist_object *object = use->object;
    const struct dist_objects *objects = object->objects;
    if (object->rooms != NULL) {
        *out = object->rooms;
        object->rooms = (*out)->next;
        return STATUS_OK;
    }
    struct dist_room *room = calloc(1, sizeof *room);
    if (room == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to compute %s", object->class->name);
    const struct arena_source lent = memory_source(objects->memory);
    const bool host = object->backend->ops->host;
    enum status status =
        tape_new_in(&room->tape, object->backend, host ? &lent : &object->backend->source, error);
    if (status == STATUS_OK && !host)
        status = arena_new(&room->own, &lent, error);
    if (status != STATUS_OK) {
        room_free(room);
        return status;
    }
    room->staging = host ? tape_arena(room->tape) : room->own;
    tape_on_progress(room->tape, objects->progress, objects->progress_context);
    *out = room;
    return STATUS_OK;
}

void room_release(struct dist_use *use, struct dist_room *room)
{
    struct dist_object *object = use->object;
    tape_finish(room->tape, NULL);
    if (room->own != NULL)
        arena_reset(room->own);
    room->next = object->rooms;
    object->rooms = room;
}
