/* What is kept for an object that is called within contexts: rooms to compute in, gradients, versions. They
 * are pooled, so that equal steps allocate nothing, and go when the object does. */
#include "worker/autograd/dist_internal.h"

#include <assert.h>
#include <stdlib.h>

/* ---- objects ---- */

static enum status make_object(struct dist *dist, void *object, const struct rref_class *class,
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
    made->next = dist->objects;
    dist->objects = made;
    *out = made;
    return STATUS_OK;
}

static enum status find_object(struct dist *dist, void *object, const struct rref_class *class,
                               struct dist_object **out, struct error *error)
{
    if (class->extension == NULL)
        return error_set(error, STATUS_INVALID, "a %s cannot be called within a context", class->name);
    for (struct dist_object *at = dist->objects; at != NULL; at = at->next)
        if (at->object == object) {
            *out = at;
            return STATUS_OK;
        }
    return make_object(dist, object, class, out, error);
}

static void room_free(struct dist_room *room)
{
    tape_free(room->tape);
    arena_free(room->own);
    free(room);
}

void object_free(struct dist_object *object)
{
    while (object->rooms != NULL) {
        struct dist_room *room = object->rooms;
        object->rooms = room->next;
        room_free(room);
    }
    while (object->slabs != NULL) {
        struct dist_slab *slab = object->slabs;
        object->slabs = slab->next;
        gradients_free(slab->gradients);
        free(slab);
    }
    free(object);
}

void dist_on_destroy(void *arg, void *object)
{
    struct dist *dist = arg;
    for (struct dist_object **link = &dist->objects; *link != NULL; link = &(*link)->next) {
        struct dist_object *found = *link;
        if (found->object != object)
            continue;
        *link = found->next;
        object_free(found);
        return;
    }
}

/* ---- parts in contexts ---- */

/* Who has no part yet keeps the object's use for it; of those after that, rref_object_use only tells whether
 * the caller may. */
enum status part_take(struct dist_context *context, uint16_t caller, uint64_t number, struct dist_part **out,
                      struct error *error)
{
    struct dist *dist = context->dist;
    struct rrefs *rrefs = dist->config.rrefs;
    const struct rref_class *class;
    void *object;
    enum status status = rref_object_use(rrefs, caller, number, &object, &class, error);
    if (status != STATUS_OK)
        return status;
    for (struct dist_part *part = context->parts; part != NULL; part = part->next)
        if (part->number == number) {
            rref_object_done(rrefs, number);
            *out = part;
            return STATUS_OK;
        }
    struct dist_object *found = NULL;
    struct dist_part *part = NULL;
    status = find_object(dist, object, class, &found, error);
    if (status == STATUS_OK && (part = dist_take((void **)&dist->free_parts, sizeof *part)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory to call %s", class->name);
    if (status != STATUS_OK) {
        rref_object_done(rrefs, number);
        return status;
    }
    *part = (struct dist_part){.next = context->parts, .number = number, .object = found};
    context->parts = part;
    *out = part;
    return STATUS_OK;
}

enum status part_gradients(struct dist_part *part, struct gradients **out, struct error *error)
{
    struct dist_object *object = part->object;
    *out = NULL;
    if (object->params == NULL)
        return STATUS_OK;
    if (part->slab == NULL) {
        struct dist_slab *slab = object->slabs;
        if (slab != NULL) {
            object->slabs = slab->next;
        } else {
            slab = calloc(1, sizeof *slab);
            if (slab == NULL)
                return error_set(error, STATUS_NO_MEMORY, "no memory for gradients");
            enum status status = gradients_new(&slab->gradients, object->params, error);
            if (status != STATUS_OK) {
                free(slab);
                return status;
            }
        }
        gradients_begin(slab->gradients);
        part->slab = slab;
    }
    *out = part->slab->gradients;
    return STATUS_OK;
}

/* The object may be destroyed by this, and what is kept for it then goes too. */
void parts_release(struct dist_context *context)
{
    while (context->parts != NULL) {
        struct dist_part *part = context->parts;
        const uint64_t number = part->number;
        context->parts = part->next;
        if (part->slab != NULL) {
            part->slab->next = part->object->slabs;
            part->object->slabs = part->slab;
        }
        part->next = context->dist->free_parts;
        context->dist->free_parts = part;
        rref_object_done(context->dist->config.rrefs, number);
    }
}

/* ---- rooms ---- */

enum status room_take(struct dist *dist, struct dist_object *object, struct dist_room **out,
                      struct error *error)
{
    if (object->rooms != NULL) {
        *out = object->rooms;
        object->rooms = (*out)->next;
        return STATUS_OK;
    }
    struct dist_room *room = calloc(1, sizeof *room);
    if (room == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to compute %s", object->class->name);
    const struct arena_source lent = dist_arena_source(dist);
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
    tape_on_progress(room->tape, dist->config.progress, dist->config.progress_context);
    *out = room;
    return STATUS_OK;
}

/* Ends the step that was computed there. */
void room_release(struct dist_object *object, struct dist_room *room)
{
    tape_finish(room->tape, NULL);
    if (room->own != NULL)
        arena_reset(room->own);
    room->next = object->rooms;
    object->rooms = room;
}

/* ---- for the optimizer ---- */

enum status dist_gradients(struct dist *dist, uint64_t context, void *object, struct gradients **out,
                           struct error *error)
{
    const struct dist_context *found = context_find(dist, context);
    if (found == NULL)
        return context_absent(dist, context, error);
    *out = NULL;
    for (const struct dist_part *part = found->parts; part != NULL; part = part->next)
        if (part->object->object == object && part->slab != NULL)
            *out = part->slab->gradients;
    return STATUS_OK;
}

uint32_t dist_readers(const struct dist *dist, uint64_t context, const void *object)
{
    uint32_t readers = 0;
    for (const struct dist_context *at = dist->contexts; at != NULL; at = at->next) {
        if (at->id == context)
            continue;
        bool reads = false;
        for (const struct dist_piece *piece = at->pieces; piece != NULL; piece = piece->next)
            reads = reads || (piece->part->object->object == object && piece->state != PIECE_OVER);
        readers += reads;
    }
    return readers;
}
