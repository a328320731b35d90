/* Workers of test/worker/net/net_cluster.h with references to each other's cells. A cell is an object with
 * one number, an argument of its constructor; the fixture counts which cells live. For test programs, which
 * each use what they need. */
#ifndef TEST_WORKER_REFERENCE_RREF_FIXTURE_H
#define TEST_WORKER_REFERENCE_RREF_FIXTURE_H

#include "test/worker/net/net_cluster.h"
#include "worker/reference/rref.h"

enum {
    CELLS_MAX = 256,
    CELL_UNLUCKY = 13,
    CELL_SUICIDE = 14, /* its constructor ends the session of worker args[2] */
    OBJECTS_MAX = 16,
    REFERENCES_MAX = 16,
    TAKEN_MAX = 64
};
enum { CELL_GET, CELL_ADD, CELL_KEEP, CELL_MAKE, CELL_FUNCTIONS };

struct cell {
    uint64_t number;
    uint16_t owner;
    uint64_t sum;
    struct rref *held; /* released along with the cell */
};

struct side {
    struct member *member;
    struct rrefs *rrefs;
    struct rpc_request *kept[TAKEN_MAX]; /* of CELL_KEEP */
    unsigned kept_count;
    struct {
        uint16_t from;
        uint64_t tag;
        struct rref *rref;
    } taken[TAKEN_MAX];
    unsigned taken_count;
};

static struct cluster cluster;
static struct side sides[MEMBERS];
static unsigned cells_made[CELLS_MAX], cells_destroyed[CELLS_MAX];
static const struct rref_class cell_class, mute_class, private_class;

/* ---- classes ---- */

static inline struct cell *cell_new(uint16_t owner, uint64_t number)
{
    struct cell *cell = calloc(1, sizeof *cell);
    *cell = (struct cell){.number = number, .owner = owner};
    cells_made[number]++;
    return cell;
}

static inline enum status cell_create(void *context, const struct rref_class *class,
                                      const struct rpc_message *arguments, void **object, struct error *error)
{
    struct side *side = context;
    uint64_t number = arguments->args[1];
    if (number == CELL_UNLUCKY)
        return error_set(error, STATUS_INVALID, "a %s cannot have the number %d", class->name, CELL_UNLUCKY);
    if (number == CELL_SUICIDE)
        rpc_peer_died(side->member->rpc, (uint16_t)arguments->args[2], UINT32_MAX, "its constructor says so");
    struct cell *cell = cell_new(side->member->worker, number);
    if (arguments->tensor_count > 1)
        memcpy(&cell->sum, arguments->data[1], sizeof cell->sum);
    *object = cell;
    return STATUS_OK;
}

static inline void cell_destroy(void *object)
{
    struct cell *cell = object;
    cells_destroyed[cell->number]++;
    rref_release(cell->held);
    free(cell);
}

static inline void cell_get(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct cell *cell = object;
    (void)message;
    rpc_reply(request, &(struct rpc_message){.args = {cell->number, cell->sum}});
}

/* It uses the cell after its answer, as a function may. */
static inline void cell_add(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct cell *cell = object;
    uint64_t more = message->args[2];
    rpc_reply(request, &(struct rpc_message){.args = {cell->sum + more, message->args[3], message->context}});
    cell->sum += more;
}

static inline void cell_keep(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct cell *cell = object;
    (void)message;
    struct side *side = &sides[cell->owner];
    ck_assert_uint_lt(side->kept_count, TAKEN_MAX);
    side->kept[side->kept_count++] = request;
}

/* Answers with a new cell, which args[2] numbers. */
static inline void cell_make(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct cell *cell = object;
    struct error error = {0};
    struct rpc_message reply = {0};
    enum status status = rref_grant(sides[cell->owner].rrefs, &private_class,
                                    cell_new(cell->owner, message->args[2]), request, &reply.args[0], &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    rpc_reply(request, &reply);
}

static rref_function *const cell_functions[] = {cell_get, cell_add, cell_keep, cell_make};
static const struct rref_class cell_class = {.name = "cell",
                                             .create = cell_create,
                                             .destroy = cell_destroy,
                                             .functions = cell_functions,
                                             .function_count = CELL_FUNCTIONS};
static const struct rref_class mute_class = {.name = "mute", .create = cell_create, .destroy = cell_destroy};
static const struct rref_class private_class = {.name = "private",
                                                .destroy = cell_destroy,
                                                .functions = cell_functions,
                                                .function_count = CELL_FUNCTIONS};
static const struct rref_class *const cell_classes[] = {&cell_class, &mute_class, &private_class};

/* ---- workers ---- */

static inline void on_taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    struct side *side = context;
    ck_assert_uint_lt(side->taken_count, TAKEN_MAX);
    ck_assert_int_eq(rref_ready(rref, NULL), STATUS_OK);
    side->taken[side->taken_count].from = from;
    side->taken[side->taken_count].tag = tag;
    side->taken[side->taken_count++].rref = rref;
}

static inline void rref_side_start(unsigned worker, bool takes)
{
    struct error error = {0};
    struct side *side = &sides[worker];
    *side = (struct side){.member = &cluster.members[worker]};
    struct rrefs_config config = {.rpc = side->member->rpc,
                                  .classes = cell_classes,
                                  .class_count = 3,
                                  .objects_max = OBJECTS_MAX,
                                  .references_max = REFERENCES_MAX,
                                  .context = side,
                                  .taken = takes ? on_taken : NULL};
    ck_assert_msg(rrefs_new(&side->rrefs, &config, &error) == STATUS_OK, "%s", error.text);
}

