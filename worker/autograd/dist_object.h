/* The objects of this worker that are called within contexts: where their pieces compute, the gradients of
 * their parameters, and the version of the parameters that a piece reads. */
#ifndef WORKER_AUTOGRAD_DIST_OBJECT_H
#define WORKER_AUTOGRAD_DIST_OBJECT_H

#include "worker/autograd/dist.h"
#include "worker/autograd/dist_memory.h"

struct dist_object;
struct dist_use; /* a context's use of an object */

/* All of them. Set rrefs, memory and progress; the rest is zero. */
struct dist_objects {
    struct rrefs *rrefs;
    struct dist_memory *memory;
    tape_progress *progress; /* of every tape, or NULL */
    void *progress_context;
    struct dist_object *first;
};

void objects_free(struct dist_objects *objects);

/* For rrefs_on_destroy: frees what is kept for the object. */
void objects_on_destroy(void *objects, void *object);

/* The use of object `number` in the list `uses` of a context, for a call of `caller`. A new one keeps the
 * object until uses_release. Errors as rref_object_use. */
enum status use_take(struct dist_objects *objects, struct dist_use **uses, uint16_t caller, uint64_t number,
                     struct dist_use **out, struct error *error);
void uses_release(struct dist_objects *objects, struct dist_use **uses);

/* Where a piece that trains adds its gradients. NULL: the object has no parameters. */
enum status use_gradients(struct dist_use *use, struct gradients **out, struct error *error);

/* The gradients of `object`. NULL: none. */
struct gradients *uses_gradients(const struct dist_use *uses, const void *object);

const char *use_class(const struct dist_use *use); /* the name of the object's class */

/* Calls struct dist_class.forward. */
void use_forward(const struct dist_use *use, struct dist_piece *piece);

/* For each piece. All pieces that read at a time read the same version of the parameters. use_place places
 * the params on that version, use_place_newest on the newest. */
void use_start_reading(struct dist_use *use);
void use_stop_reading(struct dist_use *use);
void use_place(struct dist_use *use);
void use_place_newest(struct dist_use *use);

/* Where one piece computes. */
struct dist_room {
    struct dist_room *next;
    struct tape *tape;
    struct arena *own;     /* NULL: the tape's memory is the host's */
    struct arena *staging; /* host memory for tensors of messages: own, or the tape's */
};

enum status room_take(struct dist_use *use, struct dist_room **out, struct error *error);
void room_release(struct dist_use *use, struct dist_room *room); /* ends the step that it computed */

#endif
