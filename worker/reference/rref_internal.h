/* References' own header. Private to the files below and their tests. Each file calls those above it, never
 * those below it:
 *
 *   rref_memory.c  how long entries, and the references as a whole, last
 *   rref_owner.c   objects that live here, and their uses: REMOTE, CLAIM, RELEASE, OBJECT
 *   rref_user.c    references of this worker: making, passing on, using, copying, releasing
 *   rref.c         opening, closing, the end of a turn, deaths; the protocol and why it is safe
 *
 * The thread that owns the rpc runs all of it. */
#ifndef WORKER_REFERENCE_RREF_INTERNAL_H
#define WORKER_REFERENCE_RREF_INTERNAL_H

#include "worker/reference/rref.h"

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
    RREF_MAKING,    /* REMOTE is sent */
    RREF_CLAIMING,  /* CLAIM is sent; no handle */
    RREF_HELD,      /* the only one with this owner and number */
    RREF_FAILED,    /* the object could not be made */
    RREF_RELEASING, /* RELEASE waits to be sent; no handle */
};

/* An entry: all uses of one object by this worker. */
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
    bool has_unsent; /* an entry is RREF_RELEASING */
};

/* ---- rref_memory.c ---- */

void user_free(struct rref *ref); /* takes the entry out of the list, and frees it */

/* A call or a request will end in a callback with this memory; the callback begins with rrefs_call_ends.
 * False: the rrefs are closed, and perhaps freed by this. */
void rrefs_call_begins(struct rrefs *rrefs);
bool rrefs_call_ends(struct rrefs *rrefs);

/* ---- rref_owner.c ---- */

const struct rref_class *rrefs_class(const struct rrefs *rrefs, const char *name, size_t bytes);

/* Destroys the objects without uses, or all. */
void owner_destroy(struct rrefs *rrefs, bool all);
void owner_left(struct rrefs *rrefs, uint16_t worker);

/* A new object, used by `worker`. STATUS_BUSY: objects_max; STATUS_NO_MEMORY. */
enum status owner_add(struct rrefs *rrefs, const struct rref_class *class, void *object, uint16_t worker,
                      uint64_t *number, struct error *error);

/* The object when `worker` uses it; errors as rref_object_use. */
enum status owner_find(const struct rrefs *rrefs, uint16_t worker, uint64_t number, struct rref_object **out,
                       struct error *error);

rpc_handler owner_on_remote, owner_on_claim, owner_on_release, owner_on_object;

/* ---- rref_user.c ---- */

/* Sends RELEASEs that could not be sent before; returns when to come again. */
struct monotime user_turn(struct rrefs *rrefs);

rpc_handler user_on_share;

#endif