static inline void rref_serve(unsigned worker, uint32_t incarnation)
{
    struct rpc_config config = cluster_config(&cluster.members[worker]);
    config.incarnation = incarnation;
    cluster_serve(&cluster, (uint16_t)worker, &config);
    rref_side_start(worker, true);
}

static inline void rref_join(unsigned worker)
{
    cluster_join(&cluster, (uint16_t)worker);
    rref_side_start(worker, true);
}

static inline void rref_start(unsigned clients)
{
    memset(cells_made, 0, sizeof cells_made);
    memset(cells_destroyed, 0, sizeof cells_destroyed);
    cluster_make_addresses(&cluster);
    for (unsigned i = 0; i < SERVERS; i++)
        rref_serve(i, 1);
    for (unsigned i = 0; i < clients; i++)
        rref_join(SERVERS + i);
}

/* Worker `worker` is gone, and the others are told. */
static inline void rref_kill(unsigned worker)
{
    rrefs_free(sides[worker].rrefs);
    sides[worker].rrefs = NULL;
    cluster_end(&cluster, (uint16_t)worker, "killed", 0);
    for (unsigned i = 0; i < MEMBERS; i++)
        if (cluster.members[i].rpc != NULL)
            rpc_peer_died(cluster.members[i].rpc, (uint16_t)worker, UINT32_MAX, "it was killed");
}

static inline void rref_turns(unsigned turns)
{
    for (unsigned i = 0; i < turns; i++)
        cluster_turn(&cluster);
}

static inline struct rref_counts rref_counts_of(unsigned worker)
{
    struct rref_counts counts;
    rrefs_counts(sides[worker].rrefs, &counts);
    return counts;
}

static inline bool rref_all_zero(void)
{
    for (unsigned i = 0; i < MEMBERS; i++) {
        if (sides[i].rrefs == NULL)
            continue;
        struct rref_counts counts = rref_counts_of(i);
        if (counts.objects + counts.references + counts.users > 0)
            return false;
    }
    return true;
}

/* Turns until nothing is left of what was made, and checks that each was destroyed once; ends everything. */
static inline void rref_end(void)
{
    UNTIL(rref_all_zero(), cluster_turn(&cluster));
    for (unsigned i = 0; i < CELLS_MAX; i++)
        ck_assert_uint_eq(cells_made[i], cells_destroyed[i]);
    for (unsigned i = 0; i < MEMBERS; i++) {
        rrefs_free(sides[i].rrefs);
        sides[i].rrefs = NULL;
    }
    cluster_free(&cluster);
}

/* ---- what tests do ---- */

static inline enum status rref_await(struct rref *rref, struct error *error)
{
    UNTIL(rref_ready(rref, error) != STATUS_AGAIN, cluster_turn(&cluster));
    return rref_ready(rref, error);
}

static inline struct rref *cell_ask(unsigned from, unsigned owner, uint64_t number)
{
    struct rref *rref;
    struct error error = {0};
    enum status status = rpc_remote(sides[from].rrefs, (uint16_t)owner, "cell",
                                    &(struct rpc_message){.args = {0, number, from}}, &rref, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return rref;
}

static inline struct rref *cell_make_on(unsigned from, unsigned owner, uint64_t number)
{
    struct error error = {0};
    struct rref *rref = cell_ask(from, owner, number);
    ck_assert_msg(rref_await(rref, &error) == STATUS_OK, "%s", error.text);
    return rref;
}

static inline struct future *cell_call(struct rref *rref, uint32_t function, uint64_t number)
{
    struct future *future = NULL;
    struct error error = {0};
    enum status status = rref_call(rref, function, &(struct rpc_message){.args = {0, 0, number}},
                                   MONOTIME_NEVER, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

/* Calls the cell and expects that it is `number`. */
static inline void cell_expect(struct rref *rref, uint64_t number)
{
    struct future *future = cell_call(rref, CELL_GET, 0);
    ck_assert_msg(cluster_await(&cluster, future) == STATUS_OK, "%s", future_text(future));
    ck_assert_uint_eq(future_value(future)->args[0], number);
    future_release(future);
}

static inline struct future *cell_share(struct rref *rref, unsigned to, uint64_t tag)
{
    struct future *future = NULL;
    struct error error = {0};
    ck_assert_msg(rref_share(rref, (uint16_t)to, tag, &future, &error) == STATUS_OK, "%s", error.text);
    return future;
}

/* Gives the reference to `to`, which then holds it: its handle. */
static inline struct rref *cell_give(struct rref *rref, unsigned to)
{
    unsigned before = sides[to].taken_count;
    struct future *future = cell_share(rref, to, 5);
    ck_assert_msg(cluster_await(&cluster, future) == STATUS_OK, "%s", future_text(future));
    future_release(future);
    ck_assert_uint_eq(sides[to].taken_count, before + 1);
    return sides[to].taken[before].rref;
}

static inline void await_destroyed(uint64_t number)
{
    UNTIL(cells_destroyed[number] != 0, cluster_turn(&cluster));
    ck_assert_uint_eq(cells_destroyed[number], 1);
}

#endif
