/* References' own header. Private to the files below and their tests. Each file calls those above it, never
 * those below it:
 *
 *   rref_table.c   tables by (owner, number), classes by name, memory
 *   rref_owner.c   objects that live here, and their uses: REMOTE, CLAIM, RELEASE, OBJECT
 *   rref_user.c    references of this worker: making, using, copying, releasing
 *   rref_share.c   passing references on: SHARE, at both ends
 *   rref.c         opening, closing, the end of a turn, deaths; the protocol and why it is safe
 *
 * The thread that owns the rpc runs all of it. All memory is taken at the start, except for the texts of
 * failures, and for entries when other workers grant more uses than there are entries. */
#ifndef WORKER_REFERENCE_RREF_INTERNAL_H
#define WORKER_REFERENCE_RREF_INTERNAL_H

#include "worker/reference/rref.h"

/* ---- tables by (owner, number) ---- */

struct rref_link { /* the first member of a table's items */
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

/* ---- objects and references ---- */

/* An object that lives here. */
struct rref_object {
    struct rref_link link;
    struct rref_object *next; /* of the free ones, or of those to be destroyed */
    const struct rref_class *class;
    void *object;
    uint64_t uses;  /* of all workers; by worker: rrefs.uses */
    uint32_t keeps; /* calls in progress on it */
    bool is_alive;
};

enum rref_state {
    RREF_FREE,
    RREF_MAKING,    /* REMOTE is sent */
    RREF_CLAIMING,  /* CLAIM is sent; no handle */
    RREF_HELD,      /* in the table, unless its owner is gone */
    RREF_FAILED,    /* the object could not be made */
    RREF_RELEASING, /* RELEASE is sent, or waits to be sent; no handle */
};

/* An entry: all uses of one object by this worker. */
struct rref {
    struct rref_link link;
    struct rrefs *rrefs;
    struct rref *next; /* of the free ones, or of RELEASEs that could not be sent */
    uint8_t state;
    bool is_gone; /* the owner has died */
    uint32_t handles;
    uint32_t flights; /* messages that are not answered: the owner must count this worker until then */
    uint64_t uses;    /* that the owner has told us of; in the table when positive */
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
    uint32_t pending; /* calls of ours that will end in a callback with this memory */

    struct rref_object *objects, *free_objects;
    struct rref_object *doomed_first, **doomed_end; /* without uses; destroyed at the turn's end */
    struct rref_table object_table;
    uint64_t *uses;       /* (objects_max, workers) */
    uint32_t *users_of;   /* (workers): objects here that each uses */
    uint64_t last_number; /* given to an object */
    uint32_t object_count;
    void (*on_destroy)(void *context, void *object);
    void *on_destroy_context;

    struct rref_block *ref_blocks;
    struct rref *free_refs;
    uint32_t ref_live;      /* neither free nor being released */
    uint32_t ref_releasing; /* being released */
    struct rref *unsent;    /* RELEASEs that could not be sent */
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
void owner_turn(struct rrefs *rrefs);  /* destroys the objects without uses */
void owner_left(struct rrefs *rrefs, uint16_t worker);

/* A new object, without any use. STATUS_BUSY: objects_max. */
enum status owner_add(struct rrefs *rrefs, const struct rref_class *class, void *object, uint64_t *number,
                      struct error *error);
/* One more use of an object that is here, by `worker`. */
void owner_count(struct rrefs *rrefs, uint64_t number, uint16_t worker);
/* `worker` gives back `uses` of its uses. */
void owner_uncount(struct rrefs *rrefs, uint64_t number, uint16_t worker, uint64_t uses);
/* The object when `worker` uses it; errors as rref_object_use. */
enum status owner_find(const struct rrefs *rrefs, uint16_t worker, uint64_t number, struct rref_object **out,
                       struct error *error);

rpc_handler owner_on_remote, owner_on_claim, owner_on_release, owner_on_object;

/* ---- rref_user.c ---- */

enum status user_new(struct rrefs *rrefs);
struct monotime
user_turn(struct rrefs *rrefs); /* sends RELEASEs that could not be sent; when to come again */
void user_left(struct rrefs *rrefs, uint16_t worker);

/* An entry in `state`, without handles and uses. STATUS_BUSY: references_max. */
enum status user_take(struct rrefs *rrefs, enum rref_state state, uint16_t owner, struct rref **out,
                      struct error *error);
void user_give_back(struct rref *ref);

/* A handle for a use that the owner has counted. `ref`: an entry taken for it; given back when the object has
 * an entry already. Returns the entry with the handle. */
struct rref *user_hold(struct rref *ref, uint64_t number, const struct rref_class *class);

/* Sends a message; `ref` does not end before the answer. `then` begins with rrefs_call_ends and one flight
 * less. */
enum status user_send(struct rref *ref, uint16_t worker, enum wire_method method,
                      const struct rpc_message *message, struct monotime deadline, future_then_function *then,
                      struct future **out, struct error *error);

/* Checks that the reference is ready, and sends a message whose answer only the caller waits for. */
enum status user_ask(struct rref *ref, uint16_t worker, enum wire_method method,
                     const struct rpc_message *message, struct monotime deadline, struct future **out,
                     struct error *error);

/* ---- rref_share.c ---- */

rpc_handler share_on_share;

#endif
