/* What the files of the references share; for them only. Everything here is run by the thread that owns the
 * rpc.
 *
 *   rref.c         opening, closing, the tables, what is done at a turn's end, departures; the protocol's
 *                  argument
 *   rref_owner.c   objects that live here: REMOTE, CLAIM, RELEASE, FETCH, OBJECT, and who uses what
 *   rref_user.c    references of this worker: making, using, copying, releasing
 *   rref_share.c   passing them on: SHARE, at both its ends
 *
 * All memory is taken at the start, but for the texts of failures, and for entries when more is granted than
 * there are. */
#ifndef WORKER_REFERENCE_RREF_INTERNAL_H
#define WORKER_REFERENCE_RREF_INTERNAL_H

#include "worker/reference/rref.h"

/* ---- tables: what is found by (owner, number) ---- */

struct rref_link { /* the first member of what stands in a table */
    struct rref_link *next;
    uint64_t number;
    uint16_t owner;
};

struct rref_table {
    struct rref_link **buckets; /* a power of two of them */
    uint64_t mask;
};

enum status rref_table_new(struct rref_table *table, uint64_t count);
void rref_table_free(struct rref_table *table);
struct rref_link *rref_table_find(const struct rref_table *table, uint16_t owner, uint64_t number);
void rref_table_add(struct rref_table *table, struct rref_link *link);
void rref_table_remove(struct rref_table *table, struct rref_link *link);

/* ---- what there is ---- */

/* An object that lives here. */
struct rref_object {
    struct rref_link link;
    struct rref_object *next; /* free, or in the row of those to be destroyed */
    const struct rref_class *class;
    void *object;
    uint64_t uses;  /* of all workers; by worker: rrefs.uses */
    uint32_t keeps; /* calls in progress on it */
    bool is_alive;
};

enum rref_state {
    RREF_FREE,
    RREF_MAKING,    /* REMOTE is on its way */
    RREF_CLAIMING,  /* CLAIM is on its way; nobody has a handle */
    RREF_HELD,      /* in the table, unless its owner is gone */
    RREF_FAILED,    /* it could not be made */
    RREF_RELEASING, /* RELEASE is on its way, or waits to be sent; nobody has a handle */
};

/* A use, or several, of one object by this worker: what its handles are handles of. */
struct rref {
    struct rref_link link;
    struct rrefs *rrefs;
    struct rref *next; /* free, or in the row of RELEASEs that could not leave */
    uint8_t state;
    bool is_gone; /* the owner is */
    uint32_t handles;
    uint32_t flights; /* messages on their way, while which the owner must count us */
    uint64_t uses;    /* how often the owner has counted us for it; in the table when positive */
    const struct rref_class *class;
    enum status status; /* RREF_FAILED: why, and in words */
    char *text;
    struct rpc_request *request; /* RREF_CLAIMING: the SHARE to answer, and its tag */
    uint64_t tag;
};

struct rref_block {
    struct rref_block *next;
    size_t count;
    struct rref refs[]; /* (count) */
};

struct rrefs {
    struct rrefs_config config;
    struct rpc *rpc;
    uint16_t self;
    uint32_t workers;
    bool is_closed;
    uint32_t pending; /* calls whose end will call us: the rpc still knows of this memory */

    struct rref_object *objects, *free_objects;
    struct rref_object *doomed_first, **doomed_end; /* without users, to be destroyed at the turn's end */
    struct rref_table object_table;
    uint64_t *uses;       /* (objects_max, workers) */
    uint32_t *users_of;   /* (workers): objects here that each uses */
    uint64_t last_number; /* given to an object */
    uint32_t object_count;
    struct rref_listener {
        void (*destroyed)(void *context, void *object);
        void *context;
    } listeners[RREF_LISTENERS_MAX];
    uint32_t listener_count;

    struct rref_block *ref_blocks;
    struct rref *free_refs;
    uint32_t ref_live;      /* neither free nor being released */
    uint32_t ref_releasing; /* being released */
    struct rref *unsent;    /* RELEASEs that could not leave */
    struct rref_table refs_table;
};

const struct rref_class *rrefs_class(const struct rrefs *rrefs, const char *name, size_t bytes);

/* STATUS_PEER_DIED: the worker with object `number` is gone. */
enum status rrefs_check_owner(const struct rrefs *rrefs, uint16_t owner, uint64_t number,
                              struct error *error);

void rrefs_free_memory(struct rrefs *rrefs);

/* A call of ours will end in a callback with this memory; the callback begins with rrefs_call_ends. False:
 * the rrefs are closed, and perhaps freed by this. */
void rrefs_call_begins(struct rrefs *rrefs);
bool rrefs_call_ends(struct rrefs *rrefs);

/* ---- rref_owner.c ---- */

enum status owner_new(struct rrefs *rrefs);
void owner_close(struct rrefs *rrefs); /* destroys all objects */
void owner_turn(struct rrefs *rrefs);  /* destroys what nobody uses */
void owner_left(struct rrefs *rrefs, uint16_t worker);

/* Takes `object` over, without any use. STATUS_BUSY: objects_max. */
enum status owner_add(struct rrefs *rrefs, const struct rref_class *class, void *object, uint64_t *number,
                      struct error *error);
/* One use more by `worker`, of an object that is here. */
void owner_count(struct rrefs *rrefs, uint64_t number, uint16_t worker);
/* Gives `uses` back, which `worker` has. */
void owner_uncount(struct rrefs *rrefs, uint64_t number, uint16_t worker, uint64_t uses);
/* The object when `worker` uses it; errors as rref_object_use. */
enum status owner_find(const struct rrefs *rrefs, uint16_t worker, uint64_t number, struct rref_object **out,
                       struct error *error);

rpc_handler owner_on_remote, owner_on_claim, owner_on_release, owner_on_object;

/* ---- rref_user.c ---- */

enum status user_new(struct rrefs *rrefs);
struct monotime user_turn(struct rrefs *rrefs); /* sends what could not leave; when to come again */
void user_left(struct rrefs *rrefs, uint16_t worker);

/* A free entry in `state`, with neither handle nor use. STATUS_BUSY: references_max. */
enum status user_take(struct rrefs *rrefs, enum rref_state state, uint16_t owner, struct rref **out,
                      struct error *error);
void user_give_back(struct rref *ref);

/* Makes a handle of a use that the owner has counted. `ref`: an entry taken for it, which is given back when
 * there is another of the object. Returns the entry that has the handle. */
struct rref *user_hold(struct rref *ref, uint64_t number, const struct rref_class *class);

/* Sends a message while which `ref` must not end; `then` begins with rrefs_call_ends and one flight less. */
enum status user_send(struct rref *ref, uint16_t worker, enum wire_method method,
                      const struct rpc_message *message, struct monotime deadline, future_then_function *then,
                      struct future **out, struct error *error);

/* The same for a reference that is in use: checked first, and nothing but its end to wait for. */
enum status user_ask(struct rref *ref, uint16_t worker, enum wire_method method,
                     const struct rpc_message *message, struct monotime deadline, struct future **out,
                     struct error *error);

/* ---- rref_share.c ---- */

rpc_handler share_on_share;

#endif
